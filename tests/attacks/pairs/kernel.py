"""The kernel's calls: what the filter refuses, and what stands behind it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from aviato.server.backends.base import SandboxSpec
from tests.attacks import programs
from tests.attacks.mutate import CAPABILITIES
from tests.attacks.registry import Area, Arena, Patch, root_only

area = Area(__name__)
NO_CAPABILITIES = area.defence("commands have no capability but over their own files and processes", steps=CAPABILITIES)
FAMILIES = {
    family: area.defence(f"filter: {family}", families=(family,))
    for family in {attack.family: None for attack in programs.ATTACKS.values()}
    if family is not None
}


OTHERS_NETWORK: list[str] = []
"""A wall of its own where the zygote makes the networks: no capability of the inside is one in them."""
if os.geteuid() == 0:
    wanted = (Patch("init/src/pool/networks.rs", "if !self.begin() {", "if true {"),)
    OTHERS_NETWORK.append(area.defence("the network belongs to the zygote", patches=wanted))
NETWORK_ATTACKS = ("raw socket", "raw socket, version 6", "packet socket by its old name", "packet socket", "setns")


def register(name: str, attack: programs.Attack) -> None:
    others = OTHERS_NETWORK if name in NETWORK_ATTACKS else []
    walls = (FAMILIES[str(attack.family)], *([NO_CAPABILITIES] if attack.steps else []), *others)

    @area.attack(name, *walls)
    async def run(arena: Arena) -> bool:
        async with arena.box() as box:
            result = await box.python(programs.PRELUDE + attack.source)
            assert result.error is None and result.exit is not None and result.stderr == "", result.stderr
            assert (await box.run("true")).returncode == 0
        said = result.stdout.strip()
        if walls[0] not in {defence.name for defence in arena.off}:
            assert said == attack.refused
            return False
        return bool(said != attack.refused if attack.reaches else said == "True")


for _name, _attack in programs.ATTACKS.items():
    register(_name, _attack)


# Process 1 names a sandbox that was ready, so that the filter has no rule of it.
area.program(
    "sethostname", programs.PRELUDE + "print(call('sethostname', b'x', 1) == 0 and os.uname().nodename == 'x')", NO_CAPABILITIES
)


@area.attack("name a sandbox that was ready", NO_CAPABILITIES)
async def claimed(arena: Arena) -> bool:
    """By a command of before and by one of after, each in the namespace that marks it."""
    source = programs.PRELUDE + "input()\nprint(call('sethostname', b'x', 1) == 0)"
    async with arena.box() as box:
        exec_id, subscription = box.start("python3", "-I", "-c", source, stdin=True)
        spec = SandboxSpec(sandbox_id=box.id, image=arena.backend.resolve_image(None), host_name="claimed")
        arena.backend.claim(spec, box.link)
        await box.link.write_stdin(exec_id, b"\n", 0, True)
        said = [(await box.finish(exec_id, subscription)).stdout, (await box.run("hostname")).stdout]
        said.append((await box.python(source, stdin=b"\n")).stdout)
    assert said[1] == "claimed\n"
    return "True\n" in said


MODULES = area.defence("filter: kernel code", families=("kernel code",))
REMOVE = """
import ctypes, errno, sys
from aviato.server.backends.local import syscalls
libc = ctypes.CDLL(None, use_errno=True)
syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
syscalls.load_filter(bytes.fromhex(sys.argv[1]))
libc.syscall(ctypes.c_long(int(sys.argv[2])), b"no-such-module", 0)
print(errno.errorcode[ctypes.get_errno()])
"""


def no_modules(backend: object) -> str | None:
    return root_only(backend) or ("this root may not either" if removed(b"") == "EPERM" else None)


def removed(compiled: bytes) -> str:
    """What the kernel says when a module that is not there is to be removed, outside of any sandbox."""
    source = REMOVE if compiled else REMOVE.replace("syscalls.load_filter", "len")
    argv = [sys.executable, "-c", source, compiled.hex(), str(programs.number("delete_module"))]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=250).stdout.strip()


@area.attack("remove a kernel module", MODULES, impossible=no_modules)
async def modules(arena: Arena) -> bool:
    """By the machine's own root under the filter: nobody in a sandbox comes as far as to be refused by the filter alone.

    A kernel without modules says so; the filter never lets anybody ask.
    """
    return await asyncio.to_thread(removed, arena.backend._filter) != "EPERM"
