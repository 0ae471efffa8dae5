"""Runs inside the environment of a peer: does the work that it is told with the peer's script, and times it.

    python harness.py SCRIPT

Standard library only. A script has `create()`, `run(sandbox, argv)`, which returns status and stdout, and `stop(sandbox)`.
Where its author offers it, it has `write(sandbox, path)`, which puts that file of the machine into the sandbox, and
`read(sandbox)`, which returns its bytes. Where there are images, `create(image)` takes one, `oci:` and a directory, unless
`load(layout, archive)` returns what it is called; `snapshot(sandbox)` returns one of what was written, `drop(image)` removes
that, and where there is one call for it, `fork(sandbox, count)` makes sandboxes. `PYTHON` names the interpreter inside, where
it is not the machine's. All of them are plain functions, or all of them are coroutines. One work a line in, one answer a line
out.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib.util
import inspect
import json
import os
import random
import signal
import sys
import tempfile
import time

TRUE = ["/bin/true"]
SLEEP = "/bin/sleep"
FILE_BYTES = 104_858
"""Of each file in a snapshot: a thousand are 100 MiB."""
PATIENCE_SECONDS = 60.0
"""How long a live sandbox may take until its command is seen to run."""
SETTLED_SECONDS = 1.0
"""What is held for as long as it sleeps is asked for, not what its start took."""


def drive(coroutine):
    """Run a coroutine that never waits. So plain functions and coroutines share the works, and plain ones need no loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a plain script waited on a loop")


class Plain:
    """Calls plain functions, many at once in threads."""

    drive = staticmethod(drive)

    @staticmethod
    async def call(function, *arguments):
        return function(*arguments)

    @staticmethod
    def begin(count, at_once, item):
        pool = concurrent.futures.ThreadPoolExecutor(at_once)
        futures = [pool.submit(lambda index=index: drive(item(index))) for index in range(count)]
        pool.shutdown(wait=False)
        return futures

    @staticmethod
    async def end(futures):
        return [future.result() for future in futures]

    @staticmethod
    async def pause(seconds):
        time.sleep(seconds)  # noqa: ASYNC251 - there is no loop


class Awaited:
    """Awaits coroutines, many at once on one loop."""

    def __init__(self):
        self.drive = asyncio.Runner().run

    @staticmethod
    async def call(function, *arguments):
        return await function(*arguments)

    @staticmethod
    def begin(count, at_once, item):
        places = asyncio.Semaphore(at_once)

        async def one(index):
            async with places:
                return await item(index)

        return [asyncio.ensure_future(one(index)) for index in range(count)]

    @staticmethod
    async def end(tasks):
        return await asyncio.gather(*tasks)

    @staticmethod
    async def pause(seconds):
        await asyncio.sleep(seconds)


class Works:
    """Every work, the same for every script. Each returns what is compared: seconds, or bytes."""

    def __init__(self, script, way):
        self.script, self.way = script, way
        self.kept = None
        self.written = False
        self.loaded = None

    async def _create(self):
        return await self.way.call(self.script.create)

    async def _run(self, sandbox, argv):
        status, output = await self.way.call(self.script.run, sandbox, argv)
        if status != 0:
            raise RuntimeError(f"{argv[0]} ended with status {status}")
        return output

    async def _stop(self, sandbox):
        await self.way.call(self.script.stop, sandbox)

    async def _sandbox(self):
        """The one that is kept for several commands."""
        if self.kept is None:
            self.kept = await self._create()
        return self.kept

    async def create(self):
        begin = time.perf_counter()
        sandbox = await self._create()
        await self._run(sandbox, TRUE)
        seconds = time.perf_counter() - begin
        await self._stop(sandbox)
        return seconds

    async def exec(self):
        sandbox = await self._sandbox()
        begin = time.perf_counter()
        await self._run(sandbox, TRUE)
        return time.perf_counter() - begin

    async def batch(self, count, at_once, python):
        python = getattr(self.script, "PYTHON", python)

        async def item(index):
            sandbox = await self._create()
            output = await self._run(sandbox, [python, "-I", "-c", f"print({index} * 3)"])
            await self._stop(sandbox)
            if int(output) != index * 3:
                raise RuntimeError(f"item {index} printed {output!r}")

        begin = time.perf_counter()
        await self.way.end(self.way.begin(count, at_once, item))
        return time.perf_counter() - begin

    async def output(self, size):
        sandbox = await self._sandbox()
        begin = time.perf_counter()
        output = await self._run(sandbox, ["/usr/bin/head", "-c", str(size), "/dev/zero"])
        seconds = time.perf_counter() - begin
        if len(output) != size:
            raise RuntimeError(f"{len(output)} of {size} bytes came")
        return seconds

    async def write(self, source):
        sandbox = await self._sandbox()
        begin = time.perf_counter()
        await self.way.call(self.script.write, sandbox, source)
        seconds = time.perf_counter() - begin
        self.written = True
        return seconds

    async def read(self, source):
        sandbox = await self._sandbox()
        if not self.written:
            await self.write(source)
        begin = time.perf_counter()
        content = await self.way.call(self.script.read, sandbox)
        seconds = time.perf_counter() - begin
        if content != content_of(source):
            raise RuntimeError("what was read is not what was written")
        return seconds

    async def image(self, layout, archive):
        image = await self._image(layout, archive)
        begin = time.perf_counter()
        sandbox = await self.way.call(self.script.create, image)
        await self._run(sandbox, TRUE)
        seconds = time.perf_counter() - begin
        await self._stop(sandbox)
        return seconds

    async def _image(self, layout, archive):
        if self.loaded is None and not hasattr(self.script, "load"):
            self.loaded = f"oci:{layout}"
        if self.loaded is None:
            self.loaded = await self.way.call(self.script.load, layout, archive)
        return self.loaded

    async def _drop(self, image):
        if image is not None and hasattr(self.script, "drop"):
            await self.way.call(self.script.drop, image)

    async def _prepared(self, files, layout, archive):
        """The one that is kept, of an image, with files in it."""
        if self.kept is None:
            self.kept = await self.way.call(self.script.create, await self._image(layout, archive))
            line = f"mkdir /tree; for n in $(seq {files}); do head -c {FILE_BYTES} /dev/urandom >/tree/$n; done"
            await self._run(self.kept, ["/bin/sh", "-c", line])
        return self.kept

    async def snapshot(self, files, layout, archive):
        sandbox = await self._prepared(files, layout, archive)
        begin = time.perf_counter()
        image = await self.way.call(self.script.snapshot, sandbox)
        seconds = time.perf_counter() - begin
        await self._drop(image)
        return seconds

    async def fork(self, files, children, at_once, layout, archive):
        sandbox, image, live = await self._prepared(files, layout, archive), None, []

        async def item(index):
            if image is None:
                child = live[index]
            else:
                child = await self.way.call(self.script.create, image)
                live.append(child)
            await self._run(child, TRUE)

        begin = time.perf_counter()
        if hasattr(self.script, "fork"):
            live += await self.way.call(self.script.fork, sandbox, children)
        else:
            image = await self.way.call(self.script.snapshot, sandbox)
        await self.way.end(self.way.begin(children, at_once, item))
        seconds = time.perf_counter() - begin
        for child in live:
            await self._stop(child)
        await self._drop(image)
        return seconds

    async def memory(self, count, roots):
        """Bytes (PSS) that each of `count` sandboxes adds below this process and `roots`; its command has slept a second."""
        argv = [SLEEP, f"{86_000 + random.random():.9f}"]
        roots = [os.getpid(), *roots]

        async def item(index):
            sandbox = await self._create()
            await self.way.call(self.script.run, sandbox, argv)
            await self._stop(sandbox)

        await self.create()
        before, deadline = resident_bytes(roots, argv), time.monotonic() + PATIENCE_SECONDS
        live = self.way.begin(count, count, item)
        try:
            while len(running(argv)) < count:
                if any(each.done() for each in live) or time.monotonic() > deadline:
                    raise RuntimeError(f"only {len(running(argv))} of {count} sandboxes were alive at once")
                await self.way.pause(0.02)
            await self.way.pause(SETTLED_SECONDS)
            grown = resident_bytes(roots, argv) - before
        finally:
            for pid in running(argv):
                os.kill(pid, signal.SIGKILL)
            await self.way.end(live)
        return grown / count

    async def close(self):
        """Leave nothing; also where whoever asked is gone."""
        if self.kept is not None:
            await self._stop(self.kept)
        if hasattr(self.script, "close"):
            await self.way.call(self.script.close)


def content_of(path):
    with open(path, "rb") as file:
        return file.read()


def processes():
    """Parents and argvs of all processes."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as stat, open(f"/proc/{name}/cmdline", "rb") as line:
                    found[int(name)] = (int(stat.read().rpartition(")")[2].split()[1]), line.read().split(b"\0")[:-1])
            except OSError:
                pass  # gone meanwhile
    return found


def running(argv, found=None):
    """The processes that run exactly this argv."""
    wanted = [part.encode() for part in argv]
    return [pid for pid, (_, given) in (found or processes()).items() if given == wanted]


def resident_bytes(roots, argv):
    """Proportional memory of these processes, all below them, and all that run `argv`, whoever their parent is."""
    found, wanted = processes(), set(roots)
    wanted.update(running(argv, found))
    while more := {pid for pid, (parent, _) in found.items() if parent in wanted and pid not in wanted}:
        wanted |= more
    total = 0
    for pid in wanted:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as lines:
                total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
        except (FileNotFoundError, ProcessLookupError):
            pass  # gone meanwhile
    return total


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a peer prints is no answer
    sys.dont_write_bytecode = True  # beside a script of the repository
    spec = importlib.util.spec_from_file_location("peer_script", sys.argv[1])
    script = importlib.util.module_from_spec(spec)
    works = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if works is None:
                os.chdir(tempfile.gettempdir())
                spec.loader.exec_module(script)
                works = Works(script, Awaited() if inspect.iscoroutinefunction(script.create) else Plain())
            work = getattr(works, asked.pop("work"))
            answer = {"value": works.way.drive(work(**asked))}
        except Exception as error:
            answer = {"failure": f"{type(error).__name__}: {error}"}
        try:
            answers.write(json.dumps(answer) + "\n")
        except BrokenPipeError:
            break
    if works is not None:
        works.way.drive(works.close())


if __name__ == "__main__":
    main()
