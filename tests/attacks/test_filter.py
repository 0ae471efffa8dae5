"""The filter as a whole. Each attack on the kernel's calls is in `pairs/kernel.py`."""

from __future__ import annotations

import ctypes.util
import errno
import json
import os
import signal
import sys

import pytest

from aviato.exceptions import SandboxUnavailableError
from aviato.server.backends.local import rules
from aviato.server.backends.local.backend import LocalBackend
from tests.attacks.mutate import FILTER, without
from tests.attacks.programs import ATTACKS, PRELUDE, number

pytestmark = [pytest.mark.anyio, pytest.mark.attack]


def test_every_family_is_tried():
    untried = set(rules.families(rules.RULES)) - {attack.family for attack in ATTACKS.values()}
    assert untried == {"kernel code"}, "which `pairs/kernel.py` tries as the machine's own root"


SWEEP = """
said = {}
for name, number in json.loads(sys.argv[1]).items():
    ctypes.set_errno(0)
    libc.syscall(ctypes.c_long(number), *[ctypes.c_ulong(0)] * 6)
    said[name] = errno.errorcode.get(ctypes.get_errno())
print(json.dumps(said))
"""


async def test_every_call_that_is_refused_whatever_its_arguments(backend, boxes):
    expected = {call: errno.errorcode[rule.answer] for rule in rules.RULES if not rule.where for call in rule.calls}
    numbers = {call: number(call) for call in expected if number(call) >= 0}
    assert len(numbers) > 45

    async def said(box):
        result = await box.python(f"import json\n{PRELUDE}{SWEEP}", json.dumps(numbers))
        return json.loads(result.stdout)

    async with boxes.make_box(backend) as box:
        assert await said(box) == {call: expected[call] for call in numbers}
    with without(backend, steps=FILTER):
        async with boxes.make_box(backend) as box:
            answers = await said(box)
    assert len([call for call in numbers if answers[call] != expected[call]]) > 20


# mov eax, 20 (getpid); int 0x80; ret
OLD = "code = mmap.mmap(-1, 4096, prot=7); code.write(bytes.fromhex('b814000000cd80c3'))\n"
OLD += "print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() == os.getpid())"
FOREIGN = {"i386": OLD, "x32": "libc.syscall(ctypes.c_long(39 | 0x40000000)); print(True)"}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls of x86_64's siblings")
@pytest.mark.parametrize("name", FOREIGN)
async def test_calls_of_another_architecture(backend, boxes, name):
    async with boxes.make_box(backend) as box:
        result = await box.python(PRELUDE + FOREIGN[name])
        assert (result.returncode, result.exit["signal"], result.stdout) == (128 + signal.SIGSYS, signal.SIGSYS, "")
        assert (await box.run("true")).returncode == 0
    with without(backend, steps=FILTER):
        async with boxes.make_box(backend) as box:
            result = await box.python(PRELUDE + FOREIGN[name])
            # A kernel without that way of calling ends the process, too, but not by the filter's signal.
            assert result.stdout == "True\n" or result.exit["signal"] == signal.SIGSEGV


async def test_no_filter_no_sandbox(backend, boxes, monkeypatch):
    monkeypatch.setattr(backend, "_filter", b"")
    with pytest.raises(SandboxUnavailableError, match=r"filter \(.*Invalid argument"):
        async with boxes.make_box(backend):
            pass


async def test_a_machine_without_libseccomp(tmp_path, monkeypatch):
    """The server does not start, and says what to install."""
    find = ctypes.util.find_library
    monkeypatch.delitem(sys.modules, "pyseccomp", raising=False)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None if name == "seccomp" else find(name))
    made = LocalBackend(tmp_path)
    with pytest.raises(SandboxUnavailableError, match=r"libseccomp\.so\.2 is not there.*apt install libseccomp2"):
        await made.open()
    assert [check.name for check in await made.probe() if check.required and not check.ok] == ["system call filter"]
    await made.close()
