"""Advice that an error gives is followed to the letter, and works: the error is provoked, the advice taken out and run."""

from __future__ import annotations

import ast
import asyncio
import io
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import aviato
from aviato import rl


class Advice(NamedTuple):
    """An error and what it says to do.

    Attributes:
        wrong: an expression that provokes it.
        said: finds the advice in the message, as a group or two; none where it is about the expression.
        follow: an expression with `{}` for each group; what it gives is true.
    """

    wrong: str
    said: str
    follow: str


RUNS = "box.exec({}).result().returncode == 0"
DOUBLE = "def double(x):\n    return 2 * x\n"
PICKLE = "serialization=aviato.Serialization.PICKLE"
UNITTEST = "['python3', '-m', 'unittest', 'test_a']"
PLAIN = "box.grade({'t.py': b''}, ['python3', 't.py'], mode='in_process', "


def checks(wrong: str, said: str, right: str) -> Advice:
    """A source of a test that checks nothing, and the one that does."""
    given = "rl.Task(code=DOUBLE, tests=[rl.TestCase(source={!r})])"
    return Advice(given.format(wrong), said, given.replace("{!r}", repr(right)))


def escaped(source: str) -> str:
    """Source without advice in it, for `str.format`."""
    return source.replace("{", "{{").replace("}", "}}")


COMMANDS = [
    "ls -la",
    "true",
    "echo 'two words'",
    'echo "two words"',
    "printf %s it\\'s",
    "ls | wc -l",
    "cd /tmp && pwd",
    "cd /tmp",
    "A=1 env",
    "echo $HOME > /tmp/home",
    "echo `pwd`",
    "ls /usr/*",
    "for i in 1 2; do echo $i; done",
    "test ! -e /nowhere",
    "true # says nothing",
    b"ls -la",
    Path("/bin/true"),
]
AS_LIST = r"write (\[.*\])$"

ADVICE = [
    *[Advice(f"box.exec({line!r})".replace("PosixPath", "Path"), AS_LIST, RUNS) for line in COMMANDS],
    Advice("box.exec('ls', '-la')", AS_LIST, RUNS),
    Advice("box.exec('ls -la', shell=True)", r"as (\['bash', '-c', )…\]$", "box.exec({}'ls -la']).result().returncode == 0"),
    Advice(
        "aviato.Session(image='host')",
        r"write (defaults=SandboxDefaults\(container_image=)…\)$",
        "aviato.Session({}'host'))",
    ),
    Advice("box.shell('echo here')", AS_LIST, "box.shell({}).result().returncode == 0"),
    Advice("aviato.Sandbox.run('true', args='a')", AS_LIST, "aviato.Sandbox(command='true', args={})"),
    Advice("box.grade({'test_a.py': b''}, 'python3 -m unittest test_a')", AS_LIST, f"{{}} == {UNITTEST}"),
    Advice("rl.Task(command='ls -la | wc')", AS_LIST, "rl.Task(command={})"),
    # one in place of a list
    Advice("aviato.Sandbox(command='true', args='a')", AS_LIST, "aviato.Sandbox(command='true', args={})"),
    Advice("aviato.Sandbox(tags='rollout')", AS_LIST, "aviato.Sandbox(tags={})"),
    Advice("aviato.Sandbox(runway_ids='local')", AS_LIST, "aviato.Sandbox(runway_ids={})"),
    Advice("aviato.Session(report_to='wandb')", AS_LIST, "aviato.Session(report_to={})"),
    Advice("aviato.wait(item)", AS_LIST, "aviato.wait({})[0] == [item]"),
    Advice("list(aviato.as_completed(item))", AS_LIST, "list(aviato.as_completed({})) == [item]"),
    Advice("rl.evaluate(task)", AS_LIST, "rl.evaluate({}, base_url=URL).result()[0].passed"),
    Advice("rl.Task(code=DOUBLE, tests=case)", AS_LIST, "rl.Task(code=DOUBLE, tests={})"),
    Advice("rl.CallCase(function='f', args=4, expected=8)", AS_LIST, "rl.CallCase(function='f', args={}, expected=8)"),
    Advice(f"session.function(result_types=Point, {PICKLE})", AS_LIST, f"session.function(result_types={{}}, {PICKLE})"),
    Advice("session.function(double)", r"write @(session\.function\(\))$", "{}(double)"),
    Advice("session.function()(double).map([3])", r"write (\(3,\))$", "session.function()(double).map([{}])[0].result() == 6"),
    # quantities
    Advice("box.exec(['true'], timeout_seconds=0)", r"`(math\.inf)`", "box.exec(['true'], timeout_seconds={}).result()"),
    *[
        Advice(f"aviato.Sandbox(resources={{'memory': {wrong!r}}})", r"did you mean ('.*')\?$", f"{{}} == {right!r}")
        for wrong, right in (("512m", "512Mi"), (512, "512Mi"))
    ],
    # options that exclude each other
    Advice(
        "aviato.Sandbox(secrets=[SECRET], environment_variables={'A': 'b'})",
        r"leave one of them out$",
        "aviato.Sandbox(secrets=[SECRET]) and aviato.Sandbox(environment_variables={{'A': 'b'}})",
    ),
    Advice(
        "aviato.Sandbox(ports=[80], network=aviato.NetworkOptions(ingress_mode='none'))",
        r"leave one of them out$",
        "aviato.Sandbox(ports=[80]) and aviato.Sandbox(network=aviato.NetworkOptions(ingress_mode='none'))",
    ),
    Advice("aviato.Sandbox(runtime='kata')", r"leave it out$", "aviato.Sandbox()"),
    Advice(
        "aviato.Sandbox(environment_variables={'A': 'x' * 200_000})",
        r"by (mounted_files=) or (write_file)\(\)$",
        "aviato.Sandbox({}[{{'mount_path': '/a', 'file_content': b'x' * 200_000}}]) and box.{}('/a', b'x').result() is None",
    ),
    # files and streams
    Advice("cat.stdin.write('text')", r"use (writeline)\(\)", "cat.stdin.{}('text').result() is None"),
    Advice("cat.stdin.writeline(b'x')", r"use (write)\(\)$", "cat.stdin.{}(b'x').result() is None"),
    Advice(
        "box.upload(DIRECTORY + '/fifo', '/tmp/x').result()",
        r"pass it to (write_file_streaming)\(\)$",
        "box.{}('/tmp/x', io.BytesIO(b'a')).result() is None",
    ),
    Advice(
        "box.download('/etc/passwd', DIRECTORY).result()",
        r"name the file to write",
        "box.download('/etc/passwd', DIRECTORY + '/passwd').result() is None",
    ),
    Advice("box.write_file('/tmp/x', 'a')", r"(encode) text first$", "box.write_file('/tmp/x', 'a'.{}()).result() is None"),
    Advice("box.write_file_streaming('/tmp/x', b'a')", r"use (write_file)\(\)$", "box.{}('/tmp/x', b'a').result() is None"),
    Advice("rl.Task(code='', files={'a': 'b'})", r"write (\.encode\(\))$", "rl.Task(code='', files={{'a': 'b'{}}})"),
    # functions
    Advice(
        "session.function()(size).remote({1})",
        r"use serialization=(Serialization\.PICKLE)$",
        "session.function(serialization=aviato.{})(size).remote({{1}}).result() == 1",
    ),
    Advice(
        "session.function()(makes_set).remote().result()",
        r"use serialization=(Serialization\.PICKLE)$",
        "session.function(serialization=aviato.{})(makes_set).remote().result() == {{1}}",
    ),
    Advice(
        "session.function()(coroutine)", r"it may call (asyncio\.run)", "session.function()(runs_it).remote().result() == 3"
    ),
    # cases
    Advice("rl.CallCase(function='f', args=[2])", r"None included$", "rl.CallCase(function='f', args=[2], expected=None)"),
    *[
        Advice(
            f"rl.CallCase(function='f', args=[2], expected=4, judge=rl.{judge})",
            rf"write ({judge}\()…\)$",
            "rl.CallCase(function='f', args=[2], expected=4, judge=rl.{}))",
        )
        for judge in ("floats", "value")
    ],
    checks("double(2) == 4", r"write `(assert)` in front of it", "{} double(2) == 4"),
    checks("double(2) == 4, 'x'", r"write `(assert)` in front of the comparison", "{} double(2) == 4"),
    checks("assert (double(2) == 4, 'x')", r"write `(assert) f\(2\) == 4`", "{} double(2) == 4"),
    checks("print(double(2))", r"write `(assert)` and what must be true", "{} double(2) == 4"),
    checks("def check(): assert double(2) == 4\ncheck", r"write (check\(\))", "def check(): assert double(2) == 4\n{}"),
    checks(
        "async def check(): assert double(2) == 4\ncheck()",
        r"write (asyncio\.run\(check\(\)\))",
        "import asyncio\nasync def check(): assert double(2) == 4\n{}",
    ),
    checks("def check(): return double(2) == 4\ncheck()", r"`(assert)` there", "def check():\n    {} double(2) == 4\ncheck()"),
    checks(
        "def check(): return double(2) == 4\ncheck()", r"`(assert)` there", "def check(): return double(2) == 4\n{} check()"
    ),
    checks("def test(): pass", r"write `(assert)` there", "def test():\n    {} double(2) == 4\ntest()"),
    checks("double", r"write `(assert)` and what must be true", "{} double(2) == 4"),
    checks("", r"write `(assert)`", "{} double(2) == 4"),
    checks("# double", r"write `(assert)`", "{} double(2) == 4"),
    checks("'double'", r"write `(assert)`", "{} double(2) == 4"),
    checks("class A: pass", r"write `(assert)`", "{} double(2) == 4"),
    # grading
    Advice(
        f"box.grade({{'test_a.py': b''}}, {UNITTEST}, result_paths=['conftest.py'])",
        r"pass (allow_startup_files=True)$",
        f"box.grade({{{{'test_a.py': b''}}}}, {UNITTEST}, result_paths=['conftest.py'], {{}})",
    ),
    Advice(
        PLAIN + "result_paths=['src']).result()",
        r"write ('src/') for all",
        escaped(PLAIN) + "result_paths=[{}]).result().passed",
    ),
    Advice(
        PLAIN + "base_commit='abcdef0')", r"name it as (result_changes)$", escaped(PLAIN) + "base_commit='abcdef0', {}='src')"
    ),
    Advice(
        PLAIN + "result_paths=['/**'])",
        r"name the directory that the policy worked in$",
        escaped(PLAIN) + "result_paths=['/workspace/src/**'])",
    ),
    # connections and networks
    Advice("aviato.Sandbox(base_url='localhost:80')", r"use (http://host):port", "aviato.Sandbox(base_url='{}:80')"),
    Advice("aviato.Sandbox(base_url='unix://a.sock')", r"(unix:///absolute/path)$", "aviato.Sandbox(base_url='{}')"),
    Advice("asyncio.run(aviato.AsyncClient().list())", r"inside its `(async with)`$", "asyncio.run(listed())"),
    Advice("aviato.NetworkOptions(egress_mode=[])", r"('none') is the mode", "aviato.NetworkOptions(egress_mode={})"),
    Advice(
        "aviato.NetworkOptions(egress_mode=['faß.de'])",
        r"its (xn--) form",
        "aviato.NetworkOptions(egress_mode=['{}fa-hia.de'])",
    ),
    Advice("box.exec(['sleep', '60']).result(1e-6)", r"or (cancel\(\)) it$", "box.exec(['sleep', '60']).{} in (True, False)"),
]


@pytest.fixture(scope="module")
def names(server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    directory = tmp_path_factory.mktemp("advice")
    os.mkfifo(directory / "fifo")

    @dataclass
    class Point:
        x: int

    def double(x: int) -> int:
        return 2 * x

    def size(x: set[int]) -> int:
        return len(x)

    def makes_set() -> set[int]:
        return {1}

    async def coroutine() -> int:
        return 3

    def returns_coroutine() -> Any:
        import asyncio

        return asyncio.sleep(0)

    def runs_it() -> int:
        import asyncio

        async def three() -> int:
            return 3

        return asyncio.run(three())

    async def listed() -> bool:
        async with aviato.AsyncClient(base_url=server.url) as client:
            return isinstance(await client.list(), list)

    with aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as session:
        box = session.sandbox()
        cat = box.exec(["cat"], stdin=True)
        assert cat.stdin is not None
        box.write_file("src/a.py", b"").result()
        item = box.exec(["true"])
        functions = (double, size, makes_set, coroutine, returns_coroutine, runs_it, listed)
        yield {function.__name__: function for function in functions} | {
            "aviato": aviato,
            "SandboxDefaults": aviato.SandboxDefaults,
            "asyncio": asyncio,
            "io": io,
            "math": math,
            "Path": Path,
            "rl": rl,
            "DOUBLE": DOUBLE,
            "URL": server.url,
            "box": box,
            "session": session,
            "cat": cat,
            "item": item,
            "Point": Point,
            "DIRECTORY": str(directory),
            "SECRET": aviato.Secret(store="env", name="A"),
            "task": rl.Task(code=DOUBLE, tests=["assert double(2) == 4"]),
            "case": rl.TestCase(source="assert double(2) == 4"),
            "argument": 4,
        }


def said_by(wrong: str, names: dict[str, Any]) -> str:
    """The message of the error that an expression raises."""
    try:
        eval(wrong, dict(names))
    except Exception as error:
        return str(error)
    pytest.fail(f"{wrong} raised nothing")


@pytest.mark.parametrize("advice", ADVICE, ids=[f"{number}: {one.wrong}" for number, one in enumerate(ADVICE)])
def test_advice_works(advice: Advice, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", "unix:///nowhere")
    message = said_by(advice.wrong, names)
    found = re.search(advice.said, message)
    assert found, message
    assert eval(advice.follow.format(*found.groups()), dict(names)), message


def test_every_advice_of_the_package_is_in_the_table(names: dict[str, Any]) -> None:
    messages = [said_by(advice.wrong, names) for advice in ADVICE]
    left = [
        f"{place}: {text}"
        for place, text in sorted(advices(Path(aviato.__file__).parent))
        if not any(re.search(text, message, re.DOTALL) for message in messages)
        and not any(part in text for part in map(re.escape, ELSEWHERE))
    ]
    assert not left, "no row provokes these"


ELSEWHERE = {
    "compares and throws": "tests/verdicts/test_nothing_checked.py",
    "throws its result away": "tests/verdicts/test_nothing_checked.py",
    "needs the trainer's environments": "tests/rl/test_trl_environment.py",
    "an async source needs a running event loop": "tests/end_to_end/test_files.py",
    "write it to a file": "tests/verdicts and tests/functions: what is too long, or no text",
    "pass it as standard input": "tests/cli/test_cli.py",
    "did you mean": "tests/cli/test_advice.py and tests/surface/test_meant.py",
    "agent-sandbox with its API": "tests/kubernetes/agent_sandbox: a cluster without it",
    "AVIATO_API_KEY": "tests/server/test_callers.py",
    "AVIATO_STATE_DIR": "a directory of another user",
    "is no name for an image": "tests/images/test_operations.py",
    "has no value": "tests/building/test_dockerfile.py",
    "ONBUILD is not supported": "tests/building/test_dockerfile.py",
    "COPY takes no URLs": "tests/building/test_dockerfile.py",
    "has no name for a file in": "tests/end_to_end/test_added_urls.py",
    "is no place in a registry": "tests/images/test_export_operations.py",
    "W&B": "needs an account",
    "and a server needs": "tests/cli/test_process_limits.py",
    "run the server on another machine": "tests/backends/test_probe.py: of places that are not here",
    "set KUBECONFIG to a kubeconfig file": "tests/backends/test_pod_probe.py",
    "it says what to repair": "tests/backends/test_probe.py: of places that are not here",
}
"""Part of an advice → where it is followed instead, or why it is not."""
_ADVISES = re.compile(r"(?:[:;,] |\bor )(?:write|pass|set|run) (?!a command|code|and\b|time\b|assert async)|did you mean")


def advices(package: Path) -> Iterator[tuple[str, str]]:
    """Every text of the package that tells somebody to write, pass, set or run something, as a pattern of what it becomes."""
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text())
        raised = [node for node in ast.walk(tree) if isinstance(node, (ast.Raise, ast.Assign, ast.Return, ast.Call, ast.Dict))]
        seen = set()
        for holder in raised:
            for node in ast.walk(holder):
                if isinstance(node, (ast.JoinedStr, ast.Constant)) and id(node) not in seen:
                    seen |= {id(part) for part in ast.walk(node)}
                    text = _pattern(node)
                    if text and "\n" not in text and _ADVISES.search(text.replace("\\", "")):
                        yield f"{path.relative_to(package)}:{node.lineno}", text


def _pattern(node: ast.JoinedStr | ast.Constant) -> str:
    if isinstance(node, ast.Constant):
        return re.escape(node.value) if isinstance(node.value, str) else ""
    return "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".*" for part in node.values)
