"""Verdicts of mode `separate` beside those of a bare run: what goes on at the same time, in a loop and in threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aviato.rl import Outcome, Task
from tests.verdicts.test_as_a_module import Row, bare

SLEEPS = "import asyncio\nasync def f(n):\n    await asyncio.sleep(n)\n    return n\n"
QUEUE = (
    "import asyncio\nclass f:\n    def __init__(self): self.q, self.log = asyncio.Queue(), []\n"
    "    async def put(self, n): await self.q.put(n)\n    async def get(self): return await self.q.get()\n"
    "    async def slow(self):\n        try: await asyncio.sleep(30)\n        finally:\n"
    "            await asyncio.sleep(0.01)\n            self.log.append('cleaned')\n"
    "    async def stubborn(self):\n        try: await asyncio.sleep(30)\n"
    "        except asyncio.CancelledError: return 'kept'\n"
)
THREADS = "from concurrent.futures import ThreadPoolExecutor\nimport threading, time\n"
ROWS = {
    "a limit of the test's": (
        SLEEPS,
        "try: await asyncio.wait_for(f(30), 0.1)\nexcept asyncio.TimeoutError: pass\nelse: assert False",
    ),
    "several at a time": (
        SLEEPS,
        "t = time.monotonic()\nassert await asyncio.gather(*[f(0.5) for _ in range(8)]) == [0.5] * 8\n"
        "assert time.monotonic() - t < 3",
    ),
    "in the order in which they end": (
        SLEEPS,
        "assert [await each for each in asyncio.as_completed([f(1), f(0.01)])] == [0.01, 1]",
    ),
    "the first of several": (
        SLEEPS,
        "done, rest = await asyncio.wait([asyncio.ensure_future(f(n)) for n in (20, 0.05)], return_when='FIRST_COMPLETED')\n"
        "assert [each.result() for each in done] == [0.05]\nfor each in rest: each.cancel()",
    ),
    "one that waits for another": (
        QUEUE,
        "box = f()\nassert await asyncio.gather(box.get(), box.get(), box.put(1), box.put(2)) == [1, 2, None, None]",
    ),
    "a task that is cancelled": (
        QUEUE,
        "box = f()\ntask = asyncio.create_task(box.slow())\nawait asyncio.sleep(0.05)\ntask.cancel()\n"
        "try: await task\nexcept asyncio.CancelledError: pass\nelse: assert False\nassert box.log == ['cleaned']",
    ),
    "a task that does not let itself be cancelled": (
        QUEUE,
        "task = asyncio.create_task(f().stubborn())\nawait asyncio.sleep(0.05)\ntask.cancel()\nassert await task == 'kept'",
    ),
    "exceptions among results": (
        "async def f(n):\n    if n: raise KeyError(n)\n    return n",
        "found = await asyncio.gather(f(0), f(1), return_exceptions=True)\nassert found[0] == 0 and found[1].args == (1,)",
    ),
    "a task in the background": (
        "import asyncio\nlog = []\nasync def tick():\n    while True:\n        log.append(1)\n"
        "        await asyncio.sleep(0.01)\n"
        "async def f(n):\n    if n == 0: f.task = asyncio.create_task(tick())\n    return len(log)",
        "await f(0)\nawait asyncio.sleep(0.3)\nassert await f(1) > 3",
    ),
    "an asynchronous iterator beside another": (
        "import asyncio\nasync def f(n):\n    for i in range(n):\n        await asyncio.sleep(0.01)\n        yield i",
        "async def all_of(n): return [each async for each in f(n)]\n"
        "assert await asyncio.gather(all_of(3), all_of(2)) == [[0, 1, 2], [0, 1]]",
    ),
    "a context beside another": (
        "import asyncio\nclass f:\n    lock = None\n    async def __aenter__(self):\n        f.lock = f.lock or "
        "asyncio.Lock()\n"
        "        await f.lock.acquire()\n        return self\n    async def __aexit__(self, *_): f.lock.release()\n",
        "log = []\nasync def one(n):\n    box = f()\n    async with box:\n        log.append(n)\n"
        "        await asyncio.sleep(0.02)\n"
        "        log.append(n)\nawait asyncio.gather(one(1), one(2))\nassert log == [1, 1, 2, 2]",
    ),
}
IN_THREADS = {
    "threads at the same time": (
        "import time\ndef f(n):\n    time.sleep(n)\n    return n",
        "t = time.monotonic()\nwith ThreadPoolExecutor(8) as pool: assert list(pool.map(f, [0.5] * 8)) == [0.5] * 8\n"
        "assert time.monotonic() - t < 3",
    ),
    "threads that meet": (
        "import threading\nb = threading.Barrier(2)\ndef f(n): return b.wait(20) >= 0",
        "with ThreadPoolExecutor(2) as pool: assert list(pool.map(f, [1, 2])) == [True, True]",
    ),
    "a thread that waits for the main one": (
        "import queue\nclass f:\n    def __init__(self): self.q = queue.Queue()\n    def put(self, n): self.q.put(n)\n"
        "    def get(self): return self.q.get(timeout=20)",
        "box, found = f(), []\nthread = threading.Thread(target=lambda: found.append(box.get()))\nthread.start()\n"
        "time.sleep(0.1)\nbox.put(3)\nthread.join()\nassert found == [3]",
    ),
    "the main one that waits for a thread": (
        "import threading\nclass f:\n    def __init__(self): self.e = threading.Event()\n    def go(self): self.e.set()\n"
        "    def wait(self): return self.e.wait(20)",
        "box = f()\ntimer = threading.Timer(0.1, lambda: box.go())\ntimer.start()\nassert box.wait() is True",
    ),
    "a counter of many": (
        "import threading\nclass f:\n    def __init__(self): self.lock, self.n = threading.Lock(), 0\n"
        "    def add(self):\n        with self.lock: self.n += 1",
        "box = f()\nadd = lambda: [box.add() for _ in range(50)]\nthreads = [threading.Thread(target=add) for _ in range(4)]\n"
        "for each in threads: each.start()\nfor each in threads: each.join()\nassert box.n == 200",
    ),
    "what is a thread's own": (
        "import threading\nown = threading.local()\ndef f(n):\n    own.n = getattr(own, 'n', 0) + n\n    return own.n",
        "found = []\ndef two(n): found.append((f(n), f(n)))\n"
        "for n in (1, 2):\n    each = threading.Thread(target=two, args=(n,))\n    each.start()\n    each.join()\n"
        "assert found == [(1, 2), (2, 4)]",
    ),
    "objects of several threads": (
        "class f:\n    def __init__(self, n): self.n = n",
        "with ThreadPoolExecutor(8) as pool: assert [each.n for each in pool.map(f, range(100))] == list(range(100))",
    ),
    "exceptions of threads": (
        "def f(n): raise KeyError(n)",
        "with ThreadPoolExecutor(2) as pool:\n    error = pool.submit(f, 3).exception()\nassert type(error) is KeyError",
    ),
}
WRONG = {
    "several at a time": "import asyncio, time\nasync def f(n):\n    time.sleep(n)\n    return n\n",
    "a task that is cancelled": QUEUE.replace("'cleaned'", "'other'"),
    "a limit of the test's": SLEEPS.replace("sleep(n)", "sleep(0)"),
    "threads at the same time": "import threading, time\nL = threading.Lock()\n"
    "def f(n):\n    with L: time.sleep(n)\n    return n",
    "threads that meet": "def f(n): return False",
    "a counter of many": IN_THREADS["a counter of many"][0].replace("+= 1", "+= 2"),
}


def source_of(name: str) -> str:
    if name in IN_THREADS:
        return THREADS + IN_THREADS[name][1]
    body = ROWS[name][1].replace("\n", "\n    ")
    return f"import asyncio, time\nasync def main():\n    {body}\nasyncio.run(main())"


ALL = {name: (code, source_of(name)) for name, (code, _) in {**ROWS, **IN_THREADS}.items()}


@pytest.mark.parametrize("name", ALL)
def test_the_table_is_right_about_a_plain_python(name: str, tmp_path: Path) -> None:
    assert bare(Row(*ALL[name]), tmp_path)


def test_the_verdict_is_a_bare_runs(outcomes: Callable[..., list[Outcome]]) -> None:
    found = outcomes([Task(code=code, tests=[test], grading="separate", code_names=["f"]) for code, test in ALL.values()])
    assert not {name: (one.verdict, one.message) for name, one in zip(ALL, found, strict=True) if not one.passed}


def test_wrong_code_does_not_pass(outcomes: Callable[..., list[Outcome]]) -> None:
    tasks = [Task(code=code, tests=[ALL[name][1]], grading="separate", code_names=["f"]) for name, code in WRONG.items()]
    found = outcomes(tasks)
    assert not {name: one.message for name, one in zip(WRONG, found, strict=True) if one.passed is not False}
