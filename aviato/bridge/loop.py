"""The loop thread: one a process, started at first use, forgotten in forked children."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING

from aviato.exceptions import AsyncUsageWarning
from aviato.log import logger
from aviato.system import event_loop, monkey_patches, standard_streams

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

EXIT_SECONDS = 5.0
"""How long all exit hooks together may take."""
SAYING_SECONDS = 1.0
"""Within which the loop says that it took longer: whoever leaves at that moment would take the message along."""

STILL_SECONDS = 1.0
"""How long a fork waits for the loop to stand still."""

SLICE_SECONDS = 1.0
"""Blocking waits look up this often, to notice that the loop thread is gone."""


class LoopThread:
    """An event loop on a daemon thread of its own.

    Attributes:
        is_alive: tells whether the thread still runs.
        ident: of the thread, as `threading.get_ident` has it there.
        closing: it accepts no more work.
        loop: runs there, once it is started.
        leaving: what runs is being ended by the exit hooks, so its failures are no news.
        hooks: what `register_exit` was given.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.closing = False
        self.leaving = False
        self.hooks: list[Callable[[], Awaitable[None]]] = []
        self._started = threading.Event()
        self._failure: Exception | None = None
        self._stop: asyncio.Event | None = None
        self.loop: asyncio.AbstractEventLoop
        # Free-threaded builds start threads in a copy of the caller's context; the loop must not keep a caller's values alive.
        run = contextvars.Context().run
        self._thread = threading.Thread(target=run, args=(self._run,), name="aviato-loop", daemon=True)
        self.is_alive = self._thread.is_alive
        self.ident: int | None = None

    def start(self) -> None:
        """Start the thread and wait until its loop runs.

        Raises:
            RuntimeError: it cannot run, for want of file descriptors for instance, or at the interpreter's end.
        """
        self._thread.start()
        self._started.wait()
        self.ident = self._thread.ident
        if self._failure is not None:
            raise RuntimeError(f"{type(self._failure).__name__}: {self._failure}") from self._failure

    @property
    def usable(self) -> bool:
        """Whether the loop accepts work: alive, not closing, and of this process."""
        return not self.closing and self.is_alive()

    def stop(self, timeout_seconds: float) -> None:
        """Cancel what runs, end the loop and wait for the thread."""
        stop = self._stop
        if stop is not None and self.is_alive():
            try:
                self.loop.call_soon_threadsafe(stop.set)
            except RuntimeError:
                return
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        try:
            runner = asyncio.Runner(loop_factory=event_loop.loop_factory())
            loop = runner.get_loop()  # Where none can be made, it fails before there is a coroutine.
            try:
                main = loop.create_task(self._main())
                while not main.done():
                    # A function of a caller's may raise this. It is told who waits for what has called it, as any exception is;
                    # all other work goes on.
                    with contextlib.suppress(SystemExit, KeyboardInterrupt):
                        loop.run_until_complete(main)
            finally:
                # To wait for its workers it starts a thread, which Python 3.12 forbids at the end; there the interpreter waits.
                with contextlib.suppress(RuntimeError):
                    runner.close()
        except Exception as error:
            if self._started.is_set():
                raise
            self._failure = error
            self._started.set()
        finally:
            self.closing = True

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._started.set()
        try:
            await self._stop.wait()
        finally:
            # A dying loop must not accept work that nobody will finish. What it has accepted begins, or nobody would be told of
            # its end.
            self.closing = True
            await asyncio.sleep(0)


_lock = threading.Lock()
_current: LoopThread | None = None
_inherited: list[LoopThread] = []
_exit_registered = False


def loop_thread() -> LoopThread:
    """The live loop thread of this process; started if there is none.

    Raises:
        SandboxUnavailableError: this process cannot have one, see `monkey_patches`.
    """
    global _current
    if not sys.modules.keys().isdisjoint(monkey_patches.PATCHERS):
        monkey_patches.check()
    standard_streams.hold()
    thread = _current
    if thread is not None and not thread.closing:
        return thread
    with _lock:
        if _current is None or not _current.usable:
            thread = LoopThread()
            thread.start()
            _current = thread
            _register_exit()
        return _current


def running_loop_thread() -> LoopThread | None:
    """The live loop thread, or None; starts nothing."""
    return _current


def register_exit(hook: Callable[[], Awaitable[None]]) -> None:
    """Run an async hook on the loop thread when the interpreter ends; all hooks together have 5 s.

    They run when the main thread and all others that the interpreter waits for have ended. A forked child forgets those of
    its parent.
    """
    loop_thread().hooks.append(hook)


def _register_exit() -> None:
    global _exit_registered
    if _exit_registered:
        return
    _exit_registered = True
    # Callbacks of threading run before the default executor is shut down, the last one registered first, and in the children
    # of multiprocessing, which know no atexit. But they run before threads are waited for, whose work may need us.
    try:
        import concurrent.futures.thread  # noqa: F401

        register = getattr(threading, "_register_atexit", None)
        if register is not None:
            register(_at_end_of_main_thread)
        atexit.register(_at_exit)
    except RuntimeError:  # the interpreter is ending already
        _exit_registered = False


def _at_end_of_main_thread() -> None:
    here = threading.current_thread()
    if all(thread is here or thread.daemon for thread in threading.enumerate()):
        _at_exit()


def _at_exit() -> None:
    thread = _current
    if thread is None or thread.leaving:  # the user would not wait for the hooks
        return
    try:
        run_hooks()
    except KeyboardInterrupt:
        return
    thread.leaving = True
    thread.stop(SLICE_SECONDS)


def run_hooks() -> None:
    """Run the exit hooks now and wait for them, bounded in time; from a signal handler too."""
    thread = _current
    if thread is None or thread.pid != os.getpid() or not thread.usable or not thread.hooks:
        return
    done = threading.Event()
    thread.leaving = True
    thread.loop.call_soon_threadsafe(lambda: thread.loop.create_task(_run_hooks(thread, done)))
    done.wait(EXIT_SECONDS + SAYING_SECONDS)
    thread.leaving = False


async def _run_hooks(thread: LoopThread, done: threading.Event) -> None:
    async def run(hook: Callable[[], Awaitable[None]]) -> None:
        await hook()

    try:
        async with asyncio.timeout(EXIT_SECONDS):
            outcomes = await asyncio.gather(*(run(hook) for hook in thread.hooks), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                logger.warning("clean-up at exit failed: %s", outcome)
    except TimeoutError:
        logger.warning("clean-up at exit took longer than %s s and was left to the server", EXIT_SECONDS)
    finally:
        done.set()


_forks = threading.local()
"""Of a thread that forks: what the loop waits for meanwhile."""


def _hold_still() -> None:
    """Before a fork: have the loop thread stand between two steps.

    The child gets what that thread was in the middle of as it was: modules that are half imported, locks that nobody frees.
    """
    _forks.over = None
    thread = _current
    if thread is None or thread.closing or thread.pid != os.getpid() or threading.get_ident() == thread.ident:
        return
    here, over = threading.Event(), threading.Event()

    def stand() -> None:
        here.set()
        over.wait(STILL_SECONDS)

    try:
        thread.loop.call_soon_threadsafe(stand)
    except RuntimeError:
        return
    here.wait(STILL_SECONDS)  # It may wait for this very thread, which forks in the middle of an import.
    _forks.over = over


def _go_on() -> None:
    over: threading.Event | None = getattr(_forks, "over", None)
    if over is not None:
        over.set()


def _forget() -> None:
    """In a forked child: a new lock, no current thread; the old one is kept so that nothing is finalised or closed."""
    global _lock, _current
    _lock = threading.Lock()
    if _current is not None:
        _inherited.append(_current)
        _current = None


os.register_at_fork(before=_hold_still, after_in_parent=_go_on, after_in_child=_forget)

_warned: set[tuple[str, int]] = set()


def check_blocking(what: str) -> None:
    """Call before a blocking wait: refuses the loop thread, warns once a call site where the caller's own loop runs.

    Raises:
        RuntimeError: on the loop thread, which would wait for itself.
    """
    thread = _current
    if thread is not None and threading.get_ident() == thread.ident:
        raise RuntimeError(f"{what} would block aviato's own event loop; use `await` here")
    if asyncio._get_running_loop() is None or _in_notebook():
        return
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "aviato":
        level, frame = level + 1, frame.f_back
    site = (frame.f_code.co_filename, frame.f_lineno)
    if site not in _warned:
        _warned.add(site)
        message = f"{what} blocks the event loop that runs on this thread; use `await` instead"
        warnings.warn(message, AsyncUsageWarning, stacklevel=level + 1)


def _in_notebook() -> bool:
    """A notebook's cells run on a thread whose loop runs; blocking there is what the user means."""
    module = sys.modules.get("IPython")
    return module is not None and getattr(module, "get_ipython", lambda: None)() is not None
