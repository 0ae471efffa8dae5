"""Commands as other users than root: by name and number, of one command, a terminal, and what they may."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, AviatoValidationError
from tests.end_to_end.test_terminals import read_until


@pytest.fixture
def peopled(sandbox: aviato.Sandbox) -> aviato.Sandbox:
    """A sandbox with a user `bob`, who is in the group `staff`."""
    if sandbox.exec(["sh", "-c", "awk '{ print $3 }' /proc/self/uid_map"]).result().stdout.strip() == "1":
        pytest.skip("this server can give its sandboxes no other ids")
    sandbox.exec(["sh", "-c", "useradd -m bob && usermod -aG staff bob"], check=True).result()
    return sandbox


ROWS: list[tuple[Any, str]] = [
    (None, "0 0 0"),
    ("root", "0 0 0"),
    (0, "0 0 0"),
    ("0", "0 0 0"),
    ("bob", "1000 1000 1000 50"),
    (1000, "1000 1000 1000 50"),
    ("1000", "1000 1000 1000 50"),
    ("bob:staff", "1000 50 50"),
    ("bob:7", "1000 7 7"),
    ("1000:7", "1000 7 7"),
    ("nobody", "65534 65534 65534"),
    (4242, "4242 0 0"),
    ("4242:4243", "4242 4243 4243"),
]


def test_who_it_is(peopled: aviato.Sandbox) -> None:
    ids = ["sh", "-c", "echo $(id -u) $(id -g) $(id -G)"]
    found = [(user, peopled.exec(ids, user=user, check=True).result().stdout.strip()) for user, _ in ROWS]
    assert found == ROWS


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ("alice", "no user 'alice'"),
        ("bob:nothing", "no group 'nothing'"),
        ("bob:", "no group ''"),
        (":staff", "no user ''"),
        (70_000, "70000.*65535"),
        ("bob:70000", "group has the number 70000"),
        ("4294967295", "no user '4294967295'"),
        ("-1", "no user '-1'"),
        ("bob\\", "no user"),
    ],
)
def test_who_it_cannot_be(peopled: aviato.Sandbox, user: Any, why: str) -> None:
    """4294967295 is "as before" to the kernel: taken for a number, it would be root."""
    with pytest.raises(AviatoValidationError, match=why) as caught:
        peopled.exec(["id"], user=user).result()
    assert caught.value.reason == "user" and not caught.value.is_infrastructure
    assert peopled.exec(["true"], user="bob").result().returncode == 0


@pytest.mark.parametrize("user", ["", "a\nb", "a\0b", "x" * 300, -1, 2**32 - 1, "\ud800"])
def test_what_is_refused_before_anything_starts(sandbox: aviato.Sandbox, user: Any) -> None:
    with pytest.raises(AviatoValidationError, match="user"):
        sandbox.exec(["id"], user=user)
    for wrong in (True, 1.5, b"bob", ["bob"]):
        with pytest.raises(TypeError, match="user must be a str or an int"):
            sandbox.exec(["id"], user=wrong)  # type: ignore[arg-type]


def test_what_it_may(peopled: aviato.Sandbox) -> None:
    """It has no capability, reads and writes what is its own, and opens its streams by their names."""
    script = """
        grep -h ^Cap /proc/self/status | cut -f2 | sort -u | tr '\\n' ' '
        cat /etc/shadow > /dev/null 2>&1 || echo no shadow
        touch /root/x 2> /dev/null || echo no root
        kill -0 1 2> /dev/null || echo no signal
        touch ~/mine && stat -c %U:%G ~/mine
        echo by name > /dev/stdout; echo by name > /dev/stderr; cat /dev/stdin
    """
    result = peopled.exec(["bash", "-c", script], user="bob", stdin="given").result()
    inherited, bounding = "0000000000000000", result.stdout.split()[1]
    said = ["no shadow", "no root", "no signal", "bob:bob", "by name", "given"]
    assert result.stdout.splitlines() == [f"{inherited} {bounding} no shadow", *said[1:]]
    assert result.stderr == "by name\n"


def test_its_environment(peopled: aviato.Sandbox) -> None:
    """What says that it is root says who it is; what somebody has set stays."""
    shown = ["sh", "-c", "echo $HOME $USER $LOGNAME"]
    assert peopled.exec(shown, user="bob").result().stdout == "/home/bob bob bob\n"
    assert peopled.exec(shown, user=4242).result().stdout == "/ 4242 4242\n"
    assert peopled.exec(shown, user="bob", env={"HOME": "/root", "USER": "eve"}).result().stdout == "/root eve bob\n"
    assert peopled.exec(shown).result().stdout == "/root root root\n"


def test_a_terminal_is_its_own(peopled: aviato.Sandbox) -> None:
    shell = peopled.shell(["sh", "-c", "id -un; stat -c %U $(tty); echo to > $(tty)"], user="bob")
    assert b"bob\r\nbob\r\nto\r\n" in read_until(shell, b"to\r\n")
    assert shell.result(30).returncode == 0


def test_its_processes_end_with_it(peopled: aviato.Sandbox) -> None:
    late = peopled.exec(["sh", "-c", "setsid sleep 1000 & sleep 1000"], user="bob", timeout_seconds=1)
    with pytest.raises(aviato.SandboxCommandTimeoutError):
        late.result()
    left = peopled.exec(["sh", "-c", "ps -o pid= -u bob | wc -l"]).result()
    assert left.stdout.strip() == "0"


def test_hostile_files_of_users(peopled: aviato.Sandbox) -> None:
    """Who is root inside writes /etc/passwd as he likes: process 1 neither waits for it nor follows it out."""
    for made in (
        "mkfifo /etc/passwd",
        "mkdir /etc/passwd",
        "ln -s /dev/zero /etc/passwd",
        "ln -s /proc/1/environ /etc/passwd",
        "ln -s passwd /etc/passwd",
        "head -c 3M /dev/zero | tr '\\0' : > /etc/passwd",
        "printf 'bob:x:4294967295:0::/:\\n' > /etc/passwd",
        "printf 'bob:x:-1:0::/:\\n' > /etc/passwd",
        "printf 'bob:x:1000:4294967295::/:\\n' > /etc/passwd; printf 'bob:x:99999:0::/:\\n' >> /etc/passwd",
        "printf '::::::\\n' > /etc/passwd",
    ):
        peopled.exec(["sh", "-c", f"rm -rf /etc/passwd; {made}"], check=True).result()
        process = peopled.exec(["id", "-u"], user="bob")
        error = process.exception(30)
        if error is None:
            assert made.startswith("printf 'bob:x:1000") and process.result().stdout == "1000\n", made
        else:
            assert not isinstance(error, aviato.SandboxUnavailableError), (made, error)
        assert peopled.exec(["id", "-u"], user=0).result(30).stdout == "0\n"


def test_the_same_from_async_code(peopled: aviato.Sandbox) -> None:
    async def main() -> tuple[str, str]:
        async with AsyncClient() as client, await client.sandbox() as sandbox:
            result = await sandbox.exec(["id", "-u"], user="nobody")
            process = sandbox.spawn(["id", "-u"], user=0)
            return result.stdout, (await process).stdout

    assert asyncio.run(main()) == ("65534\n", "0\n")
