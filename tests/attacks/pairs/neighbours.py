"""Other sandboxes, and what runs on the machine beside them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from aviato.server.backends.local import binary
from aviato.server.backends.local.left import REST_SECONDS
from tests.attacks.pairs.kernel import FAMILIES
from tests.attacks.pairs.tree import OLD_ROOT
from tests.attacks.programs import LOCKED_IN_SOCKETS, PRELUDE
from tests.attacks.registry import Area, Arena, Patch, root_only

area = Area(__name__)
ZYGOTE = "init/src/zygote.rs"
LAYERS = "init/src/pool/layers.rs"


def shared_namespace(name: str, comment: str, *steps: str) -> str:
    """A build in which one kind of namespace is the machine's."""
    kept = [Patch("init/src/pool/networks.rs", "if !self.begin() {", "if true {")] if name == "NET" else []
    cloned = [Patch(ZYGOTE, f"    | sys::CLONE_NEW{name}\n", "")]
    return area.defence(comment, patches=(*cloned, *kept), steps=steps)


OWN_NETWORK = shared_namespace("NET", "a network of its own", "loopback")
OWN_IPC = shared_namespace("IPC", "IPC of its own", "kernel_counts")
OWN_NAME = shared_namespace("UTS", "a host name of its own", "hostname")

CONNECT = """
import socket, sys
with socket.socket(getattr(socket, sys.argv[1])) as made:
    made.settimeout(2)
    try:
        made.connect(eval(sys.argv[2]))
        print(made.recv(100) == b"of the machine")
    except OSError:
        print("refused")
"""


async def answers(arena: Arena, family: int, address: object) -> bool:
    """Whether a program reaches a service of the machine's."""
    with socket.socket(family) as listener:
        listener.bind(address)
        listener.listen()
        listener.setblocking(False)

        async def serve() -> None:
            taken, _ = await asyncio.get_running_loop().sock_accept(listener)
            with taken:
                taken.send(b"of the machine")

        serving = asyncio.create_task(serve())
        try:
            return await arena.program(CONNECT, socket.AddressFamily(family).name, repr(listener.getsockname()))
        finally:
            serving.cancel()


@area.attack("reach a service of the machine on localhost", OWN_NETWORK)
async def localhost(arena: Arena) -> bool:
    return await answers(arena, socket.AF_INET, ("127.0.0.1", 0))


@area.attack("reach an abstract socket of the machine", OWN_NETWORK)
async def abstract(arena: Arena) -> bool:
    return await answers(arena, socket.AF_UNIX, f"\0aviato-test-{secrets.token_hex(8)}")


LISTEN = """
import array, os, socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind("\\0" + sys.argv[1])
    listener.listen()
    print("listening", flush=True)
    taken, _ = listener.accept()
    fds = [os.open("/workspace/secret", os.O_RDONLY)]
    taken.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
"""
TAKE = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as made:
    try:
        made.connect("\\0" + sys.argv[1])
        _, fds, _, _ = socket.recv_fds(made, 1, 1)
        print(os.read(fds[0], 100) == b"of another sandbox")
    except OSError:
        print("refused")
"""


@area.attack("pass a descriptor to another sandbox by an abstract socket", OWN_NETWORK)
async def descriptor(arena: Arena) -> bool:
    name = f"aviato-test-{secrets.token_hex(8)}"
    async with arena.box() as one, arena.box() as two:
        await one.put("/workspace/secret", b"of another sandbox")
        exec_id, subscription = one.start("python3", "-I", "-c", LISTEN, name)
        while not (await asyncio.wait_for(anext(subscription), 5)).payload.endswith(b"listening\n"):
            pass
        try:
            return await arena.inside(two, TAKE, name)
        finally:
            await one.link.cancel(exec_id)
            subscription.close()


AS_NEW = area.defence(
    "a network that somebody used is nobody's again",
    patches=(Patch("init/src/pool/networks.rs", "see().map_or(false, |seen| seen == self.of_new);", "see().is_ok();"),),
)
SEND = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
    for _ in range(77):
        made.sendto(b"x", ("127.0.0.1", 9))
print(True)
"""
COUNTED = """
with open("/proc/net/snmp") as file:
    sent = [line.split()[4] for line in file if line.startswith("Udp:")][1]
print(sent == "77" or sent)
"""


@area.attack("learn what the sandbox before did on its network", AS_NEW, impossible=root_only)
async def counted(arena: Arena) -> bool:
    async with arena.box() as one:
        assert await arena.inside(one, SEND)
    for _ in range(8):
        await asyncio.sleep(0.05)
        if await arena.program(COUNTED):
            return True
    return False


# -- IPC -------------------------------------------------------------------------------------------------------------------

LEAVE = {
    "System V shared memory": "print(libc.shmget({key}, 4096, 0o1666) >= 0)",
    "a System V message queue": "print(libc.msgget({key}, 0o1666) >= 0)",
    "System V semaphores": "print(libc.semget({key}, 1, 0o1666) >= 0)",
    "a POSIX message queue": "os.umask(0); print(libc.mq_open(b'/{key}', os.O_CREAT | os.O_RDWR, 0o666, None) >= 0)",
}
FIND = {
    "System V shared memory": "print(libc.shmget({key}, 4096, 0) >= 0)",
    "a System V message queue": "print(libc.msgget({key}, 0) >= 0)",
    "System V semaphores": "print(libc.semget({key}, 1, 0) >= 0)",
    "a POSIX message queue": "print(libc.mq_open(b'/{key}', os.O_RDWR) >= 0)",
}


def remove_from_the_machine(key: int) -> None:
    """What the attack has left there in a build without a namespace for it. It belongs to a sandbox's id."""
    libc = ctypes.CDLL(None)
    for get, remove in (
        (lambda: libc.shmget(key, 0, 0), lambda number: libc.shmctl(number, 0, None)),
        (lambda: libc.msgget(key, 0), lambda number: libc.msgctl(number, 0, None)),
        (lambda: libc.semget(key, 0, 0), lambda number: libc.semctl(number, 0, 0)),
    ):
        if (number := get()) >= 0:
            remove(number)
    libc.mq_unlink(f"/{key}".encode())


for _name in LEAVE:

    @area.attack(f"meet another sandbox at {_name}", OWN_IPC)
    async def meet(arena: Arena, name: str = _name) -> bool:
        key = secrets.randbits(30) | 1
        try:
            async with arena.box() as one, arena.box() as two:
                assert await arena.inside(one, PRELUDE + LEAVE[name].format(key=key))
                return await arena.inside(two, PRELUDE + FIND[name].format(key=key))
        finally:
            remove_from_the_machine(key)


@area.attack("learn the machine's name", OWN_NAME)
async def name_of(arena: Arena) -> bool:
    return await arena.program("import os, sys; print(os.uname().nodename == sys.argv[1])", os.uname().nodename)


# -- keys and variables ----------------------------------------------------------------------------------------------------

OWN_SESSION = area.defence(
    "a session keyring of its own",
    patches=(Patch(ZYGOTE, "        sys::leave_session_keyring()?;\n", ""),),
)
KEYS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
number = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
keyctl = lambda *arguments: libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
"""
LOGIN = """
key = libc.syscall(number - 2, b"user", b"aviato-test", b"secret", 6, ctypes.c_int(-3)) if keyctl(1, None) > 0 else 0
assert key > 0 and keyctl(5, key, 0x3f3f0000) == 0
os.execv(PROGRAM, [PROGRAM, *sys.argv[1:]])
"""
SEARCH = "print(keyctl(10, -3, b'user', b'aviato-test', 0) > 0)"


@contextmanager
def logged_in() -> Iterator[None]:
    """Templates begin in a session that has a key."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        login = Path(directory) / "login"
        program = binary.found()
        login.write_text(f"#!{sys._base_executable}\n{KEYS}{LOGIN}".replace("PROGRAM", repr(program)))
        login.chmod(0o755)
        with mock.patch.dict(os.environ, {binary.VARIABLE: str(login)}):
            yield


@area.attack("use a key of the server's login session", OWN_SESSION, FAMILIES["keys"])
async def keys(arena: Arena) -> bool:
    with logged_in():
        async with arena.restarted():
            return await arena.program(KEYS + SEARCH)


INHERITED = """std::env::vars_os()
            .map(|(name, value)| {
                (std::os::unix::ffi::OsStringExt::into_vec(name), std::os::unix::ffi::OsStringExt::into_vec(value))
            })
            .collect()"""
CLEAN = area.defence(
    "the zygote has no variables of the server",
    swaps={"aviato.server.backends.local.zygote._ENVIRONMENT": os.environ},
)
GIVEN = area.defence(
    "commands have the variables that they are given",
    patches=(
        Patch(
            "init/src/commands.rs", "let mut environment = Variables::new();", f"let mut environment: Variables = {INHERITED};"
        ),
    ),
)


@area.attack("read a variable of the server", CLEAN, GIVEN)
async def variable(arena: Arena) -> bool:
    source = "import os; print(os.environ.get('AVIATO_TEST_SECRET') == 'of the machine')"
    with mock.patch.dict(os.environ, AVIATO_TEST_SECRET="of the machine"):
        async with arena.restarted():
            return await arena.program(source)


# -- the id ----------------------------------------------------------------------------------------------------------------

OF_ALL = 1_899_999_999


def others_files() -> None:
    walls = [OLD_ROOT]
    if os.geteuid() == 0:
        same = lambda request: request.update(uid=OF_ALL, gid=OF_ALL)  # noqa: E731
        walls.append(area.defence("an id of its own on the machine", request=same))

    @area.attack("write into another sandbox's files", *walls)
    async def write(arena: Arena) -> bool:
        source = "import sys\ntry: print(open(sys.argv[1], 'w').write('x') == 1)\nexcept OSError as error: print(error)"
        async with arena.box() as one, arena.box() as two:
            place = Path(await arena.workspace(two))
            for directory in place.parents[:-2]:
                directory.chmod(directory.stat().st_mode | 0o011)
            if os.geteuid() == 0:
                # On the disk it is root's, who writes there by a mount that maps ids.
                os.chown(place, arena.backend._directories.owner(two.id), -1)
            return await arena.inside(one, source, f"/..{place}/x")


others_files()


LAYER = area.defence("a writable layer of its own", steps=("overlay",))


@area.attack("change what every sandbox begins with", LAYER, impossible=root_only)
async def begin_with(arena: Arena) -> bool:
    """Without the layer an ordinary user's sandbox has nothing below it either."""
    name = f"/opt/{secrets.token_hex(4)}"
    async with arena.box() as one, arena.box() as two:
        await one.run("mkdir", name)
        seen = (await two.run("test", "-d", name)).returncode == 0
        await one.run("rmdir", name)
        return seen


UNTOUCHED = area.defence(
    "a root in which somebody changed something is nobody's again",
    patches=(Patch(LAYERS, "upper().map_or(false, |fd| self.is_untouched(&layer, &fd))", "upper().is_some()"),),
)


def roots_are_given_again(backend: Any) -> str | None:
    """For `impossible`."""
    return None if backend._layered else "each sandbox has a root of its own"


@area.attack("leave a file for the next sandbox", UNTOUCHED, impossible=roots_are_given_again)
async def for_the_next(arena: Arena) -> bool:
    async with arena.box() as one:
        await one.put("/tmp/note", b"from the one before")
    await asyncio.sleep(2 * REST_SECONDS)
    async with arena.box() as two:
        return (await two.run("test", "-e", "/tmp/note")).returncode == 0


@area.attack("leave a word for the next sandbox in an attribute of its root", UNTOUCHED, impossible=roots_are_given_again)
async def in_an_attribute(arena: Arena) -> bool:
    async with arena.box() as one:
        await arena.inside(one, "import os\nos.setxattr('/', 'user.word', b'x')\nprint(True)")
    await asyncio.sleep(2 * REST_SECONDS)
    async with arena.box() as two:
        return await arena.inside(two, "import os\nprint('user.word' in os.listxattr('/'))")


CLOSED = area.defence(
    "a root is nobody's again while something of it is still open",
    patches=(Patch(LAYERS, "            && has_none\n", ""),),
)
LOCKED = """
import fcntl, os
try:
    fcntl.flock(os.open("/", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    print(False)
except BlockingIOError:
    print(True)
"""


@area.attack("hold a lock in the next sandbox by descriptors in sockets", CLOSED, impossible=roots_are_given_again)
async def locked(arena: Arena) -> bool:
    async with arena.box() as one:
        await arena.inside(one, LOCKED_IN_SOCKETS)
    await asyncio.sleep(2 * REST_SECONDS)
    async with arena.box() as two:
        return await arena.inside(two, LOCKED)
