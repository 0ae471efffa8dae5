"""The parts of the ART example that need no ART: flags, problems, tools, the model's server."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import aviato
from tests.guides.blocks import SEEDS
from tests.openai_server import OpenAIServer, Reply, ToolCall, broken_tool, error, text
from tests.rl.machine import kill_the_new_supervisor, supervisors

pytest.importorskip("openai")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "rl_training" / "art"
NAMES = ("problems", "tools", "inference", "train")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its modules, which have such names that nothing of them may stay."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})
    for name in NAMES:
        del sys.modules[name]


@pytest.fixture
def session(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[aviato.Session]:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    monkeypatch.setenv("AVIATO_IMAGE_FALLBACK", "nearest")
    with aviato.Session() as made:
        yield made


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        stdin=subprocess.DEVNULL,
        **options,
    )


# -- flags


@pytest.mark.skipif(not SEEDS.exists(), reason="the guides are not on this machine (../shared/seeds)")
def test_flags_and_defaults_are_the_readme_s(example: Any) -> None:
    listed = (SEEDS / "art-readme-b-openpipe.txt").read_text().split("### CLI Options")[1].split("```")[1]
    flags = re.findall(r"^--([a-z-]+)", listed, re.MULTILINE)
    defaults = dict(re.findall(r"^--([a-z-]+).*\(default: (.+)\)$", listed, re.MULTILINE))
    parsed = {name.replace("_", "-"): value for name, value in vars(example.train.parse_arguments([])).items()}
    assert set(parsed) - set(flags) == {"problems"} and set(flags) <= set(parsed) and len(defaults) == 9
    assert {name: type(parsed[name])(value) for name, value in defaults.items()} == {name: parsed[name] for name in defaults}
    assert (parsed["base-url"], parsed["dry-run"]) == (None, False)


@pytest.mark.parametrize(
    "argv", [["--use-openai"], ["--batch-size", "8"], ["--max-attempts=5"], ["--dataset-split", "test"], ["--dataset-limit=0"]]
)
def test_flags_of_the_older_toolkit_say_where_that_is(example: Any, argv: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        example.train.main(argv)
    assert ended.value.code == 2
    assert f"{argv[0]} is a flag of the older toolkit, which is examples/rl_training/reward_toolkit" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--num-steps", "0"], ["--trajectories-per-problem", "1"], ["--backend", "gpu"], ["--learn"]])
def test_wrong_flags(example: Any, argv: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        example.train.main(argv)
    assert ended.value.code == 2 and argv[0] in capsys.readouterr().err


WITHOUT_ART = """
import runpy, sys
sys.argv, sys.path[0], sys.modules["art"] = [*sys.argv[1:]], sys.argv[2], None
del sys.argv[1]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_what_is_not_installed_is_named() -> None:
    program = ["-c", WITHOUT_ART, str(EXAMPLE / "train.py"), str(EXAMPLE), "--dry-run", "--problems", "sample"]
    done = python(*program, env={**os.environ, "OPENAI_API_KEY": "x"})
    assert done.returncode == 1
    assert "Loaded 10 problems" in done.stdout
    assert "pip install -r examples/rl_training/art/requirements.txt" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "keys", "word"),
    [
        ([], {}, "Set OPENAI_API_KEY"),
        (["--backend", "tinker"], {"OPENAI_API_KEY": "x"}, "set ART_TINKER_API_KEY"),
        (["--problems", "/nowhere.jsonl"], {"OPENAI_API_KEY": "x"}, "/nowhere.jsonl"),
        (["--problems", "/dev/null"], {"OPENAI_API_KEY": "x"}, "nothing to train on"),
    ],
)
def test_what_is_missing_is_named(flags: list[str], keys: dict[str, str], word: str) -> None:
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "TINKER_", "ART_"))}
    done = python(str(EXAMPLE / "train.py"), "--dry-run", "--problems", "sample", *flags, env={**mine, **keys})
    assert done.returncode == 1
    assert word in done.stderr and "Traceback" not in done.stderr


def test_the_folder_is_not_taken_for_the_package() -> None:
    done = python("-c", "import art", cwd=EXAMPLE.parent)
    assert "this is examples/rl_training/art and not the package openpipe-art" in done.stderr


# -- problems


def test_the_sample(example: Any) -> None:
    problems = example.problems.load_problems("sample", 100)
    assert len(problems) == 12 and all(len(problem.cases) >= 2 for problem in problems)
    system, user = problems[0].messages()
    assert (system["role"], user["role"]) == ("system", "user")
    assert problems[0].text in user["content"] and all(test in user["content"] for test in problems[0].tests)


def test_rows_that_are_no_problems_are_left_out(example: Any, tmp_path: Path, capsys: Any) -> None:
    good = {"task_id": 7, "text": "Do it.", "code": "", "test_list": ["assert f()"], "test_setup_code": "import math"}
    rows = [good | {"test_list": []}, {"task_id": 8}, {}, [], good | {"text": None}, good, good | {"test_list": None}, good]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"task_id":\n\xff\n\n' + "\n".join(map(json.dumps, rows)).encode())
    problems = example.problems.load_problems(str(path), 10)
    assert [problem.cases for problem in problems] == [["import math\nassert f()"]] * 2
    printed = capsys.readouterr().out
    assert printed.count("Left out: ") == 8 and "problem 7 has no text or no tests" in printed


# -- tools


@pytest.mark.anyio
async def test_the_tools(example: Any, session: aviato.Session) -> None:
    problem = example.problems.MBPPProblem(1, "Double.", ("assert f(2) == 4", "assert f(-1) == -2"), "import math")
    async with session.sandbox() as sandbox:
        box = example.tools.Toolbox(problem, session, sandbox)

        async def call(name: str = "execute_code", **arguments: Any) -> str:
            return await box.call(name, json.dumps(arguments))

        assert await call(code="open('kept', 'w').write('x')\nprint('hé')") == "exit code: 0\nhé\n"
        assert await call(code="print(open('kept').read())") == "exit code: 0\nx\n"
        failed = await call(code="1 / 0  # wrong")
        assert failed.startswith("exit code: 1\n") and "ZeroDivisionError" in failed and "# wrong" in failed
        assert "EOFError" in await call(code="input()")
        long = await call(code="print('a' * 10_000_000)")
        assert len(long) < 5_000 and "bytes left out" in long
        assert "exit code: 0" in await call(code="#" * 10_000_000)
        assert "SyntaxError" in await call(code="print('\ud800')") and "SyntaxError" in await call(code="a = '\0'")
        example.tools.EXECUTION_TIMEOUT_SECONDS = 0.5
        slow = await call(code="print('begun', flush=True)\nwhile True: pass")
        assert "longer than 0.5 s" in slow and "begun" in slow
        assert box.outcome is None
        assert await call("submit_solution", code="def f(n): return n * 2") == "All tests passed."
        assert box.outcome.passed
        assert await call("submit_solution", code="def f(n): return 0") == "Error: a solution has been submitted already."
        assert box.outcome.passed


@pytest.mark.anyio
async def test_calls_that_make_no_sense_are_answered(example: Any) -> None:
    box = example.tools.Toolbox(problem=None, session=None, sandbox=None)
    assert await box.call("bash", "{}") == "Error: there is no tool 'bash'. The tools are execute_code and submit_solution."
    for arguments in ['{"code": "print(1', "", "\udcff", "[" * 100_000, b"\xff".decode("latin-1")]:
        assert "no valid JSON" in await box.call("execute_code", arguments)
    for arguments in [
        "[]",
        "null",
        '"print(1)"',
        "{}",
        '{"code": null}',
        '{"code": ["1"]}',
        '{"code": " \\n"}',
        '{"source": "1"}',
    ]:
        answer = await box.call("submit_solution", arguments)
        assert "need a text 'code'" in answer and 'such as {"code": "print(1)"}' in answer
    assert box.outcome is None


@pytest.mark.anyio
@pytest.mark.parametrize(
    "code", ["def f(n): return n", "import os; os._exit(0)", "raise SystemExit(0)", "import math; f = math.inf", "def f(n"]
)
async def test_wrong_solutions_fail(example: Any, session: aviato.Session, code: str) -> None:
    problem = example.problems.MBPPProblem(1, "Double.", ("assert f(2) == 4",))
    async with session.sandbox() as sandbox:
        box = example.tools.Toolbox(problem, session, sandbox)
        answer = await box.call("submit_solution", json.dumps({"code": code}))
        assert answer.startswith("Not solved: test_1: ") and not box.outcome.passed


@pytest.mark.anyio
async def test_a_lost_sandbox_is_no_message_for_the_model(example: Any, session: aviato.Session, server: Any) -> None:
    before = supervisors(server.pid)
    async with session.sandbox() as sandbox:
        await sandbox.exec(["true"])
        kill_the_new_supervisor(server.pid, before, works=False)
        box = example.tools.Toolbox(None, session, sandbox)
        with pytest.raises(aviato.SandboxError) as caught:
            await box.call("execute_code", '{"code": "print(1)"}')
        assert caught.value.is_infrastructure


# -- the model's server


async def converse(example: Any, api: OpenAIServer) -> list[Any]:
    import openai

    async with openai.AsyncOpenAI(base_url=api.url, api_key=api.key) as client:
        conversation = example.inference.Conversation(client, "stand-in", [{"role": "user", "content": "go"}])
        turns = []
        while not turns or turns[-1].calls:
            turns.append(await conversation.turn())
            for call in turns[-1].calls:
                conversation.answer(call, f"did {call.name}")
        return turns


@pytest.mark.anyio
@pytest.mark.parametrize("responses", [True, False])
async def test_conversations_over_both_apis(example: Any, responses: bool) -> None:
    two = Reply(text="both", reasoning="hm", tool_calls=[ToolCall("a", {"x": 1}), ToolCall("b", "{broken")])
    with OpenAIServer(lambda request: [two, broken_tool("c", ""), text("done")][request.turn], responses=responses) as api:
        turns = await converse(example, api)
        assert [turn.text for turn in turns] == ["both", "", "done"]
        assert [[(call.name, call.arguments) for call in turn.calls] for turn in turns] == [
            [("a", '{"x": 1}'), ("b", "{broken")],
            [("c", "")],
            [],
        ]
        assert str(turns[0]) == (
            'both\n<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>\n'
            '<tool_call>\n{"name": "b", "arguments": {broken}\n</tool_call>'
        )
        assert api.requests[-1].observations == ["did a", "did b", "did c"]
        assert {request.path for request in api.requests} == {"/v1/responses" if responses else "/v1/chat/completions"}
        tools = api.requests[0].body["tools"]
        assert [(t if responses else t["function"])["name"] for t in tools] == ["execute_code", "submit_solution"]
        assert api.refused == []


@pytest.mark.anyio
async def test_a_server_in_trouble_is_asked_again_and_then_raises(example: Any) -> None:
    import openai

    with OpenAIServer([error(429), error(500), text("at last")]) as api:
        assert [turn.text for turn in await converse(example, api)] == ["at last"]
    with OpenAIServer([error(503)]) as api, pytest.raises(openai.InternalServerError):
        await converse(example, api)
    with OpenAIServer([error(404)]) as api, pytest.raises(openai.NotFoundError):
        await converse(example, api)


def test_requirements_and_readme() -> None:
    """Pinned, and aviato from the checkout alone: its name in a registry would be someone else's."""
    requirements = (EXAMPLE / "requirements.txt").read_text()
    lines = [line for line in requirements.splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in lines) and not any(line.startswith("aviato") for line in lines)
    readme = (EXAMPLE / "README.md").read_text()
    assert "pip install -e ." in readme and not re.search(r"pip install [^\n]*aviato", readme)
    for target in re.findall(r"\]\((?!https:)([^)#]+)", readme):
        assert (EXAMPLE / target).exists(), target
    for name in os.listdir(EXAMPLE):
        assert name.startswith("__pycache__") or name == "README.md" or name in readme
