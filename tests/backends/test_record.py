"""A plan as system calls for compiled code: everything that can be asked of the kernel can be noted, and is called as noted."""

from __future__ import annotations

import ctypes
import errno
import inspect
import json
import os
import shutil
import socket
import sysconfig

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviato.server.backends.local import native, record
from aviato.server.backends.local.confine import Confinement
from aviato.server.backends.local.kernel import Kernel
from aviato.server.backends.local.plan import HostFacts, PlanOptions, Step, make_plan
from aviato.server.backends.local.record import Call, Recorder, Register

FACTS = HostFacts(etc_shared=(("ld.so.cache", False), ("ssl/certs", True)), proc=frozenset({"sys", "kcore", "acpi"}))
FILTER = bytes(range(64))
FIRST = 3
"""The first descriptor that a child keeps."""
compiled = pytest.mark.skipif(native.load() is None, reason="no C compiler was there when aviato was installed")


def options(**changes):
    return PlanOptions(**{"sandbox_id": "sb-x", "place": "/state/sb-x", "facts": FACTS, **changes})


def read(calls):
    """What was noted, as (operation, result, skip_done, skip_forgiven, forgiven, arguments)."""
    found, at = [], 0
    while at < len(calls):
        size, operation, result, done, forgiven, errors, kinds, *values = native.CALL.unpack_from(calls, at)
        text = calls[at + native.CALL.size : at + size]
        arguments = [
            text[value:].partition(b"\0")[0] if kind == 1 else Register(value) if kind == 2 else value
            for kind, value in zip(kinds, values, strict=True)
        ]
        found.append((native.OPERATIONS[operation], result, done, forgiven, errors.rstrip(b"\0"), arguments))
        at += size
    assert at == len(calls)
    return found


def test_what_is_done_at_once_can_be_noted_and_nothing_else():
    methods = [
        {name: inspect.signature(method) for name, method in vars(kind).items() if callable(method) and name[0] != "_"}
        for kind in (Kernel, Recorder)
    ]
    assert methods[0].keys() == methods[1].keys()
    for name, signature in methods[0].items():
        assert list(signature.parameters) == list(methods[1][name].parameters), name


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"interpreter": ("/opt/py", "/opt/py/bin/python3.12", 12)},
        {"skeleton": "/state/skeletons/a"},
        {"skeleton": "/state/skeletons/a", "root": True},
        {"lower": "/images/a"},
        {"lower": "/images/a", "upper_in_memory": True},
    ],
    ids=str,
)
def test_every_plan_can_be_noted_step_by_step(changes):
    steps = make_plan(options(**changes))
    calls = record.record(steps, frozenset(), FILTER)
    assert calls is not None
    labels = [call[5][0].decode() for call in read(calls) if call[0] == "label"]
    assert labels == [f"{step.operation} ({step.reason})" for step in steps]
    assert read(calls)[-1][0] == "load_filter"
    assert FILTER in calls


def test_files_of_the_callers_are_looked_at_and_not_noted():
    assert record.record(make_plan(options(mounted=(("/etc/x", 3),))), frozenset(), FILTER) is None


def test_what_the_template_gives_is_not_taken_again():
    steps = make_plan(options(interpreter=("/opt/py", "/opt/py/bin/python3.12", 12)))
    opened = [
        [call[5][1] for call in read(record.record(steps, given, FILTER) or b"") if call[0] == "open_tree"]
        for given in (frozenset(), frozenset({"interpreter"}))
    ]
    assert set(opened[0]) - set(opened[1]) == {b"/opt/py"}


def test_a_sandboxs_own_words_are_in_its_own_calls():
    """Steps are remembered, and must not be taken for those of another sandbox."""
    for name in ("sb-one", "sb-two", "sb-one"):
        calls = read(record.record(make_plan(options(sandbox_id=name, place=f"/state/{name}")), frozenset(), FILTER) or b"")
        assert [call[5][0] for call in calls if call[0] == "sethostname"] == [name.encode()]
        assert next(call[5][0] for call in calls if call[0] == "chdir") == f"/state/{name}".encode()


def test_too_many_descriptors_with_names_are_left_to_python(monkeypatch):
    monkeypatch.setattr(record, "_named", {})
    many = tuple((f"/x/{number}", f"many {number}", ()) for number in range(native.REGISTERS))
    assert record.record([Step("take", (many,), "…")], frozenset(), b"") is None


@given(
    st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=40), st.text(max_size=20), st.none()), max_size=6),
    st.lists(st.integers(1, 254), max_size=4),
    st.integers(0, 255),
)
@settings(max_examples=200, deadline=None)
def test_a_call_is_what_was_noted(arguments, forgiven, skip):
    arguments = [one for one in arguments if not isinstance(one, (bytes, str)) or not {0, "\0"} & set(one)]
    encoded = Call("prctl", arguments, 7, forgiven, skip, skip).encode()
    assert len(encoded) % 8 == 0
    ((operation, result, done, left, errors, values),) = read(encoded)
    assert (operation, result, done, left, list(errors)) == ("prctl", 7, skip, skip, forgiven)
    for noted, meant in zip(values, arguments, strict=False):
        if isinstance(meant, bytes):  # Without an end of its own: a length goes with it.
            assert noted.startswith(meant)
        else:
            assert noted == (os.fsencode(meant) if isinstance(meant, str) else meant or 0)


# -- as they are made -------------------------------------------------------------------------------------------------------


def bear(calls, look, *, registers=None, unneeded=-1, kept=1, meanwhile=bool):
    """A child without namespaces of its own that makes the calls and then looks at itself: error, label and what it saw."""
    read_end, write_end = os.pipe()
    given = (ctypes.c_int32 * native.REGISTERS)(*[-1] * native.REGISTERS)
    for number in (native.CONNECTION, native.LISTENER, native.NOTE, native.CHILDREN):
        given[number] = write_end
    for number, fd in (registers or {}).items():
        given[number] = fd
    room = ctypes.create_string_buffer(8)
    program = b"".join(call.encode() for call in calls)
    at = ctypes.cast(ctypes.c_char_p(program), ctypes.c_void_p)
    birth = native.Birth(0, -1, ctypes.addressof(room), 8, b"a-long-name", unneeded, at, len(program), given, kept, -1, 0, 0)
    pid = native.load().aviato_birth(birth)
    if pid == 0:
        try:
            seen = [birth.error, birth.label, room.value.decode(), None if birth.error else look()]
            os.write(write_end if birth.error else FIRST, json.dumps(seen).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    os.close(birth.pidfd)
    meanwhile()
    said = os.read(read_end, 1 << 16)
    os.close(read_end)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    error, birth.label, title, saw = json.loads(said)
    return error, native.label(birth) if error else title, saw


def labelled(text, *calls):
    return [Call("label", [text]), *calls]


@compiled
def test_a_child_has_another_title_and_no_error():
    name = lambda: open("/proc/self/comm").read()  # noqa: E731, SIM115
    assert bear(labelled("nothing"), name) == (0, "a-long-", "a-long-name\n")


@compiled
def test_the_first_call_that_fails_is_named(tmp_path):
    recorder = Recorder()
    recorder.make_directory(str(tmp_path / "a"), 0o755)
    recorder.make_directory(str(tmp_path / "nowhere" / "a"), 0o755)
    recorder.make_directory(str(tmp_path / "b"), 0o755)
    error, label, _ = bear([*labelled("first", recorder.calls[0]), *labelled("second (why)", *recorder.calls[1:])], bool)
    assert (error, label) == (errno.ENOENT, "second (why)")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@compiled
def test_what_is_there_already_stays_as_it_is(tmp_path):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "there").mkdir(0o700)
    (tmp_path / "written").write_text("before")
    recorder = Recorder()
    for name in ("there", "new"):
        recorder.make_directory(str(tmp_path / name), 0o1777)
    for name in ("file", "made"):
        recorder.make_file(str(tmp_path / name))
    recorder.write(str(tmp_path / "missing"), "x", (errno.ENOENT,))
    recorder.write(str(tmp_path / "written"), "ü")
    recorder.create(str(tmp_path / "created"), "text")
    recorder.link(str(tmp_path / "link"), "written")
    assert bear(labelled("files", *recorder.calls), bool)[0] == 0
    assert (tmp_path / "file").read_text() == "kept"
    assert (tmp_path / "link").read_text() == "üfore"
    assert (tmp_path / "made").read_text() == ""
    assert (tmp_path / "created").read_text() == "text"
    assert not (tmp_path / "missing").exists()
    assert oct((tmp_path / "there").stat().st_mode)[-4:] == "0700"
    assert oct((tmp_path / "new").stat().st_mode)[-4:] == "1777"


@compiled
@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_first_of_several_that_works_is_the_last_that_is_tried(tmp_path, number):
    """As the options of a mount: all but the last may fail, by whichever error, and one that was done ends it."""
    paths = [tmp_path / name for name in "abc"]
    calls = [
        Call(
            "mkdirat",
            [-100, str(path if at >= number else path / "not"), 0o755],
            forgiven=None if at < 2 else (),
            skip_done=2 - at,
        )
        for at, path in enumerate(paths)
    ]
    assert bear(labelled("try", *calls), bool)[0] == 0
    assert [path for path in paths if path.exists()] == [paths[number]]


@compiled
def test_descriptors_are_remembered_and_arranged(tmp_path):
    """The child keeps those below a number, in their order, and nothing else."""
    recorder = Recorder()
    recorder.keep("layer", recorder.open(str(tmp_path), os.O_RDONLY))
    recorder.keep("sockets", recorder.open("/dev/null", os.O_RDONLY))
    error, _, seen = bear(labelled("open", *recorder.calls), descriptors, kept=native.OTHERS)
    assert error == 0
    assert list(seen) == [str(fd) for fd in range(FIRST, FIRST + native.OTHERS)]
    assert not any(inherited for _, inherited in seen.values())
    assert seen[str(FIRST + native.LAYER)][0] == str(tmp_path)
    assert seen[str(FIRST + native.SOCKETS)][0] == "/dev/null"


@compiled
@pytest.mark.parametrize("sent", [b"m", b""], ids=["it tells", "it dies"])
def test_a_child_waits_for_its_template_or_its_death(sent, tmp_path):
    """It holds no end of the socket by which it would keep itself waiting."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    recorder = Recorder()
    recorder.wait_for_maps()
    recorder.change_directory("/")
    recorder.return_to(recorder.kept("lower"))

    def meanwhile():
        theirs.close()
        with ours, tmp_path.joinpath("x").open("w"):
            if sent:
                directory = os.open(tmp_path, os.O_RDONLY)
                socket.send_fds(ours, [sent], [directory])
                os.close(directory)

    waiting = {"registers": {native.SYNC: theirs.fileno()}, "unneeded": ours.fileno(), "meanwhile": meanwhile}
    error, said, seen = bear(labelled("wait", *recorder.calls), os.getcwd, **waiting)
    assert (error, said, seen) == ((0, "a-long-", str(tmp_path)) if sent else (errno.EPIPE, "wait", None))


def descriptors():
    found = {}
    for fd in range(FIRST, 2048):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}"), os.get_inheritable(fd)
        except OSError:
            continue
    return found


@compiled
def test_no_child_without_its_namespaces():
    """A clone that the kernel refuses is an error, and no child."""
    given = (ctypes.c_int32 * native.REGISTERS)()
    room = ctypes.create_string_buffer(8)
    # A new user namespace and a shared file system do not go together.
    birth = native.Birth(0x10000000 | 0x200, -1, ctypes.addressof(room), 8, b"x", -1, None, 0, given, 0, -1, 0, 0)
    assert native.load().aviato_birth(birth) == -1
    assert birth.error == errno.EINVAL


def test_it_is_compiled_where_there_is_a_compiler():
    """Otherwise the tests of compiled code would be left out in silence."""
    if shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is None and shutil.which("cc") is None:
        pytest.skip("no C compiler")
    assert native.load() is not None


@compiled
def test_it_can_do_what_is_noted():
    """By the same numbers."""
    names = ctypes.c_char.in_dll(native.load(), "aviato_operations")
    assert ctypes.string_at(ctypes.addressof(names)).decode().split() == list(native.OPERATIONS)


def test_a_step_that_is_noted_is_what_is_done_at_once():
    """The two stand for the same: for each step the noted calls name what the step is given."""
    recorder = Recorder()
    Confinement(recorder).take("hostname", ("one",))
    assert [(call.operation, list(call.arguments)) for call in recorder.calls] == [("sethostname", ["one", 3])]
