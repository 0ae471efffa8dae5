"""Errors in the user's words: what was meant by a parameter, an attribute or a name that there is not; what is no text."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import rl
from aviato.calls import network_remedy
from aviato.values import parameters, quantities

BOX = aviato.Sandbox()
"""Never started."""

# What is written → the end of what is said.
MEANT = {
    # sandboxes
    "aviato.Sandbox(image='x')": "'image'; did you mean container_image=?",
    "aviato.Sandbox(template='x')": "did you mean container_image=?",
    "aviato.Sandbox(env={})": "did you mean environment_variables=?",
    "aviato.Sandbox(envs={})": "did you mean environment_variables=?",
    "aviato.Sandbox(env_vars={})": "did you mean environment_variables=?",
    "aviato.Sandbox(timeout=5)": "did you mean exec_timeout_seconds= or max_lifetime_seconds=?",
    "aviato.Sandbox(timeout_seconds=5)": "did you mean exec_timeout_seconds= or max_lifetime_seconds=?",
    "aviato.Sandbox(ttl=5)": "did you mean max_lifetime_seconds=?",
    "aviato.Sandbox(idle_timeout=5)": "did you mean idle_timeout_seconds=?",
    "aviato.Sandbox(cwd='/')": "did you mean working_dir=?",
    "aviato.Sandbox(workdir='/')": "did you mean working_dir=?",
    "aviato.Sandbox(memory='1g')": "did you mean resources=?",
    "aviato.Sandbox(cpus=1)": "did you mean resources=?",
    "aviato.Sandbox(gpu=1)": "did you mean resources=?",
    "aviato.Sandbox(volumes=[])": "did you mean mounted_files=?",
    "aviato.Sandbox(allow_internet_access=True)": "did you mean network=?",
    "aviato.Sandbox(block_network=True)": "did you mean network=?",
    "aviato.Sandbox(egress_mode='none')": "did you mean network=?",
    "aviato.Sandbox(name='x')": "did you mean tags=?",
    "aviato.Sandbox(metadata={})": "did you mean tags=?",
    "aviato.Sandbox(detach=True)": "did you mean detached=?",
    "aviato.Sandbox(port=80)": "did you mean ports=?",
    "aviato.Sandbox(secret=1)": "did you mean secrets=?",
    "aviato.Sandbox(url='x')": "did you mean base_url=?",
    "aviato.Sandbox(entrypoint='x')": "did you mean command=?",
    "aviato.Sandbox(requirements=[])": "did you mean packages=?",
    "aviato.Sandbox(resource={})": "did you mean resources=?",
    "aviato.Sandbox(api_key='x')": "set AVIATO_API_KEY",
    "aviato.Sandbox(zzz=1)": "Sandbox() has no parameter 'zzz'",
    "aviato.Sandbox('python:3.11')": "Sandbox() takes its arguments by name, as in container_image='python:3.11'",
    "aviato.Sandbox.run('true', image='x')": "did you mean container_image=?",
    "aviato.Sandbox.run('true', typo=1)": "has no parameter 'typo'",
    "aviato.Sandbox.list(tag='x')": "did you mean tags=?",
    "aviato.Sandbox.from_id('sb', url='x')": "did you mean base_url=?",
    "BOX.stop(timeout=3)": "did you mean graceful_shutdown_seconds=?",
    "BOX.wait(timeout_seconds=3)": "did you mean timeout=?",
    "aviato.wait([], timeout_seconds=3)": "did you mean timeout=?",
    "aviato.Session(image='x')": "write defaults=SandboxDefaults(container_image=…)",
    "aviato.Session(env={})": "write defaults=SandboxDefaults(environment_variables=…)",
    "aviato.Session(concurrency=3)": "did you mean max_concurrency=?",
    "SESSION.sandbox(image='x')": "did you mean container_image=?",
    "SESSION.function(timeout=3)": "did you mean exec_timeout_seconds= or max_lifetime_seconds=?",
    "aviato.SandboxDefaults(image='x')": "did you mean container_image=?",
    "aviato.SandboxDefaults.from_dict({'image': 'x'})": "did you mean container_image=?",
    "aviato.SandboxDefaults().with_overrides(env={})": "did you mean environment_variables=?",
    "aviato.AsyncClient(url='x')": "did you mean base_url=?",
    "aviato.NetworkOptions(egress='none')": "did you mean egress_mode=?",
    "aviato.NetworkOptions(expose=[80])": "did you mean exposed_ports=?",
    "aviato.ResourceOptions(limit={})": "did you mean limits=?",
    "aviato.Secret(store='env', name='A', env='B')": "did you mean env_var=?",
    "aviato.Sandbox(resources={'mem': 1})": "did you mean memory?",
    "aviato.Sandbox(resources={'storage': 1})": "did you mean disk?",
    "aviato.Sandbox(resources={'memory': '512MB'})": "did you mean '512Mi'?",
    "aviato.Sandbox(resources={'memory': '2g'})": "did you mean '2Gi'?",
    # commands
    "BOX.exec(['true'], timeout=3)": "exec() has no parameter 'timeout'; did you mean timeout_seconds=?",
    "BOX.exec(['true'], environment={})": "did you mean env=?",
    "BOX.exec(['true'], workdir='/')": "did you mean cwd=?",
    "BOX.exec(['true'], working_dir='/')": "did you mean cwd=?",
    "BOX.exec(['true'], input='x')": "did you mean stdin=?",
    "BOX.exec(['true'], background=True)": "did you mean detach=?",
    "BOX.exec('ls -la', shell=True)": "write the command as ['bash', '-c', …]",
    "BOX.exec(['true'], capture_output=True)": "output is always captured",
    "BOX.exec('ls', '-la')": "write ['ls', '-la']",
    "BOX.shell(cols=3)": "did you mean width=?",
    "BOX.grade({}, ['true'], timeout=3)": "did you mean timeout_seconds=?",
    # rewards
    "rl.evaluate([], timeout=3)": "evaluate() has no parameter 'timeout'; did you mean timeout_seconds=?",
    "rl.evaluate([], image='x')": "did you mean container_image=?",
    "rl.evaluate([], concurrency=3)": "did you mean max_concurrency=?",
    "rl.evaluate(rl.Task(code='1'))": "write [task]",
    "rl.Task(solution='1')": "did you mean code=?",
    "rl.Task(code='1', test_cases=[])": "did you mean tests=?",
    "rl.Task(code='1', timeout=3)": "did you mean timeout_seconds=?",
    "rl.CallCase(function='f', input=[])": "CallCase() has no parameter 'input'",
    "rl.TestCase('assert f()')": "as in source='assert f()'",
    # attributes
    "BOX.kill": "did you mean stop?",
    "BOX.terminate": "did you mean stop?",
    "BOX.run_code": "did you mean exec?",
    "BOX.commands": "did you mean exec?",
    "BOX.files": "did you mean read_file?",
    "BOX.logs": "did you mean stream_logs?",
    "BOX.id": "did you mean sandbox_id?",
    "BOX.sandboxid": "did you mean sandbox_id?",
    "RESULT.exit_code": "did you mean returncode?",
    "RESULT.output": "did you mean stdout?",
    "RESULT.err": "did you mean stderr?",
    "aviato.Client": "did you mean AsyncClient?",
    "aviato.SandBox": "did you mean Sandbox?",
    "aviato.SandboxExecError": "did you mean SandboxExecutionError?",
    "aviato.Nope": "has no attribute 'Nope'",
    "aviato.SandboxStatus('runing')": "did you mean running?",
    "aviato.Serialization('pickel')": "did you mean pickle?",
}


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    result = aviato.ProcessResult(returncode=0, command=("true",), stdout_bytes=b"", stderr_bytes=b"", duration_seconds=0.1)
    return {"aviato": aviato, "rl": rl, "BOX": BOX, "SESSION": aviato.Session(), "RESULT": result}


@pytest.mark.parametrize("written", MEANT)
def test_what_was_meant_is_said(names: dict[str, Any], written: str) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)) as caught:
        eval(written, names)
    assert str(caught.value).endswith(MEANT[written]), str(caught.value)
    assert "__init__" not in str(caught.value)


@pytest.mark.parametrize("options", [{"timeout": 3}, {"cmd": "x"}, {"environment": {}}])
def test_coroutines_say_it_too(server: Any, options: dict[str, Any]) -> None:
    async def main() -> str:
        async with aviato.AsyncClient(base_url=server.url) as client:
            box = await client.sandbox()
            with pytest.raises(TypeError) as caught:
                await box.exec(["true"], **options)
            with pytest.raises(TypeError) as spawned:
                box.spawn(["true"], **options)
            assert str(spawned.value).partition(";")[2] == str(caught.value).partition(";")[2]
            with pytest.raises(TypeError, match=r"did you mean container_image=\?"):
                await client.sandbox(image="x")  # type: ignore[call-arg]
            return str(caught.value)

    said = asyncio.run(main())
    assert next(iter(options)) in said


def test_every_synonym_leads_somewhere() -> None:
    makers: tuple[Callable[..., Any], ...] = (
        aviato.Sandbox,
        aviato.Session,
        aviato.AsyncClient,
        aviato.NetworkOptions,
        aviato.Secret,
    )
    calls: tuple[Callable[..., Any], ...] = (BOX.exec, BOX.shell, BOX.grade, BOX.stop, aviato.wait)
    rewards: tuple[Callable[..., Any], ...] = (rl.evaluate, rl.Task, rl.CallCase)
    known = {name for one in (*makers, *calls, *rewards) for name in inspect.signature(one).parameters}
    for other, ours in parameters.SYNONYMS.items():
        assert set(ours) <= known, (other, set(ours) - known)
    assert set(parameters.OF_DEFAULTS) <= set(aviato.SandboxDefaults.__dataclass_fields__)
    there = {name for kind in (aviato.Sandbox, aviato.ProcessResult, aviato.Process) for name in dir(kind)}
    there |= set(aviato.ProcessResult.__dataclass_fields__)
    for other, ours in parameters.ATTRIBUTES.items():
        assert set(ours) & there, other
    for other, resource in quantities._SYNONYMS.items():
        assert resource in quantities.RESOURCES, other


def test_an_error_from_inside_stays_what_it_is() -> None:
    with pytest.raises(TypeError, match="tags must be a list"):
        aviato.Sandbox(tags="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required"):
        BOX.exec()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        BOX._nothing  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(BOX, "__array__")


SURROGATE = "\ud800"
NO_TEXT: dict[str, Callable[[], Any]] = {
    "an argument": lambda: BOX.exec(["echo", SURROGATE]),
    "a program": lambda: BOX.exec([SURROGATE]),
    "a directory": lambda: BOX.exec(["true"], cwd=f"/{SURROGATE}"),
    "a variable": lambda: BOX.exec(["true"], env={"A": SURROGATE}),
    "a variable's name": lambda: BOX.exec(["true"], env={SURROGATE: "a"}),
    "a terminal's command": lambda: BOX.shell([SURROGATE]),
    "a grader's command": lambda: BOX.grade({"t": b""}, ["true", SURROGATE]),
    "a result": lambda: BOX.grade({"t": b""}, ["true"], result_paths=[SURROGATE]),
    "a main command": lambda: aviato.Sandbox(command=SURROGATE),
    "its arguments": lambda: aviato.Sandbox(command="true", args=[SURROGATE]),
    "a command to run": lambda: aviato.Sandbox.run("echo", SURROGATE),
    "an image": lambda: aviato.Sandbox(container_image=SURROGATE),
    "a tag": lambda: aviato.Sandbox(tags=[SURROGATE]),
    "an annotation": lambda: aviato.Sandbox(annotations={"a": SURROGATE}),
    "an annotation's name": lambda: aviato.Sandbox(annotations={SURROGATE: "a"}),
    "a working directory": lambda: aviato.Sandbox(working_dir=f"/{SURROGATE}"),
    "a sandbox's variable": lambda: aviato.Sandbox(environment_variables={"A": SURROGATE}),
    "a mounted file": lambda: aviato.Sandbox(mounted_files=[{"mount_path": f"/{SURROGATE}", "file_content": ""}]),
    "a server": lambda: aviato.Sandbox(base_url=f"unix:///{SURROGATE}"),
    "a place": lambda: aviato.Sandbox(runway_ids=[SURROGATE]),
    "a host": lambda: aviato.NetworkOptions(egress_mode=[SURROGATE]),
    "a secret": lambda: aviato.Secret(store="file", name=SURROGATE),
}


@pytest.mark.parametrize("what", NO_TEXT)
def test_what_is_no_text_is_refused_at_the_call(what: str) -> None:
    with pytest.raises(aviato.AviatoValidationError) as caught:
        NO_TEXT[what]()
    str(caught.value).encode()


@pytest.fixture
def box(server: Any) -> Iterator[aviato.Sandbox]:
    with aviato.Sandbox(base_url=server.url) as sandbox:
        yield sandbox


def test_paths_are_arguments(box: aviato.Sandbox) -> None:
    assert box.exec([Path("/bin/echo"), Path("/tmp"), "x"]).result().stdout == "/tmp x\n"
    assert box.shell([Path("/bin/true")]).result().returncode == 0
    with pytest.raises(TypeError, match="must be strings, got b"):
        box.exec([os.fsencode("/bin/true")])  # type: ignore[list-item]


def test_bytes_of_no_text_still_cross_as_input(box: aviato.Sandbox) -> None:
    process = box.exec(["od", "-An", "-tx1"], stdin=True)
    assert process.stdin is not None
    process.stdin.writeline(SURROGATE).result()
    process.stdin.close().result()
    assert process.result().stdout.split() == ["ed", "a0", "80", "0a"]


UNREACHED = {
    "pip install --retries 0 aviato-has-no-such-package": '["pypi.org", "files.pythonhosted.org"]',
    "python3 -m pip install --retries 0 aviato-has-no-such-package": '["pypi.org", "files.pythonhosted.org"]',
    "python3 -c \"import urllib.request as u; u.urlopen('https://example.org')\"": '"internet"',
}


@pytest.mark.parametrize("line", UNREACHED)
def test_a_command_that_finds_no_network_is_told_how_to_have_one(
    box: aviato.Sandbox, line: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(network_remedy, "_told", False)
    with caplog.at_level(logging.WARNING), pytest.raises(aviato.SandboxExecutionError) as caught:
        box.exec(["sh", "-c", line], check=True).result()
    advice = re.search(r"make it with network=(.*)$", str(caught.value))
    assert advice is not None, str(caught.value)
    network = eval(advice[1], {"NetworkOptions": aviato.NetworkOptions})
    assert advice[1] == f"NetworkOptions(egress_mode={UNREACHED[line]})"
    assert aviato.Sandbox(network=network)
    assert ("no network" in caplog.text) == ("pip" in line)


def test_others_are_told_nothing_of_it(server: Any, box: aviato.Sandbox) -> None:
    say = "echo 'Could not resolve host: x' >&2; exit 1"
    with aviato.Sandbox(base_url=server.url, network=aviato.NetworkOptions(egress_mode="internet")) as reaching:
        for sandbox, line in ((reaching, say), (box, "exit 1")):
            with pytest.raises(aviato.SandboxExecutionError) as caught:
                sandbox.exec(["sh", "-c", line], check=True).result()
            assert "network" not in str(caught.value)
