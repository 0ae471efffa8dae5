from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviato.exceptions import SandboxResourceExhaustedError
from aviato.server import machine
from aviato.server.admission import Admission, HostRoom, capacity, to_release
from aviato.system import control_groups

GIB = 1 << 30


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (HostRoom(), 2000),
        (HostRoom(memory_available_bytes=0), 8),
        (HostRoom(memory_available_bytes=2 * GIB), 64),
        (HostRoom(memory_available_bytes=2 * GIB, live=16), 80),
        (HostRoom(memory_available_bytes=1000 * GIB), 2000),
        (HostRoom(memory_available_bytes=1000 * GIB, processes_max=800), 100),
        (HostRoom(open_files_max=1024), 128),
        (HostRoom(open_files_max=10), 8),
    ],
)
def test_capacity(room, expected):
    assert capacity(room) == expected


UNIFIED = {
    "/proc/self/cgroup": "0::/job/step",
    "/sys/fs/cgroup/job/memory.max": f"{4 * GIB}",
    "/sys/fs/cgroup/job/memory.current": f"{3 * GIB}",
    "/sys/fs/cgroup/job/memory.stat": f"anon 5\ninactive_file {GIB // 2}\nactive_file 7\n",
    "/sys/fs/cgroup/job/step/memory.max": "max",
    "/sys/fs/cgroup/job/step/memory.current": "5",
}
FIRST_VERSION = {
    "/proc/self/cgroup": "5:pids:/x\n4:memory:/job\n0::/other",
    "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{3 * GIB}",
    "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{2 * GIB}",
    "/sys/fs/cgroup/memory/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 4}\n",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}",
    "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{20 * GIB}",
}


@pytest.mark.parametrize(
    ("files", "left"), [(UNIFIED, 3 * GIB // 2), (FIRST_VERSION, 5 * GIB // 4), ({}, 60 * GIB)], ids=["2", "1", "none"]
)
def test_a_container_s_memory_counts_and_not_only_the_machine_s(monkeypatch, files, left):
    files = {"/proc/meminfo": f"MemTotal: 9 kB\nMemAvailable:   {60 * GIB >> 10} kB\n"} | files
    monkeypatch.setattr(control_groups, "read", lambda path: files.get(path, ""))
    assert machine.room(0).memory_available_bytes == left


def test_one_client_is_served_first_in_first_out_within_the_limits():
    admission = Admission(limit=3, in_flight_limit=2)
    for name in "abcde":
        admission.enqueue(name)
    assert admission.admit() == ["a", "b"]
    assert admission.admit() == []
    assert [admission.position(name) for name in "abcde"] == [None, None, 1, 2, 3]
    admission.started("a")
    assert admission.admit() == ["c"]
    admission.started("b")
    admission.started("c")
    assert admission.admit() == [] and admission.missing() == 2
    admission.gone("b")
    assert admission.missing() == 1
    assert admission.admit() == ["d"]
    assert (admission.live, admission.waiting) == (3, 1)


def test_one_that_leaves_the_queue_moves_the_others_up():
    admission = Admission(limit=1, in_flight_limit=1)
    for name in "abcd":
        admission.enqueue(name)
    admission.admit()
    admission.gone("c")
    assert [admission.position(name) for name in "bcd"] == [1, None, 2]


def test_a_full_queue_says_when_to_come_again():
    admission = Admission(limit=1, in_flight_limit=1, queue_bound=2)
    for name in "ab":
        admission.check_room()
        admission.enqueue(name)
    with pytest.raises(SandboxResourceExhaustedError) as caught:
        admission.check_room()
    assert caught.value.retry_delay_seconds > 0 and caught.value.retryable


def test_a_lower_limit_ends_nobody():
    admission = Admission(limit=2, in_flight_limit=2)
    for name in "abc":
        admission.enqueue(name)
    admission.admit()
    admission.limit = 1
    assert admission.missing() == 1 and admission.admit() == []


@pytest.mark.parametrize(("wanted", "expected"), [(0, []), (1, ["b"]), (2, ["b", "c"]), (9, ["b", "c", "a"])])
def test_the_oldest_are_released(wanted, expected):
    assert to_release([(3.0, "a"), (1.0, "b"), (2.0, "c")], wanted) == expected


def test_clients_take_turns_however_many_each_has_waiting():
    admission = Admission(limit=1, in_flight_limit=1)
    for number in range(500):
        admission.enqueue(f"many {number}", None, "many")
    admission.enqueue("one", None, "one")
    admission.enqueue("other", "tenant", "one")
    assert [admission.position(name) for name in ("many 0", "other", "many 1", "one", "many 499")] == [1, 2, 4, 3, 502]
    order = []
    while admission.waiting:
        (name,) = admission.admit()
        order.append(name)
        admission.gone(name)
    assert order == ["many 0", "other", "one", *(f"many {number}" for number in range(1, 500))]


def test_an_owner_with_more_clients_has_no_more_turns():
    admission = Admission(limit=1, in_flight_limit=1)
    for number in range(6):
        admission.enqueue(f"a {number}", "a", f"lease {number}")
        admission.enqueue(f"b {number}", "b", "lease")
    order = []
    while admission.waiting:
        order += admission.admit()
        admission.gone(order[-1])
    assert [name[0] for name in order] == ["a", "b"] * 6


def test_a_client_that_fills_the_queue_leaves_room_for_others():
    admission = Admission(limit=1, in_flight_limit=1, queue_bound=100)

    def fill(owner, client):
        for number in range(1000):
            try:
                admission.check_room(owner, client)
            except SandboxResourceExhaustedError:
                return number
            admission.enqueue(f"{owner} {client} {number}", owner, client)
        raise AssertionError("there is no bound")

    assert fill("a", "1") == 100
    assert 1 <= fill("a", "2") <= 25
    # One that makes up clients fills its own quarter, and another owner is let in all the same.
    assert sum(fill("a", f"made up {number}") for number in range(100)) <= 25
    assert fill("b", "1") >= 1
    assert admission.waiting <= 150


def test_a_full_queue_that_moves_fast_asks_for_less_patience():
    admission = Admission(limit=1, in_flight_limit=1, queue_bound=10)
    for number in range(10):
        admission.enqueue(str(number))
    delays = []
    for per_second in (None, 0.1, 10.0, 1000.0):
        with pytest.raises(SandboxResourceExhaustedError) as caught:
            admission.check_room(per_second=per_second)
        delays.append(caught.value.retry_delay_seconds)
    assert delays == [5.0, 5.0, 0.5, 0.25]
    with pytest.raises(SandboxResourceExhaustedError) as caught:
        admission.check_room(per_second=40.0, refused_per_second=80.0)
    assert caught.value.retry_delay_seconds == 1.0, "so that twice as many come as can begin"


@settings(database=None)
@given(st.lists(st.tuples(st.sampled_from(["enqueue", "admit", "started", "gone"]), st.integers(0, 31)), max_size=120))
def test_whatever_happens_the_limits_hold_and_positions_come_true(steps):
    admission = Admission(limit=4, in_flight_limit=2)
    seen: set[str] = set()
    waiting: set[str] = set()
    for step, number in steps:
        name = str(number)
        owner, client = str(number % 2), str(number % 8 // 2)
        if step == "enqueue" and name not in seen:
            seen.add(name)
            waiting.add(name)
            admission.enqueue(name, owner, client)
        elif step == "admit":
            positions = {one: admission.position(one) for one in waiting}
            admitted = admission.admit()
            assert [positions[one] for one in admitted] == list(range(1, len(admitted) + 1))
            waiting -= set(admitted)
        elif step == "started":
            admission.started(name)
        elif step == "gone":
            admission.gone(name)
            waiting.discard(name)
        assert admission.live <= 4
        assert sorted(admission.position(one) for one in waiting) == list(range(1, len(waiting) + 1))
        assert admission.waiting == len(waiting)
        assert {one for one in seen if admission.position(one) is not None} == waiting


def test_those_of_one_image_have_their_turns_as_they_came():
    """A loop that uses its sandboxes one after the other frees no place before the one that it waits for has had one."""
    admission = Admission(limit=2, in_flight_limit=2)
    for name in "abcd":
        admission.enqueue(name, client="x", image="i", is_ready=False)
    admission.enqueue("other", client="x", image="j", is_ready=False)
    admission.enqueue("late", client="x", image="i")  # The image has come just now.
    for name in "dbc":
        admission.now_ready(name)
    assert admission.admit() == [] and admission.waiting == 0
    admission.now_ready("other")
    assert admission.admit() == ["other"]
    admission.now_ready("a")
    assert admission.admit() == ["a"]
    assert [admission.position(name) for name in ("b", "c", "d", "late")] == [1, 2, 3, 4]


def test_one_whose_image_cannot_be_had_keeps_nobody_behind_it():
    admission = Admission(limit=9, in_flight_limit=9)
    for name in "abc":
        admission.enqueue(name, image="i", is_ready=False)
    admission.now_ready("b")
    admission.now_ready("c")
    admission.gone("a")
    assert admission.admit() == ["b", "c"] and admission.has_room()
    admission.enqueue("d", image="i")
    assert admission.admit() == ["d"]
