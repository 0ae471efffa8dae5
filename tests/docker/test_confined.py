"""What code inside cannot do in a container, each with what makes it so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aviato

CALL = """
import ctypes, os, sys
c = ctypes.CDLL(None, use_errno=True)
def call(name, *a):
    r = getattr(c, name)(*a)
    print(name, r, os.strerror(ctypes.get_errno()) if r < 0 else "works")
"""


@pytest.fixture(scope="module")
def inside(engine: Any, python_image: str) -> Iterator[Callable[[str], str]]:
    from tests.conftest import make_state_dir, remove, start_server

    state = make_state_dir()
    running = start_server(state, backend="docker", default_image=python_image, docker_host=engine.address)
    try:
        with aviato.Session(defaults=aviato.SandboxDefaults(base_url=running.url)) as session:
            sandbox = session.sandbox()

            def run(code: str) -> str:
                result = sandbox.exec(["python3", "-c", CALL + code]).result()
                assert result.returncode == 0, result.stderr
                return result.stdout

            yield run
    finally:
        running.stop()
        remove(state)


def test_capabilities(inside: Callable[[str], str]) -> None:
    held = inside("print([l for l in open('/proc/self/status') if l.startswith(('Cap', 'NoNew', 'Seccomp:'))])")
    # CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, as root of a user namespace has them.
    assert "CapEff:\\t00000000000000fb" in held and "CapBnd:\\t00000000000000fb" in held
    assert "NoNewPrivs:\\t1" in held and "Seccomp:\\t2" in held


def test_it_is_root_of_its_own_ids_alone(inside: Callable[[str], str]) -> None:
    assert inside("print(open('/proc/self/uid_map').read().split()[2])") == "1\n"


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("call('umount2', b'/proc/sys', 2)", "Operation not permitted"),
        ("call('umount2', b'/etc/hosts', 2)", "Operation not permitted"),
        ("call('mount', b'none', b'/mnt', b'tmpfs', 0, None)", "Operation not permitted"),
        ("call('unshare', 0x10000000)", "Operation not permitted"),
        ("call('unshare', 0x20000)", "Operation not permitted"),
        ("call('setns', 0, 0)", "Operation not permitted"),
        ("call('ptrace', 16, 1, 0, 0)", "Operation not permitted"),
        ("call('socket', 16, 3, 4)", "Protocol not supported"),
        ("call('socket', 17, 3, 0)", "not supported"),
        ("call('socket', 2, 3, 1)", "Operation not permitted"),
        ("call('syscall', 425, 1, 0)", "Function not implemented"),
        ("call('syscall', 435, 0, 0)", "Function not implemented"),
        ("call('personality', 1)", "Operation not permitted"),
        ("call('kill', 1, 9)", "Operation not permitted"),
        ("call('syscall', 321, 0, 0, 0)", "Operation not permitted"),
    ],
)
def test_calls_are_refused(inside: Callable[[str], str], code: str, answer: str) -> None:
    assert answer in inside(code)


def test_each_rule_is_in_one_of_the_filters() -> None:
    from aviato.server.backends.docker import profile
    from aviato.server.backends.local import rules

    engine, own = profile.split(rules.RULES)

    def refused(all_rules: tuple[rules.Rule, ...]) -> set[Any]:
        return {(call, rule.answer, rule.where) for rule in all_rules for call in rule.calls}

    assert refused(engine) | refused(own) == refused(rules.RULES)
    assert {call for call, _, _ in refused(own)} == {"umount2", "unshare", "socket"} and len(own) == 3


def test_process_1_cannot_be_looked_into(inside: Callable[[str], str]) -> None:
    code = """
for path in ('/proc/1/mem', '/proc/1/environ', '/proc/1/maps'):
    try: open(path, 'rb').read(1); print(path)
    except OSError as error: pass
try: os.listdir('/proc/1/root'); print('root')
except OSError: pass
"""
    assert inside(code) == ""


def test_the_machine_is_out_of_reach(inside: Callable[[str], str]) -> None:
    assert inside("print(os.path.exists('/run/docker.sock'), sorted(os.listdir('/sys/class/net')))") == "False ['lo']\n"
    assert inside("print(os.access('/proc/sys/kernel/hostname', os.W_OK))") in ("True\n", "False\n")
    write = "\ntry: open('/proc/sys/vm/overcommit_memory', 'w').write('0'); print('written')\nexcept OSError: pass"
    assert inside(write) == ""
    node = "\ntry: os.mknod('/tmp/sda', 0o60600, os.makedev(8, 0)); print('made')\nexcept OSError: pass"
    assert inside(node) == ""
