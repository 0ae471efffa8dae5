"""Input and output of commands, as they run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

import aviato

Sh = Callable[..., aviato.ProcessResult]


def test_input_bit_by_bit(sandbox: aviato.Sandbox) -> None:
    """`stdin=True` is written to while it runs, and its output is read live; closing it is the end of the input."""
    running = sandbox.exec(["cat"], stdin=True)
    assert running.stdin is not None
    arriving = iter(running.stdout)
    for word in ("one\n", "two\n"):
        running.stdin.writeline(word.rstrip()).result()
        assert next(arriving) == word
    running.stdin.close().result()
    assert running.result().returncode == 0 and running.stdin.closed


def test_input_as_a_whole(sandbox: aviato.Sandbox) -> None:
    """`stdin=` bytes or text is all of the input, of any size; False is /dev/null."""
    content = bytes(range(256)) * 12_000
    done = sandbox.exec(["sh", "-c", "sha256sum; wc -c < /dev/null"], stdin=content).result()
    assert done.stdout.split()[0] == hashlib.sha256(content).hexdigest()
    assert sandbox.exec(["cat"], stdin="é\n").result().stdout == "é\n"
    assert sandbox.exec(["cat"]).result().stdout == ""


def test_writing_to_what_is_closed(sandbox: aviato.Sandbox) -> None:
    """Writing after the close or after the exit raises SandboxExecutionError that says so."""
    running = sandbox.exec(["cat"], stdin=True)
    assert running.stdin is not None
    running.stdin.close().result()
    running.result()
    with pytest.raises(aviato.SandboxExecutionError, match="closed"):
        running.stdin.write(b"more").result()


def test_every_byte_once(sandbox: aviato.Sandbox) -> None:
    """Iterating sees every byte, once and in order, whatever the size."""
    size = 6 << 20
    running = sandbox.exec(["python3", "-c", f"import sys\nfor n in range({size} // 8): sys.stdout.write('%07d\\n' % n)"])
    seen = "".join(running.stdout)
    assert len(seen) == size and seen[:8] == "0000000\n" and seen[-8:] == f"{size // 8 - 1:07}\n"
    assert hashlib.sha256(seen.encode()).digest() == hashlib.sha256(b"".join(b"%07d\n" % n for n in range(size // 8))).digest()


def test_what_is_collected(sh: Sh) -> None:
    """Output is collected up to `max_output_bytes`: head and tail, with a note between and the true number of bytes."""
    result = sh("echo begin; head -c 200000 /dev/zero | tr '\\0' x; echo; echo end", max_output_bytes=10_000)
    assert result.stdout_truncated and result.stdout_bytes_total == 200_000 + len("begin\n\nend\n")
    assert len(result.stdout_bytes) <= 10_000 and "bytes left out" in result.stdout
    assert result.stdout.startswith("begin\n") and result.stdout.endswith("end\n")


def test_characters_stay_whole(sandbox: aviato.Sandbox) -> None:
    """Text is decoded incrementally: a character that comes in two pieces is one; what is none is replaced."""
    code = r"printf 'a\303'; sleep 0.2; printf '\251b\377'"
    running = sandbox.exec(["sh", "-c", code])
    assert "".join(running.stdout) == "aéb�"


def test_lines(sandbox: aviato.Sandbox) -> None:
    """`.lines()` gives lines without their end, live, the last one also without one."""
    running = sandbox.exec(["sh", "-c", "echo one; echo; printf three"])
    assert list(running.stdout.lines()) == ["one", "", "three"]


def test_both_streams_are_apart(sh: Sh) -> None:
    """stdout and stderr are two streams, each with its own number of bytes."""
    result = sh("head -c 70000 /dev/zero >&2; head -c 50000 /dev/zero")
    assert (result.stdout_bytes_total, result.stderr_bytes_total) == (50_000, 70_000)


def test_a_slow_reader_holds_only_itself(sandbox: aviato.Sandbox) -> None:
    """Streams are bounded with back-pressure: who does not read holds nobody else."""
    unread = sandbox.exec(["sh", "-c", "head -c 30000000 /dev/zero; echo over"])
    arriving = iter(unread.stdout)
    assert next(arriving)
    assert sandbox.exec(["echo", "meanwhile"]).result().stdout == "meanwhile\n"
    assert sum(map(len, arriving)) > 20_000_000
    assert unread.result().returncode == 0
