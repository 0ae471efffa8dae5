"""NUL and lone surrogates in every text that a public call takes: a typed error, no failure of the machine, or they work.

They come from models' answers and from files of others, so no call may break by them as Python does.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import rl
from tests.matrices import deep

ODD = {"NUL": "a\0b", "a lone surrogate": "a\ud800b", "half a byte": "a\udcffb"}
Call = Callable[[aviato.Sandbox, str], Any]


def _new(**options: Callable[[str], Any]) -> dict[str, Call]:
    """One row a parameter of a sandbox that is made by it."""

    def row(name: str, value: Callable[[str], Any]) -> Call:
        return lambda _, text: aviato.Sandbox(**{name: value(text)}).start().result(60)

    return {f"Sandbox({name}=)": row(name, value) for name, value in options.items()}


NEW = _new(
    command=lambda text: text,
    container_image=lambda text: text,
    packages=lambda text: text,
    tags=lambda text: [text],
    base_url=lambda text: text,
    resources=lambda text: {"memory": text},
    mounted_files=lambda text: [{"mount_path": f"/tmp/{text}", "file_content": ""}],
    secrets=lambda text: [aviato.Secret(text)],
    environment_variables=lambda text: {text: "", "A": text},
    working_dir=lambda text: f"/{text}",
    annotations=lambda text: {text: text},
    runtime=lambda text: text,
    runway_ids=lambda text: [text],
    tower_ids=lambda text: [text],
    network=lambda text: aviato.NetworkOptions(egress_mode=[text]),
    ports=lambda text: [text],
)
CALLS: dict[str, Call] = {
    **NEW,
    "Sandbox(args=)": lambda _, text: aviato.Sandbox(command="true", args=[text]).start().result(60),
    "environment value": lambda _, text: aviato.Sandbox(environment_variables={"A": text}).start().result(60),
    "file_content": lambda _, text: (
        aviato.Sandbox(mounted_files=[{"mount_path": "/tmp/f", "file_content": text}]).start().result(60)
    ),
    "Sandbox.run": lambda _, text: aviato.Sandbox.run(text).start().result(60),
    "Sandbox.from_id": lambda _, text: aviato.Sandbox.from_id(text).result(60),
    "Sandbox.from_id(base_url=)": lambda _, text: aviato.Sandbox.from_id("sb-" + "0" * 26, base_url=text).result(60),
    "Sandbox.delete": lambda _, text: aviato.Sandbox.delete(text).result(60),
    "Sandbox.list(tags=)": lambda _, text: aviato.Sandbox.list(tags=[text]).result(60),
    "Sandbox.list(status=)": lambda _, text: aviato.Sandbox.list(status=text).result(60),
    "Sandbox.exec": lambda box, text: box.exec(["echo", text]).result(60),
    "Sandbox.exec program": lambda box, text: box.exec([text]).result(60),
    "Sandbox.exec(cwd=)": lambda box, text: box.exec(["true"], cwd=f"/{text}").result(60),
    "Sandbox.exec(env=)": lambda box, text: box.exec(["true"], env={"A": text}).result(60),
    "Sandbox.exec(env=) name": lambda box, text: box.exec(["true"], env={text: ""}).result(60),
    "Sandbox.exec(stdin=)": lambda box, text: box.exec(["cat"], stdin=text).result(60),
    "Sandbox.exec(user=)": lambda box, text: box.exec(["true"], user=text).result(60),
    "Sandbox.attach": lambda box, text: box.attach(text).result(60),
    "Sandbox.shell": lambda box, text: box.shell([text]).result(60),
    "Sandbox.shell(cwd=)": lambda box, text: box.shell(["true"], cwd=f"/{text}").result(60),
    "Sandbox.shell(env=)": lambda box, text: box.shell(["true"], env={"A": text}).result(60),
    "Sandbox.read_file": lambda box, text: box.read_file(f"/tmp/{text}").result(60),
    "Sandbox.read_file_streaming": lambda box, text: list(box.read_file_streaming(f"/tmp/{text}")),
    "Sandbox.write_file": lambda box, text: box.write_file(f"/tmp/{text}", b"").result(60),
    "Sandbox.write_file_streaming": lambda box, text: box.write_file_streaming(f"/tmp/{text}", [b""]).result(60),
    "Sandbox.list_files": lambda box, text: box.list_files(f"/tmp/{text}").result(60),
    "Sandbox.make_directory": lambda box, text: box.make_directory(f"/tmp/{text}").result(60),
    "Sandbox.remove": lambda box, text: box.remove(f"/tmp/{text}").result(60),
    "Sandbox.stat": lambda box, text: box.stat(f"/tmp/{text}").result(60),
    "Sandbox.upload": lambda box, text: box.upload(f"/nowhere/{text}", "/tmp/to").result(60),
    "Sandbox.upload(remote)": lambda box, text: box.upload("/etc/hostname", f"/tmp/{text}").result(60),
    "Sandbox.download": lambda box, text: box.download(f"/tmp/{text}", "/nowhere/to").result(60),
    "Sandbox.download(local)": lambda box, text: box.download("/tmp", f"/nowhere/{text}").result(60),
    "Sandbox.grade": lambda box, text: box.grade(files={}, command=["true", text]).result(60),
    "Sandbox.grade(files=)": lambda box, text: box.grade(files={text: b""}, command=["true"]).result(60),
    "Sandbox.grade(result_paths=)": lambda box, text: box.grade(files={}, command=["true"], result_paths=[text]).result(60),
    "Sandbox.grade(env=)": lambda box, text: box.grade(files={}, command=["true"], env={"A": text}).result(60),
    "Sandbox.grade(base_commit=)": lambda box, text: box.grade(
        files={}, command=["true"], result_changes="/tmp", base_commit=text
    ).result(60),
    "Sandbox.grade(result_changes=)": lambda box, text: box.grade(files={}, command=["true"], result_changes=f"/{text}").result(
        60
    ),
    "Sandbox.grade(base_files=)": lambda box, text: box.grade(
        files={}, command=["true"], result_changes="/tmp", base_files={text: b""}
    ).result(60),
    "StreamWriter.writeline": lambda box, text: _written(box, text),
    "NetworkOptions(egress_mode=)": lambda _, text: aviato.NetworkOptions(egress_mode=text),
    "ResourceOptions(requests=)": lambda _, text: aviato.ResourceOptions(requests={"cpu": text}),
    "ResourceOptions(limits=)": lambda _, text: aviato.ResourceOptions(limits={text: 1}),
    "Secret(name=)": lambda _, text: aviato.Secret(text),
    "Secret(env_var=)": lambda _, text: aviato.Secret("NAME", env_var=text),
    "SandboxDefaults(tags=)": lambda _, text: aviato.SandboxDefaults(tags=(text,)),
    "SandboxDefaults(container_image=)": lambda _, text: (
        aviato.Sandbox(defaults=aviato.SandboxDefaults(container_image=text)).start().result(60)
    ),
    "SandboxDefaults(temp_dir=)": lambda _, text: aviato.SandboxDefaults(temp_dir=f"/{text}"),
    "SandboxDefaults(environment_variables=)": lambda _, text: aviato.SandboxDefaults(environment_variables={"A": text}),
    "SandboxDefaults.from_dict": lambda _, text: aviato.SandboxDefaults.from_dict({text: text}),
    "SandboxDefaults.merge_environment_variables": lambda _, text: aviato.SandboxDefaults().merge_environment_variables(
        {"A": text}
    ),
    "SandboxDefaults.merge_tags": lambda _, text: aviato.SandboxDefaults().merge_tags([text]),
    "SandboxDefaults.with_overrides": lambda _, text: aviato.SandboxDefaults().with_overrides(tags=[text]),
    "Session(report_to=)": lambda _, text: aviato.Session(report_to=[text]),
    "Session.from_id": lambda _, text: aviato.Session().from_id(text).result(60),
    "Session.list(tags=)": lambda _, text: aviato.Session().list(tags=[text]).result(60),
    "Session.function(temp_dir=)": lambda _, text: aviato.Session().function(temp_dir=f"/{text}")(len)([1]).result(60),
    "a function's argument": lambda _, text: aviato.Session().function()(_same)(text).result(60),
    "rl.Task(code=)": lambda _, text: _evaluated(rl.Task(code=f"x = 1\n#{text}", tests=["assert x == 1"])),
    "rl.Task(tests=)": lambda _, text: _evaluated(rl.Task(code="x = 1", tests=[f"assert x == 1 #{text}"])),
    "rl.Task(command=)": lambda _, text: _evaluated(rl.Task(command=["echo", text])),
    "rl.Task(stdin=)": lambda _, text: _evaluated(rl.Task(code="print(1)", stdin=text, expected_output="1\n")),
    "rl.Task(expected_output=)": lambda _, text: _evaluated(rl.Task(code="print(1)", expected_output=text)),
    "rl.Task(files=)": lambda _, text: _evaluated(rl.Task(code="print(1)", files={text: b""})),
    "rl.Task(language=)": lambda _, text: _evaluated(rl.Task(code="print(1)", language=text)),
    # What fails for every code is the task's own failure, and no score.
    "rl.Task(prelude=)": lambda _, text: rl.evaluate([rl.Task(code="x = 1", tests=["assert x == 1"], prelude=text)]).result(
        120
    ),
    "rl.Task(grading=)": lambda _, text: _evaluated(rl.Task(code="x = 1", tests=["assert x == 1"], grading=text)),
    "rl.Task(code_names=)": lambda _, text: _evaluated(rl.Task(code="x = 1", tests=["assert x == 1"], code_names=[text])),
    "rl.checker(source=)": lambda _, text: _evaluated(_checked(rl.checker(f"#{text}"))),
    "rl.checker(language=)": lambda _, text: rl.checker("", language=text),
    "rl.checker(convention=)": lambda _, text: rl.checker("", convention=text),
    "rl.checker(files=)": lambda _, text: rl.checker("", files={text: b""}),
    "rl.CallCase.from_json_lines": lambda _, text: rl.CallCase.from_json_lines(text, f'"{text}"', f'"{text}"'),
    "AsyncClient(base_url=)": lambda _, text: aviato.AsyncClient(base_url=text),
    **{
        f"AsyncClient.{name}": lambda _, text, name=name: _by_client(
            lambda client: getattr(client, name)(f"oci:/nowhere/{text}")
        )
        for name in ("pull_image", "inspect_image", "remove_image", "pin_image", "push_image")
    },
    "AsyncClient.prefetch": lambda _, text: _by_client(lambda client: client.prefetch([text])),
    "Session.prefetch": lambda _, text: _prefetched(text),
    "AsyncClient.from_id": lambda _, text: _by_client(lambda client: client.from_id(text)),
    "AsyncClient.list(tags=)": lambda _, text: _by_client(lambda client: client.list(tags=[text])),
    "AsyncClient.pull_image(name=)": lambda _, text: _by_client(lambda client: client.pull_image("oci:/x", name=text)),
    "AsyncClient.export_image": lambda _, text: _by_client(lambda client: client.export_image(text, f"/tmp/{text}.tar")),
    "AsyncClient.push_image(destination=)": lambda _, text: _by_client(lambda client: client.push_image("none:1", text)),
    "AsyncClient.list(status=)": lambda _, text: _by_client(lambda client: client.list(status=[text])),
    "AsyncClient.delete_snapshot": lambda _, text: _by_client(lambda client: client.delete_snapshot(text)),
    "Image(base=)": lambda _, text: aviato.Image(text).build().result(60),
    "Image.from_": lambda _, text: aviato.Image.from_(text).build().result(60),
    "Image.run": lambda _, text: aviato.Image.from_("host").run(["true", text]).build().result(60),
    "Image.copy": lambda _, text: aviato.Image.from_("host").copy("/etc/hostname", f"/tmp/{text}").build().result(60),
    "Image.env": lambda _, text: aviato.Image.from_("host").env(A=text).build().result(60),
    "Image.workdir": lambda _, text: aviato.Image.from_("host").workdir(f"/{text}").build().result(60),
    "Image.user": lambda _, text: aviato.Image.from_("host").user(text).build().result(60),
    "Image.pip_install": lambda _, text: aviato.Image.from_("host").pip_install(text),
    "Image.build(base_url=)": lambda _, text: aviato.Image.from_("host").build(base_url=text).result(60),
    "Image.build(name=)": lambda _, text: aviato.Image.from_("host").run("true").build(name=text).result(60),
    "Image.from_dockerfile": lambda _, text: aviato.Image.from_dockerfile(f"/nowhere/{text}"),
    "Image.from_dockerfile(context=)": lambda _, text: aviato.Image.from_dockerfile(context=f"/nowhere/{text}"),
    "Image.from_dockerfile(target=)": lambda _, text: _of_dockerfile(target=text).build().result(60),
    "Image.from_dockerfile(build_args=)": lambda _, text: _of_dockerfile(build_args={"A": text}).build().result(60),
    "Image.from_dockerfile(build_args=) name": lambda _, text: _of_dockerfile(build_args={text: "a"}).build().result(60),
    "Sandbox.snapshot(name=)": lambda box, text: box.snapshot(name=text).result(60),
    "Sandbox.reset(to=)": lambda box, text: box.reset(to=text).result(60),
    "Sandbox.delete_snapshot": lambda _, text: aviato.Sandbox.delete_snapshot(text).result(60),
    "Sandbox.delete_snapshot(base_url=)": lambda _, text: aviato.Sandbox.delete_snapshot("sn-x", base_url=text).result(60),
    "Sandbox.list_snapshots(base_url=)": lambda _, text: aviato.Sandbox.list_snapshots(base_url=text).result(60),
    "Sandbox.list(base_url=)": lambda _, text: aviato.Sandbox.list(base_url=text).result(60),
    "rl.Task(packages=)": lambda _, text: _evaluated(rl.Task(code="print(1)", packages=text)),
    "rl.extract": lambda _, text: rl.extract(f"```python\n{text}\n```"),
    "rl.extract(language=)": lambda _, text: rl.extract("```python\nx\n```", language=text),
    "rl.extract_code": lambda _, text: rl.extract_code(f"```python\n{text}\n```"),
    "rl.completion_text": lambda _, text: rl.completion_text(text),
    "rl.CallCase": lambda _, text: _evaluated(
        rl.Task(code="f = str", tests=[rl.CallCase(function="f", args=[text], expected=text)])
    ),
    "rl.CallCase(function=)": lambda _, text: _evaluated(rl.Task(code="x = 1", tests=[rl.CallCase(function=text, expected=1)])),
    "rl.ProgramCase": lambda _, text: _evaluated(
        rl.Task(code="print(input())", tests=[rl.ProgramCase(stdin=f"{text}\n", expected_stdout=text)])
    ),
    "rl.ProgramCase(args=)": lambda _, text: _evaluated(
        rl.Task(code="print(1)", tests=[rl.ProgramCase(args=[text], expected_stdout="1")])
    ),
    "rl.TestCase": lambda _, text: _evaluated(rl.Task(code="x = 1", tests=[rl.TestCase(source=f"assert x #{text}")])),
}
LOCAL = ("Sandbox.upload", "Sandbox.download(local)", "Image.from_dockerfile")
"""Half a byte is a name here as others are."""
WITHOUT_TEXT = {
    # What the layers below or the results are made of, and what is data.
    *(
        "FileInfo",
        "GradeCase",
        "GradeResult",
        "ImageInfo",
        "PushInfo",
        "OperationRef",
        "Process",
        "ProcessResult",
        "Snapshot",
        "StreamReader",
        "TerminalSession",
    ),
    *(
        "StreamWriter",
        "RemoteFunction",
        "SandboxDefaults",
        "CaseOutcome",
        "Extraction",
        "Outcome",
        "Evaluation",
        "Session",
        "Pool",
    ),
}


def _same(value: str) -> str:
    return value


def _written(box: aviato.Sandbox, text: str) -> None:
    process = box.exec(["cat"], stdin=True)
    assert process.stdin is not None
    try:
        process.stdin.writeline(text).result(60)
    finally:
        process.stdin.close()
        process.cancel()


def _prefetched(text: str) -> None:
    with aviato.Session() as session:
        session.prefetch([text]).result(60)


def _of_dockerfile(**options: Any) -> aviato.Image:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "Dockerfile"
        path.write_text("FROM host\nARG A\nENV B=$A\nRUN echo $A")
        return aviato.Image.from_dockerfile(path, **options)


def _by_client(call: Callable[[aviato.AsyncClient], Any]) -> Any:
    async def run() -> Any:
        async with aviato.AsyncClient() as client:
            return await call(client)

    return asyncio.run(run())


def _checked(judge: Any) -> rl.Task:
    return rl.Task(code="print(1)", tests=[rl.ProgramCase(expected_stdout="1", judge=judge)])


def _evaluated(task: rl.Task) -> Any:
    [outcome] = rl.evaluate([task]).result(120)
    assert not outcome.is_infrastructure, outcome
    return outcome


@pytest.fixture(scope="module")
def box(server: Any) -> Iterator[aviato.Sandbox]:
    with aviato.Sandbox(base_url=server.url) as made:
        yield made


@pytest.fixture(autouse=True)
def _served(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)


_FEW = ("Sandbox.exec", "Sandbox.read_file", "Sandbox(environment_variables=)", "rl.Task(code=)")


@pytest.mark.parametrize("name", [*_FEW, *deep(sorted(set(CALLS) - set(_FEW)))])
def test_it_is_refused_by_an_error_of_ours_or_works(box: aviato.Sandbox, name: str) -> None:
    said = {kind: _problem(box, name, text) for kind, text in ODD.items()}
    assert {kind: problem for kind, problem in said.items() if problem} == {}
    assert box.exec(["true"]).result(60).returncode == 0


def _problem(box: aviato.Sandbox, name: str, text: str) -> str | None:
    """What is wrong with how a call answers, or None."""
    try:
        CALLS[name](box, text)
    except aviato.AviatoError as error:
        if error.is_infrastructure and not isinstance(error, aviato.SandboxImageError):
            return f"the machine's failure: {error!r}"
        return None if str(error).isprintable() or "\n" in str(error) else f"not printable: {error!r}"
    except FileNotFoundError as error:
        return None if name in LOCAL else repr(error)
    except TypeError as error:
        return None if "surrogate" not in str(error) else repr(error)
    except BaseException as error:
        return f"not ours: {type(error).__name__}: {error}"[:300]
    return None


def test_each_text_of_a_public_call_has_a_row() -> None:
    covered = " ".join(CALLS)
    missing = []
    for module, prefix in ((aviato, ""), (rl, "rl.")):
        for name in module.__all__:
            for called, parameter in _texts(module, name):
                known = f"{prefix}{called}({parameter}=)" in CALLS or f"{prefix}{called}" in CALLS
                if not known and name not in WITHOUT_TEXT:
                    missing.append(f"{prefix}{called}({parameter}=)")
    assert covered and missing == []


def _texts(module: Any, name: str) -> Iterator[tuple[str, str]]:
    """Parameters of a public name, and of its methods, that take text."""
    value = getattr(module, name)
    if isinstance(value, type) and issubclass(value, BaseException):
        return
    members = inspect.getmembers(value, callable) if isinstance(value, type) else []
    for called, function in [(name, value), *((f"{name}.{method}", found) for method, found in members if method[0] != "_")]:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            continue
        for one in parameters:
            if re.search(r"\bstr\b|PathLike", str(one.annotation)):
                yield called, one.name
