"""Section 2: terminals."""

from __future__ import annotations

import aviato
from tests.surface.harness import Place, acheck, check


@check("Sandbox.shell", "TerminalSession.output", "TerminalSession.result")
@check("TerminalResult.returncode", "TerminalResult.signal", "TerminalResult.duration_seconds")
def default(place: Place) -> None:
    shell = place.box().shell()
    assert isinstance(shell, aviato.TerminalSession)
    shell.stdin.write(b"stty size; echo $0; exit 4\n")
    result = shell.result(60)
    assert isinstance(result, aviato.TerminalResult)
    assert (result.returncode, result.signal) == (4, None) and 0 < result.duration_seconds < 20
    output = b"".join(shell.output)
    assert b"24 80\r\n" in output and b"/bin/bash\r\n" in output


@check("Sandbox.shell(command=)", "Sandbox.shell(width=)", "Sandbox.shell(height=)", "TerminalSession.output")
def given(place: Place) -> None:
    shell = place.box().shell(command=["sh", "-c", "stty size; kill -9 $$"], width=99, height=33)
    result = shell.result(60)
    assert (result.returncode, result.signal) == (137, 9)
    assert b"".join(shell.output) == b"33 99\r\n"


@check("TerminalSession.resize", "TerminalSession.stdin")
def resize(place: Place) -> None:
    shell = place.box().shell(["sh", "-c", "read line; stty size"])
    shell.resize(120, 50).result(60)
    shell.stdin.writeline("go").result(60)
    assert shell.result(60).returncode == 0
    assert b"".join(shell.output) == b"go\r\n50 120\r\n"


@acheck("Sandbox.shell", "TerminalSession.output", "TerminalSession.stdin", "TerminalSession.resize")
async def awaited(place: Place) -> None:
    shell = place.box().shell(["sh", "-c", "read line; stty size; exit 3"])
    await shell.resize(120, 50)
    await shell.stdin.write(b"go\n")
    assert b"".join([chunk async for chunk in shell.output]) == b"go\r\n50 120\r\n"
    assert (await shell).returncode == 3
