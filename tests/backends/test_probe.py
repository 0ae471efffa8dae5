"""What doctor says, as tables; and on this machine, for real."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap

import pytest

from aviato.exceptions import AviatoValidationError, SandboxUnavailableError
from aviato.server.backends.local import binary, container, facts, probe, subordinate
from aviato.server.backends.local.plan import HostFacts
from aviato.server.backends.local.probe import Surroundings, explain, first_failure
from aviato.server.backends.local.uids import UidPool, available, holders
from aviato.server.backends.registry import make_backend
from aviato.server.images.interpreters import Interpreter

OK = {"ok": True}
PYTHON = Interpreter(minor=12, executable="/usr/bin/python3.12", prefix="/usr")


def bad(number, step="inside"):
    return {"ok": False, "step": step, "errno": number}


def around(**changes):
    return Surroundings(**{"kernel": (6, 8), "root": False, **changes})


GOOD = {"user_namespaces": OK, "id_map": OK, "mounts": OK, "network": OK, "root": OK, "proc": OK, "overlay": OK}


@pytest.mark.parametrize(
    ("trial", "surroundings", "name", "remedy"),
    [
        ({"user_namespaces": bad(errno.EPERM)}, around(container=container.DOCKER), "user namespaces", container.DOCKER.remedy),
        *[
            ({"user_namespaces": bad(errno.EPERM)}, around(container=kind), "user namespaces", kind.remedy)
            for kind in (container.KUBERNETES, container.PODMAN, container.TOOLBOX, container.CODESPACES, container.KAGGLE)
        ],
        *[
            (
                {"user_namespaces": bad(errno.EPERM), "chroot": True},
                around(container=kind, seccomp=True),
                "user namespaces",
                container.CHROOT.remedy,
            )
            for kind in (None, container.DOCKER)
        ],
        ({"user_namespaces": bad(errno.ENOSPC)}, around(max_user_namespaces=9), "user namespaces", probe.MAX_NAMESPACES),
        ({**GOOD, "id_map": bad(errno.EACCES)}, around(other_proc=True), "user id map", "sudo mount -t proc proc /proc"),
        ({"user_namespaces": bad(errno.ENOSPC)}, around(max_user_namespaces=0), "user namespaces", probe.MAX_NAMESPACES),
        ({"user_namespaces": bad(errno.EPERM)}, around(userns_clone=0), "user namespaces", probe.USERNS_CLONE),
        ({"user_namespaces": bad(errno.EPERM)}, around(apparmor_restricts=1), "user namespaces", probe.APPARMOR),
        ({**GOOD, "mounts": bad(errno.EACCES)}, around(apparmor_restricts=1), "mounts in a user namespace", probe.APPARMOR),
        ({**GOOD, "id_map": bad(errno.EPERM, "map")}, around(apparmor_restricts=1), "user id map", probe.APPARMOR),
        ({**GOOD, "proc": bad(errno.EPERM)}, around(container=container.DOCKER), "own /proc", container.DOCKER.remedy),
        ({**GOOD, "proc": bad(errno.EPERM)}, around(container=container.KUBERNETES), "own /proc", container.KUBERNETES.remedy),
        (
            {**GOOD, "root": bad(errno.EPERM)},
            around(container=container.KUBERNETES),
            "root directory",
            container.KUBERNETES.remedy,
        ),
        (
            {"user_namespaces": bad(errno.EPERM)},
            around(userns_clone=0, container=container.KUBERNETES),
            "user namespaces",
            f"on its node: {probe.USERNS_CLONE}",
        ),
        (
            {**GOOD, "mounts": bad(errno.EACCES)},
            around(apparmor_restricts=1, container=container.KUBERNETES),
            "mounts in a user namespace",
            f"on its node: {probe.APPARMOR_OF_CONTAINERS}",
        ),
        ({**GOOD, "filters": bad(errno.EINVAL)}, around(), "seccomp", "use a kernel with CONFIG_SECCOMP_FILTER"),
        (GOOD, around(kernel=(4, 18)), "kernel", "use Linux 5.3 or newer"),
    ],
)
def test_each_cause_has_its_remedy(trial, surroundings, name, remedy):
    failed = first_failure(explain(trial, surroundings, [PYTHON]))
    assert (failed.name, failed.remedy) == (name, remedy)


def test_a_good_machine():
    checks = explain(GOOD, around(), [PYTHON])
    assert first_failure(checks) is None
    hold = {check.name: check.detail for check in checks}
    assert "processes 512, shm 1Gi, open_files" in hold["limits: hard"]
    assert "memory 2Gi, disk 4Gi, inodes 262144 (" in hold["limits: watched"]
    assert hold["limits: none"].startswith("cpu (")
    grouped = HostFacts(groups=(("memory", "/sys/fs/cgroup/memory"), ("cpu", "/sys/fs/cgroup/cpu")))
    hold = {check.name: check.detail for check in explain(GOOD, around(facts=grouped), [PYTHON])}
    assert "memory is hard where it is named" in hold["limits: watched"]
    assert "used for memory and cpu" in hold["control groups"]
    assert "3.12" in hold["interpreters"]


def test_what_is_missing_but_not_required():
    checks = explain({**GOOD, "overlay": bad(errno.EINVAL)}, around(file_system="overlay"), [])
    assert first_failure(checks) is None
    failed = {check.name: check for check in checks if not check.ok}
    assert "in memory" in failed["overlay"].detail
    assert failed["overlay"].remedy == probe.STATE_DIR
    assert failed["interpreters"].remedy
    old = explain(GOOD, around(kernel=(5, 10), facts=HostFacts(limit_processes=False)), [PYTHON])
    assert any("5.14" in check.detail for check in old)


def test_root_with_one_id():
    failed = first_failure(explain({}, around(root=True, uids=None), [PYTHON]))
    assert failed.name == "host uids"
    with pytest.raises(SandboxUnavailableError, match="one id"):
        available(1_900_000_000, "0 1000 1\n")


@pytest.mark.parametrize(
    ("uid_map", "expected"),
    [
        ("0 0 4294967295", range(1_900_000_000, 2_000_000_000)),
        ("0 100000 65536", range(61438, 65534)),
        ("0 1000 1\n1 100000 65536", range(61438, 65534)),
        ("0 0 1900000010", range(1_900_000_000, 1_900_000_010)),
    ],
)
def test_the_range_of_ids(uid_map, expected):
    assert available(1_900_000_000, uid_map) == expected


def test_ids_that_accounts_have_are_told(tmp_path, monkeypatch):
    file = tmp_path / "subuid"
    file.write_text("someone:3000000000:1\nsomebody:1999999990:65536\nnothing:1950000000:0\n")
    monkeypatch.setattr(subordinate, "FILES", (str(file),))
    assert {"daemon", "nobody", "somebody"} <= set(holders(1, "0 0 4294967295"))
    assert {"nobody", "somebody"} == set(holders(65_534, "0 0 4294967295")) & {"daemon", "nobody", "somebody", "someone"}
    assert holders(1_900_000_000, "0 0 4294967295")["somebody"] == 1_999_999_990 + 65_535
    assert "somebody" not in holders(2_000_100_000, "0 0 4294967295")
    assert "nothing" not in holders(1_900_000_000, "0 0 4294967295")


@pytest.mark.parametrize(
    ("uid_map", "expected"),
    [
        ("0 0 4294967295", range(1_900_000_000, 2**31 - 1 - 65_536 + 1, 65_536)),
        ("0 100000 65536", range(61438, 65534)),
        ("0 0 1900000010", range(1_900_000_000, 1_900_000_010)),
        ("0 0 1967000000", range(1_900_000_000, 1_967_000_000)),
    ],
)
def test_ranges_for_each(uid_map, expected):
    """Where there are not many, each has one id."""
    assert available(1_900_000_000, uid_map, 65_536) == expected


def test_ranges_are_not_shared():
    pool = UidPool(range(100, 140, 10))
    pool.keep(117)  # one of its second range
    assert sorted(pool.take()[0] for _ in range(3)) == [100, 120, 130]
    assert pool.each == 10


def test_ids_are_not_shared():
    pool = UidPool(range(10, 14))
    pool.keep(12)
    taken = [pool.take()[0] for _ in range(3)]
    assert sorted(taken) == [10, 11, 13]
    with pytest.raises(SandboxUnavailableError, match="have them"):
        pool.take()
    pool.give_back(10)
    assert pool.take() == (10, 10)


def test_unknown_backends():
    for name in ("nomad", "nonsense", ""):
        with pytest.raises(AviatoValidationError) as caught:
            make_backend(name)
        known = "'docker', 'kubernetes', 'landlock', 'local', or MODULE:CLASS"
        assert str(caught.value) == f"there is no backend {name!r}; there are {known}"


def test_the_registry_makes_the_local_one(tmp_path):
    assert make_backend("local", directory=tmp_path).name == "local"


def test_facts_of_this_machine():
    found = facts.gather()
    assert "meminfo" in found.proc
    assert found.open_files <= 4096
    assert facts.kernel() > (3, 0)
    assert facts.file_system("/proc") == "proc"


@pytest.mark.anyio
async def test_this_machine(backend):
    checks = {check.name: check for check in await backend.probe()}
    assert checks["own /proc"].ok
    assert checks["control groups"].detail
    assert backend.describe_plan(backend.resolve_image(None))[0].startswith("place ")


def test_a_trial_leaves_nothing(tmp_path):
    """`work/work` of a used overlay has no permissions: as an ordinary user that took more than rmtree."""
    probe.run_trial(str(tmp_path), os.geteuid() or 1_950_000_000)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/bin/false", "ended with 1"),
        ("/bin/echo", "ended with 0"),
        ("/nowhere", "No such file"),
        ("/etc/passwd", "Permission denied"),
    ],
)
def test_a_trial_that_cannot_run(monkeypatch, tmp_path, program, said):
    monkeypatch.setenv(binary.VARIABLE, program)
    trial = probe.run_trial(str(tmp_path), None)
    failed = first_failure(explain(trial, around(), []))
    assert "the trial could not be run: " in failed.detail and said in failed.detail


def test_what_a_killed_trial_left_goes_and_one_under_way_stays(tmp_path):
    source = """
        import sys, time
        from aviato.server.backends.local import probe
        probe.subprocess.run = lambda *_, **__: (print("up", flush=True), time.sleep(60))
        probe.run_trial(sys.argv[1], None)
    """
    command = [sys.executable, "-c", textwrap.dedent(source), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as trying:
        assert trying.stdout.readline() == b"up\n"
        (left,) = tmp_path.iterdir()
        (left / "work").mkdir(mode=0)
        probe.clear(str(tmp_path))
        assert list(tmp_path.iterdir()) == [left]
        trying.kill()
    probe.clear(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("surroundings", "words"),
    [
        (around(seccomp=True), ["seccomp filter", "RestrictNamespaces=no"]),
        (around(modules="capability,selinux"), ["security module (capability,selinux)"]),
        (around(), ["security module"]),
        (around(seccomp=True, container=container.COLAB), ["Colab", "another machine"]),
    ],
)
def test_what_forbids_is_told_apart(surroundings, words):
    failed = first_failure(explain({"user_namespaces": bad(errno.EPERM)}, surroundings, [PYTHON]))
    assert all(word in f"{failed.detail} {failed.remedy}" for word in words)


FULL, ROOTLESS = "0 0 4294967295\n", "0 1000 1\n1 100000 65536\n"
PLACES = [
    ({}, {}, None),
    ({}, {".dockerenv": ""}, container.DOCKER),
    ({}, {"run/.containerenv": "", "proc/self/uid_map": FULL}, container.PODMAN),
    ({}, {"run/.containerenv": "", "proc/self/uid_map": ROOTLESS}, container.ROOTLESS_PODMAN),
    ({}, {"run/.containerenv": "", "run/.toolboxenv": "", "proc/self/uid_map": ROOTLESS}, container.TOOLBOX),
    ({"DISTROBOX_ENTER_PATH": "/usr/bin/distrobox-enter"}, {"run/.containerenv": ""}, container.DISTROBOX),
    ({"DISTROBOX_ENTER_PATH": "/usr/bin/distrobox-enter"}, {".dockerenv": ""}, container.DISTROBOX),
    ({"CODESPACES": "true"}, {".dockerenv": ""}, container.CODESPACES),
    ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, {".dockerenv": ""}, container.KAGGLE),
    ({"COLAB_RELEASE_TAG": "release-colab"}, {".dockerenv": ""}, container.COLAB),
    ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {}, container.KUBERNETES),
    ({}, {"var/run/secrets/kubernetes.io/token": ""}, container.KUBERNETES),
    ({}, {".flatpak-info": ""}, container.FLATPAK),
    ({}, {"proc/self/stat": "9 (python3) S 7 9", "proc/7/stat": "7 (bwrap) S 1 7"}, container.BWRAP),
    ({}, {"proc/self/stat": "9 (a) b) S 1 9", "proc/1/stat": "1 (bwrap) S 0 1", ".dockerenv": ""}, container.BWRAP),
    ({}, {"proc/self/stat": "9 (python3) S 1 9", "proc/1/stat": "1 (init) S 0 1"}, None),
]


@pytest.mark.parametrize(("environment", "files", "kind"), PLACES)
def test_the_container_is_found_by_its_marks(tmp_path, environment, files, kind):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert container.find(environment, str(tmp_path)) == kind


def test_every_container_has_a_name_and_a_remedy_of_its_own():
    kinds = [one for one in vars(container).values() if isinstance(one, container.Container)]
    assert len({one.name for one in kinds}) == len(kinds) == 12
    assert len({one.remedy for one in kinds}) == len(kinds) - 2, "Kaggle and Colab share theirs, and so do two of Podman's"
