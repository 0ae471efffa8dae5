"""What comes out of a sandbox, and what the caller makes of it: results, downloaded trees, scores."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

import aviato
from aviato.exceptions import AviatoError
from aviato.functions.options import FunctionOptions
from aviato.functions.outcome import Outcome
from tests.attacks.pairs.process_1 import ROBBED
from tests.attacks.programs import PRELUDE
from tests.attacks.registry import Area, Arena, Patch
from tests.conftest import make_state_dir, remove, start_server
from tests.run_code.scripts_of_open_r1 import FORGERIES, script
from tests.run_code.served import KEY, base_url

area = Area(__name__)

# -- results of functions --------------------------------------------------------------------------------------------------

DATA = area.defence(
    "results are read as data", swaps={"aviato.functions.reading.loads": lambda body, types: pickle.loads(body)}
)
CLEAN = area.defence("texts of errors lose their control characters", swaps={"aviato.exceptions.printable": str})


class Evil:
    """What unpickling it would do."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def read(content: bytes) -> Any:
    """As the client reads what a function left."""
    result = aviato.ProcessResult(
        **dict.fromkeys(aviato.ProcessResult.__dataclass_fields__) | {"returncode": 0}  # type: ignore[arg-type]
    )
    return Outcome(lambda: None, FunctionOptions(serialization=aviato.Serialization.PICKLE), result, "sb-x").value(content)  # type: ignore[arg-type]


@area.attack("have the caller run code by what a function returns", DATA)
async def returned(arena: Arena) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/made"
        try:
            read(b'{"outcome": "value"}\n' + pickle.dumps(Evil(path), 4))
        except AviatoError:
            pass
        return Path(path).exists()


@area.attack("write to the caller's terminal by the text of an error", CLEAN)
async def escape(arena: Arena) -> bool:
    try:
        read(b'{"outcome": "unserializable", "type": "x", "message": "\\u001b]0;owned\\u0007"}\n')
    except AviatoError as error:
        return "\x1b" in str(error)
    return False


# -- trees -----------------------------------------------------------------------------------------------------------------

BELOW = area.defence("links of a tree stay below it", swaps={"aviato.trees.unpack.stays_below": lambda depth, target: True})


@area.attack("leave a link to the caller's files in a tree that he downloads", BELOW)
async def link(arena: Arena) -> bool:
    state, target = make_state_dir(), Path(tempfile.mkdtemp())
    server = start_server(state)
    try:
        async with aviato.Sandbox(base_url=server.url) as sandbox:
            await sandbox.exec(["sh", "-c", "mkdir tree; ln -s /etc/passwd tree/result; ln -s ../../../etc tree/deep"])
            await sandbox.download("tree", target / "got", outside_links="skip")
        return any((target / "got" / name).is_symlink() for name in ("result", "deep"))
    finally:
        await asyncio.to_thread(server.stop)
        remove(state)
        shutil.rmtree(target)


NAMES = area.defence(
    "names in a tree lose their control characters",
    swaps={"aviato.trees.unpack.shown": lambda name: os.fsdecode(name), "aviato.exceptions.printable": str},
)


@area.attack("write to the caller's terminal by a name in a tree", NAMES)
async def named(arena: Arena) -> bool:
    state, target = make_state_dir(), Path(tempfile.mkdtemp())
    server = start_server(state)
    try:
        async with aviato.Sandbox(base_url=server.url) as sandbox:
            await sandbox.exec(
                ["python3", "-c", "import os; os.mkdir('tree'); os.symlink('/etc/\033]0;owned\007', 'tree/link')"]
            )
            try:
                await sandbox.download("tree", target / "got")
            except AviatoError as error:
                return "\x1b" in str(error)
        raise AssertionError("a link that leads out was taken")
    finally:
        await asyncio.to_thread(server.stop)
        remove(state)
        shutil.rmtree(target)


@area.attack("write to the caller's terminal by one's last words", CLEAN)
async def last_words(arena: Arena) -> bool:
    state = make_state_dir()
    server = start_server(state)
    try:
        async with aviato.Sandbox(base_url=server.url) as sandbox:
            try:
                await sandbox.exec(["sh", "-c", "printf 'it is \033]0;owned\007' >&2; exit 3"], check=True)
            except aviato.SandboxExecutionError as error:
                assert "it is " in str(error)
                return "\x1b" in str(error)
        raise AssertionError("it ended well")
    finally:
        await asyncio.to_thread(server.stop)
        remove(state)


# -- scores of scripts -----------------------------------------------------------------------------------------------------

SECRET = area.defence(
    "a score counts by its nonce",
    patches=(Patch("scripts/__init__.py", "    if not record.startswith(begin):\n        return None\n", ""),),
)
CLOSED = area.defence(
    "a script's process may not be looked into",
    patches=(Patch("scripts/inside.py", "        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)", "        ctypes.CDLL(None)"),),
)


async def score(arena: Arena, text: str) -> float:
    """What open-r1's client would give for a script."""
    state = make_state_dir()
    (state / "keys").write_text(f"{KEY}\n")
    with arena.programs():
        server = await asyncio.to_thread(lambda: start_server(state, port=0, api_key_file=state / "keys"))
        try:
            return await ask(base_url(server), text)
        finally:
            await asyncio.to_thread(server.stop)
            remove(state)


async def ask(base: str, text: str) -> float:
    body = {"scripts": [text], "languages": ["python"], "timeout": 10, "request_timeout": 20}
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as http,
        http.post(f"{base}/execute_batch", json=body) as response,
    ):
        (answer,) = await response.json()
    assert answer["exception_str"] is None, answer
    texts = [found["text"] for found in (answer["execution"] or {"results": []})["results"] if found["is_main_result"]]
    return float(texts[0]) if texts and texts[0] is not None else 0.0


for _name, _wall in {"a record, and the grader's end": SECRET, "the grader's memory": CLOSED}.items():

    @area.attack(f"forge the score of a script: {_name}", _wall)
    async def forged(arena: Arena, code: str = FORGERIES[_name]) -> bool:
        return await score(arena, script(code)) > 0


# -- who is to blame -------------------------------------------------------------------------------------------------------

# Of a server in a process of its own; `process 1` of kernel.py is the same in this one.
UNTOUCHED = area.defence(
    "filter: limits of process 1, in a server's own process",
    patches=(Patch("server/backends/local/rules.py", '        *limits_of("process 1", 1),\n', ""),),
)


@area.attack("pass one's own end for a failure of the machine, as a command", UNTOUCHED)
async def blame(arena: Arena) -> bool:
    state = make_state_dir()
    with arena.programs():
        server = await asyncio.to_thread(start_server, state)
        try:
            async with aviato.Sandbox(base_url=server.url) as sandbox:
                try:
                    await sandbox.exec(["python3", "-I", "-c", PRELUDE + ROBBED.replace("int(sys.argv[1])", "1")])
                    await sandbox.exec(["true"])
                except AviatoError as error:
                    return error.is_infrastructure
            return False
        finally:
            await asyncio.to_thread(server.stop)
            remove(state)


@area.attack("pass one's own end for a failure of the machine, in /run_code", UNTOUCHED)
async def sandbox_error(arena: Arena) -> bool:
    state = make_state_dir()
    (state / "keys").write_text(f"{KEY}\n")
    with arena.programs():
        server = await asyncio.to_thread(lambda: start_server(state, port=0, api_key_file=state / "keys"))
        try:
            body = {"code": PRELUDE + ROBBED.replace("int(sys.argv[1])", "1"), "language": "python", "run_timeout": 10}
            async with (
                aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as http,
                http.post(f"{base_url(server)}/run_code", json=body) as response,
            ):
                return response.status >= 500 or (await response.json())["status"] == "SandboxError"
        finally:
            await asyncio.to_thread(server.stop)
            remove(state)
