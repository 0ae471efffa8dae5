"""The plan, as a table: no I/O, an order that matters, nothing of the machine but what is listed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviato.server.backends.local import host_tree, plan
from aviato.server.backends.local.plan import HostFacts, PlanOptions, make_plan

CONFINE = (Path(__file__).parents[2] / "init" / "src" / "confine.rs").read_text()
FACTS = HostFacts(
    etc_shared=(("ld.so.cache", False), ("ssl/certs", True)),
    hardware=(("/sys/devices/system/cpu/online", "0\n"),),
    proc=frozenset({"sys", "kcore", "acpi", "meminfo"}),
)


def options(**changes):
    return PlanOptions(**{"host_name": "sb-x", "place": "/state/sb-x", "facts": FACTS, **changes})


def step(steps, operation):
    return next(step for step in steps if step.operation == operation)


VARIANTS = {
    "host": options(),
    "host with an interpreter": options(interpreter=("/opt/py", "/opt/py/bin/python3.12", 12), copies="/state/skeletons/c"),
    "host on a base root": options(interpreter=("/opt/py", "/opt/py/bin/python3.12", 12), base_root="/state/skeletons/a"),
    "host with packages": options(interpreter=("/usr", "/usr/bin/python3.12", 12), packages=("/env/site-packages", 1, 2)),
    "host with packages on a base root": options(
        interpreter=("/usr", "/usr/bin/python3.12", 12), packages=("/env/site-packages", 1, 2), base_root="/state/skeletons/a"
    ),
    "host on a base root as root": options(base_root="/state/skeletons/a", root=True),
    "host with devices made before": options(facts=replace(FACTS, devices="/state/skeletons/b")),
    "image": options(layers=("/images/a",)),
    "image as root": options(layers=("/images/a",), root=True),
    "image, upper in memory": options(layers=("/images/a",), upper_in_memory=True),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_order_that_safety_rests_on(name):
    operations = [step.operation.removeprefix("shared_") for step in make_plan(VARIANTS[name])]
    order = ["place", "take", "identity", "private_mounts", "enter_root", "proc", "devices", "no_more_namespaces"]
    order += ["kernel_counts", "cover_read_only"]
    order += ["pivot", "leave_old_root", "limits", "last_user_namespace", "capabilities", "settle", "filter"]
    assert [operation for operation in operations if operation in order] == order
    assert operations[-1] == "filter"


@pytest.mark.parametrize("name", VARIANTS)
def test_every_step_can_be_executed_sent_and_read(name):
    steps = make_plan(VARIANTS[name])
    assert all(f'b"{step.operation}" =>' in CONFINE and step.reason for step in steps)
    assert json.loads(json.dumps(steps))
    lines = plan.describe(steps)
    assert len(lines) == len(steps)
    assert max(map(len, lines)) < 250


def test_the_machine_is_read_only():
    sources = step(make_plan(VARIANTS["host with an interpreter"]), "take").arguments[0]
    for path, name, attributes in sources:
        assert attributes == (() if name.startswith("device ") else plan.RO), path
    assert {path for path, _, _ in sources if not path.startswith("/dev/")} == {
        "/usr",
        "/opt/py",
        "/state/skeletons/c",
    }


@pytest.mark.parametrize(("prefix", "bound"), [("/usr", False), ("/usr/local", False), ("/opt/py", True), ("/usrlocal", True)])
def test_an_interpreter_outside_usr_is_brought_in(prefix, bound):
    steps = make_plan(options(interpreter=(prefix, f"{prefix}/bin/python3.9", 9)))
    assert (("interpreter", prefix, True) in step(steps, "put").arguments[0]) is bound
    links = dict(step(steps, "links").arguments[0])
    assert {name: links[f"/.aviato/bin/{name}"] for name in ("python", "python3", "python3.9")} == dict.fromkeys(
        ("python", "python3", "python3.9"), f"{prefix}/bin/python3.9"
    )


@pytest.mark.parametrize("name", ["host with packages", "host with packages on a base root"])
def test_packages_are_those_of_an_environment(name):
    steps = make_plan(VARIANTS[name])
    assert step(steps, "take_directory").arguments == ("/env/site-packages", 1, 2, "packages", plan.RO)
    where = "/.aviato/lib/python3.12/site-packages"
    assert step(steps, "put_directory").arguments == ("packages", where)
    names = [one.operation for one in steps]
    assert names.index("take_directory") < names.index("identity") and names.index("put") < names.index("put_directory")
    made = host_tree.base_root(FACTS, VARIANTS[name].interpreter, True)
    assert (where, 0o755) in made.directories
    [text] = [content for path, content in made.files if path == "/.aviato/pyvenv.cfg"]
    assert "home = /usr/bin\n" in text and "include-system-site-packages = true\n" in text
    plain = host_tree.base_root(FACTS, VARIANTS[name].interpreter)
    assert "/.aviato/pyvenv.cfg" not in {path for path, _ in plain.files}


def test_only_what_is_there_is_covered():
    steps = make_plan(options())
    assert step(steps, "cover_read_only").arguments == (("/proc/sys",),)
    assert step(steps, "cover_file").arguments == (("/proc/kcore",),)
    assert step(steps, "cover_directory").arguments == (("/proc/acpi",), False)


def test_whatever_can_be_written_in_proc_is_covered():
    """Whether or not it has a name that is known; what is hidden is not shown again."""
    names = frozenset({"sys", "kcore", "scsi", "mtrr", "new", "meminfo"})
    facts = replace(FACTS, proc=names, proc_writable=frozenset({"kcore", "scsi", "mtrr", "new"}))
    steps = make_plan(options(facts=facts))
    assert step(steps, "cover_read_only").arguments == (("/proc/mtrr", "/proc/new", "/proc/sys"),)
    assert step(steps, "cover_file").arguments == (("/proc/kcore",),)
    assert step(steps, "cover_directory").arguments == (("/proc/scsi",), False)


AT = "../sb-x"
"""Its own directory, seen from inside that."""


@pytest.mark.parametrize(
    ("changes", "layers", "owned"),
    [
        ({"layers": (), "base_root": "/a"}, (("/a",), ".", AT), ["upper", "work"]),
        ({"layers": (), "base_root": "/a", "upper_in_memory": True}, (("/a",), ".", AT), ["upper", "work"]),
        ({"layers": (), "base_root": "/a", "root": True}, ((), ".", AT), ["upper", "work"]),
        ({}, (("/images/a",), ".", AT), ["upper", "work"]),
        ({"layers": ("/b", "/a")}, (("/b", "/a"), ".", AT), ["upper", "work"]),
        ({"root": True}, ((), ".", AT), ["upper", "work"]),
        ({"upper_in_memory": True}, (("/images/a",), "layers", AT), ["layers"]),
    ],
)
def test_layers_of_an_image(changes, layers, owned):
    chosen = options(**{"layers": ("/images/a",), **changes})
    assert step(make_plan(chosen), "overlay").arguments == (*layers, plan.SAFE)
    assert plan.owned_directories(chosen) == owned


def test_limits():
    limits = dict(step(make_plan(options()), "limits").arguments[0])
    counted = {"sigpending": 4096, "msgqueue": 200 << 10, "memlock": 1 << 20, "nice": 0, "rtprio": 0}
    assert limits == {"nofile": 8192, "fsize": 4 << 30, "core": 0, "nproc": 513, **counted}
    old = HostFacts(limit_processes=False, open_files=1024)
    assert dict(step(make_plan(options(facts=old)), "limits").arguments[0]) == {
        "nofile": 2048,
        "fsize": 4 << 30,
        "core": 0,
        **counted,
    }


def test_machines_without_a_merged_usr():
    facts = HostFacts(links=(("lib64", "lib"),), directories=("bin", "lib"))
    steps = make_plan(options(facts=facts))
    assert {("bin", "/bin", True), ("lib", "/lib", True)} <= set(step(steps, "put").arguments[0])
    assert ("/lib64", "lib") in step(steps, "links").arguments[0]


@pytest.mark.parametrize("prefix", ["/usr", "/opt/py", "/opt/a/b", "/root/.pyenv/versions/3.12", "/workspace"])
def test_a_base_root_has_every_name_once_and_parents_first(prefix):
    found = host_tree.base_root(FACTS, (prefix, f"{prefix}/bin/python3.12", 12))
    names = [path for path, _ in (*found.directories, *found.links)]
    assert len(set(names)) == len(names)
    for number, path in enumerate(names):
        assert path.rpartition("/")[0] in ("", *names[:number])
    assert prefix == "/usr" or prefix in names


@given(st.text(max_size=30), st.text(max_size=30))
@settings(deadline=None)
def test_a_plan_never_fails(place, prefix):
    assert make_plan(options(place=place, interpreter=(prefix, prefix + "/bin/python3.9", 9)))
