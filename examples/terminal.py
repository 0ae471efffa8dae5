"""A terminal: job control, keys that are signals, and a size that programs see."""

from __future__ import annotations

import re

from aviato import Sandbox, TerminalSession


def read_until(terminal: TerminalSession, *texts: bytes) -> bytes:
    """What the terminal shows from its begin on, up to these texts, one after the other."""
    wanted = re.compile(b".*".join(map(re.escape, texts)), re.DOTALL)
    seen = b""
    for chunk in terminal.output:
        seen += chunk
        if wanted.search(seen):
            break
    return seen


with Sandbox() as sandbox:
    # A plain prompt, and no escape sequences around it.
    shell = sandbox.shell(["bash", "--norc"], width=100, height=30, env={"PS1": "$ ", "TERM": "dumb"})
    shell.stdin.writeline("stty size")
    read_until(shell, b"\r\n30 100\r\n")
    print("It has 30 lines of 100 characters.")

    shell.resize(132, 43).result()
    shell.stdin.writeline("stty size")
    read_until(shell, b"\r\n43 132\r\n")
    print("After a resize it has 43 lines of 132.")

    # `exec`: a shell that is about to fork may miss the key, and its child too.
    shell.stdin.writeline("sh -c 'echo asleep; exec sleep 1000'")
    read_until(shell, b"\r\nasleep\r\n")
    shell.stdin.write(b"\x03")  # Ctrl-C
    read_until(shell, b"\r\nasleep\r\n", b"$ ")  # The next prompt; ^C may be shown after it.
    print("Ctrl-C ended the command, and not the shell.")

    shell.stdin.writeline("exit 3")
    print("The shell ended with", shell.result().returncode)
