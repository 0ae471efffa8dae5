from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviato.exceptions import SandboxResourceExhaustedError
from aviato.server.admission import Admission, HostRoom, capacity, to_release

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


def test_first_in_first_out_within_the_limits():
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


@settings(database=None)
@given(st.lists(st.tuples(st.sampled_from(["enqueue", "admit", "started", "gone"]), st.integers(0, 15)), max_size=80))
def test_whatever_happens_the_limits_hold_and_the_order_is_kept(steps):
    admission = Admission(limit=4, in_flight_limit=2)
    seen: set[int] = set()
    queue: list[str] = []
    for step, number in steps:
        name = str(number)
        if step == "enqueue" and number not in seen:
            seen.add(number)
            queue.append(name)
            admission.enqueue(name)
        elif step == "admit":
            admitted = admission.admit()
            assert admitted == queue[: len(admitted)]
            del queue[: len(admitted)]
        elif step == "started":
            admission.started(name)
        elif step == "gone":
            admission.gone(name)
            if name in queue:
                queue.remove(name)
        assert admission.live <= 4
        assert [admission.position(waiting) for waiting in queue] == list(range(1, len(queue) + 1))
        assert admission.waiting == len(queue)
