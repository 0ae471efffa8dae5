"""The table of commands. It owns "at most once": an id that ran is never run again. Standard library only."""

from __future__ import annotations

import binascii
import errno
import os
import signal
from typing import TYPE_CHECKING, Any

from aviato.server.supervisor import spawn, takeover, terminal, tree, usage
from aviato.server.supervisor.births import Births
from aviato.server.supervisor.cases import CaseCommand
from aviato.server.supervisor.command import Command, Subscriber, fingerprint
from aviato.server.supervisor.errors import FILE_REASONS, Refused, file_error, unknown_exec
from aviato.server.supervisor.programs import ProgramsCommand
from aviato.server.supervisor.spawner import directly
from aviato.wire.frames import FrameType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aviato.grading.inside.leftover import Drain
    from aviato.grading.inside.loop import Loop
    from aviato.server.supervisor.connection import Connection
    from aviato.server.supervisor.keeper import Keepers
    from aviato.server.supervisor.successive import SuccessiveCommand
    from aviato.server.supervisor.takeover import State

REMEMBERED = 16384
"""Ids of finished and acknowledged commands that are still refused a second run, the newest of them."""
REAP_A_TURN = 256
HELLO_EXECS = 4096
LEFT_BYTES = 32 << 20
"""What the results may take that a sandbox leaves behind, the newest of them."""
MOST_LENT = 64
"""Commands that hold lent memory at a time: each is a descriptor."""
BADNESS = 500
"""Added to a command's for the kernel's choice of whom to kill, in thousandths of the machine's memory."""


class Commands:
    """Every command that runs or whose result is not acknowledged."""

    def __init__(self, loop: Loop, proc: int) -> None:
        self.environment: dict[str, str] = {}
        self.working_dir = "/workspace"
        self._unmade: OSError | None = None
        self.nice = 0
        self.on_main_exit: Callable[[Command], None] = _ignore
        self.on_reaped: Callable[[], None] = _nothing
        self.on_started: Callable[[], None] = _nothing
        self.on_exited: Callable[[Command, int], None] = _pass
        self.place: Callable[[Callable[[], Any]], Any] = directly
        """Runs what starts a command where its limits hold."""
        self.births = Births(proc)
        self.start_program: spawn.Start = self.births.start
        self.new_mark: Callable[[int], int] = tree.new_mark
        self.keepers: Keepers | None = None
        """Start the commands and tell of their ends, where there are no namespaces to mark them by."""
        self.attended = False
        """Whether commands are looked at from time to time as long as any process lives."""
        self.ending = False
        """No command starts any more, and one that a signal ends gets no result: the sandbox ended it."""
        self._loop = loop
        self._proc = proc
        self._null: int
        self.badness = _badness()
        """Of commands, for the kernel's choice of whom to kill."""
        self._terminals: int | None
        self._by_id: dict[str, Command] = {}
        self._by_pid: dict[int, Command] = {}
        self._by_mark: dict[int, str] = {}
        self._past: dict[str, int | None] = {}
        self._drains: set[Drain] = set()
        self._lent: list[Command] = []
        """Those that were lent memory, and may have it yet."""
        self._last_end: float

    def begin(self, own_badness: bool) -> None:
        """Open what every command needs, before there is any; `own_badness`: this process does not have its maker's."""
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        if own_badness:
            self.badness = _badness()
        self._terminals = terminal.open_directory()
        self._last_end = self._loop.now()

    def take_over(self, state: State, connection: Connection) -> None:
        """Go on with the commands that compiled code has begun."""
        self._null = takeover.NULL
        self._terminals = takeover.TERMINALS if takeover.is_open(takeover.TERMINALS) else None
        self._last_end = state.last_end
        self._past.update(state.past)
        self._by_mark.update({mark: exec_id for exec_id, mark in state.past.items()})
        for taken in state.commands:
            command = self._new(taken.spec, taken.mark)
            self._by_id[command.exec_id] = command
            self._by_mark[taken.mark] = command.exec_id
            if taken.pid is None:
                command.take_over(taken)
                continue
            self._run(command, taken.mark, spawn.Spawned(taken.pid, spawn.Ends(None, taken.stdout.fd, taken.stderr.fd)))
            command.take_over(taken)
            limit: float | None = taken.spec["timeout_seconds"]
            command.limit(None if limit is None else taken.started + limit - self._loop.now(), self._too_late)
            command.subscriber = Subscriber(command, connection, taken.channel, taken.stdout.sent, taken.stderr.sent)

    def __iter__(self) -> Iterator[Command]:
        return iter(list(self._by_id.values()))

    def summary(self) -> dict[str, Any]:
        """What HELLO says of them."""
        newest = list(self._by_id.values())[-HELLO_EXECS:]
        return {
            command.exec_id: {
                "state": "running" if command.result is None else "ended",
                "stdout": command.outputs[0].end,
                "stderr": command.outputs[1].end,
                "main": command.main,
            }
            for command in newest
        }

    def subscribe(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        """Start the command if it is new, and stream it to this channel.

        Raises:
            Refused: unknown, in conflict, or its directory is missing.
        """
        memory = connection.descriptor(request.get("memory"))
        try:
            if self._subscribe(connection, channel, request, memory):
                memory = None
        finally:
            if memory is not None:
                os.close(memory)

    def _subscribe(self, connection: Connection, channel: int, request: dict[str, Any], memory: int | None) -> bool:
        """See `subscribe`; whether the command has taken the memory."""
        exec_id, spec = request["exec_id"], request.get("spec")
        lent = False
        command = self._by_id.get(exec_id)
        if command is None:
            if self.ending:
                return False  # ENDED is on its way and answers every channel.
            if spec is None or exec_id in self._past:
                raise unknown_exec(exec_id)
            command = self._start(spec)
            lent = memory is not None and self._lend(command, memory)
        elif spec is not None and fingerprint(spec) != command.fingerprint:
            message = f"{exec_id!r} was used before for another command"
            raise Refused("REQUEST_ID_CONFLICT", message, reason="request_id_conflict")
        connection.send_json(FrameType.ACCEPTED, {"exec_id": exec_id}, channel=channel)
        connection.send_json(FrameType.STARTED, {}, channel=channel)
        offsets = (request["stdout"], request["stderr"])
        command.listen(Subscriber(command, connection, channel, *offsets, known=offsets, has_lent=lent))
        return lent

    def _lend(self, command: Command, memory: int) -> bool:
        """Give a command memory for large output; False where it has no use for it, or too many have some."""
        self._lent = [one for one in self._lent if one.outputs[0].has_memory]
        if len(self._lent) >= MOST_LENT or not command.lend(memory):
            return False
        self._lent.append(command)
        return True

    def unsubscribe(self, connection: Connection, channel: int | None) -> None:
        """The channel, or the whole connection, listens no more."""
        for command in self._by_id.values():
            if command.subscriber is not None and command.subscriber.is_on(connection, channel):
                command.listen(None)

    def find(self, exec_id: str) -> Command:
        """A command on record.

        Raises:
            Refused: there is none.
        """
        command = self._by_id.get(exec_id)
        if command is None:
            raise unknown_exec(exec_id)
        return command

    def acknowledge(self, exec_id: str, stdout: int, stderr: int, done: bool) -> None:
        """Bytes, or with `done` the whole result, have arrived for good."""
        command = self._by_id.get(exec_id)
        if command is None:
            return
        command.acknowledge(stdout, stderr)
        if done and command.result is not None:
            del self._by_id[exec_id]
            command.give_back()
            self._past[exec_id] = command.mark
            while len(self._past) > REMEMBERED:
                del self._past[next(iter(self._past))]

    def unconfirmed(self) -> Iterator[bytes]:
        """The results that nobody has confirmed, a line each, the newest first."""
        room = LEFT_BYTES
        for command in reversed(list(self._by_id.values())):
            if command.result is None or command.silenced or command.main:
                continue
            line = command.left_behind()
            room -= len(line)
            if room < 0:
                return
            yield line

    def cancelled(self, exec_id: str) -> None:
        """The caller gives a command up: if it runs, that is how it ended."""
        command = self._by_id.get(exec_id)
        if command is not None and command.running:
            command.cancelled = True
            command.give_up()

    def kill_but_main(self) -> Iterator[float]:
        """A job that gives all commands up but the main one, and kills all that is none of its descendants."""
        for command in self:
            if not command.main:
                self.cancelled(command.exec_id)
        marks = [command.mark for command in self if command.main and command.running]
        yield from tree.kill_others(self._proc, marks[0] if marks else None)
        while self.reap():
            yield True
        for command in self:
            if not command.main:
                yield from self._reclaim(command)

    def used_until(self, now: float, result_seconds: float) -> float:
        """When a command ran last: `now` if one runs, and up to `result_seconds` later where a result was not taken yet."""
        if any(command.running for command in self._by_id.values()):
            return now
        return min(now, self._last_end + result_seconds) if self._by_id else self._last_end

    def hang_up(self) -> None:
        """Hang up the terminals of commands that run."""
        for command in self:
            if command.running:
                command.hang_up()

    def all_sent(self, main_too: bool) -> bool:
        """Whether all output is read and sent to those who listen; with `main_too`, someone listened to the main command."""
        for command in self._by_id.values():
            if command.unfinished:
                return False
            if main_too and command.main and not (command.silenced or command.delivered):
                return False
            if command.subscriber is not None and command.subscriber.queued:
                return False
        return True

    def kill(self, exec_id: str) -> Iterator[float]:
        """A job that kills everything that a command started and that still lives, also long after its own exit."""
        command = self._by_id.get(exec_id)
        mark = command.mark if command is not None else self._past.get(exec_id)
        if mark is not None:
            yield from tree.kill_marked(self._proc, mark, lambda: self._by_mark.get(mark) == exec_id)
        while self.reap():
            yield True  # The dead still count as processes.
        if command is not None:
            yield from self._reclaim(command)

    def _reclaim(self, command: Command) -> Iterator[float]:
        """A job that has the end of a command's process told to us, once it was killed.

        Its tracer is told first, and one of another command could keep that to itself for as long as it lives: it is killed.
        """
        pid, pause = command.pid, tree.TAKE_SECONDS
        while pid is not None and self._by_pid.get(pid) is command and tree.tracer_of(self._proc, pid) is not None:
            yield pause
            pause = tree.PAUSE_SECONDS
            tree.kill_tracer(self._proc, pid)
            while self.reap():
                yield True

    def input_files(self) -> set[tuple[int, int]]:
        """Device and number of each file in memory that is a program's input: nobody inside made it or can write to it."""
        found = [command.input_file for command in self._by_id.values() if isinstance(command, ProgramsCommand)]
        return {file for file in found if file is not None}

    def out_of_memory(self, mark: int) -> bool:
        """Kill all of a command, which has taken too much; whether there is one of this mark."""
        exec_id = self._by_mark.get(mark)
        if exec_id is None:
            return False
        command = self._by_id.get(exec_id)
        if command is not None and command.running and command.mark == mark:
            command.oom_killed = True
        self._loop.start(self.kill(exec_id))
        return True

    def kill_all(self, why: str) -> None:
        """Kill all commands; those that run say why on stderr."""
        for command in self:
            if command.running:
                command.last_words = why
                command.give_up()
        tree.signal_all(signal.SIGKILL)

    def reap(self) -> bool:
        """Collect the dead, the orphans included, and a bounded number a turn; True if there may be more."""
        for _ in range(REAP_A_TURN):
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return False
            if os.WIFSTOPPED(status):
                # A child can make its parent its tracer, unasked. It is not over, and has no business with us.
                os.kill(pid, signal.SIGKILL)
                continue
            if self.keepers is not None and self.keepers.reaped(pid) and os.WIFSIGNALED(status):
                # Killed by a command of another keeper, if not by us: what it kept belongs to nobody now.
                self._loop.start(tree.kill_marked(self._proc, tree.NOBODY, lambda: True))
            command = self._by_pid.pop(pid, None)
            if command is not None:
                self._exited(command, status, used)
            self.on_reaped()
        return True

    def _exited(self, command: Command, status: int, used: Any) -> None:
        self.on_exited(command, status)
        command.silenced = self.ending and os.WIFSIGNALED(status)
        command.reaped(status, used)

    def work_in(self, path: str) -> None:
        """Commands start in this directory; it is made if it is not there."""
        self.working_dir, self._unmade = path, None
        try:
            _make_directory(path)
        except OSError as error:
            self._unmade = error

    def _directory(self, spec: dict[str, Any]) -> str:
        """Where a command starts.

        Raises:
            Refused: it names none, and there is no directory for such commands.
        """
        if spec["working_dir"]:
            return os.path.join(self.working_dir, spec["working_dir"])
        if self._unmade is not None:
            number = self._unmade.errno or 0
            why = "Not a directory" if number == errno.EEXIST else os.strerror(number)
            raise file_error(self.working_dir, FILE_REASONS.get(number, "file"), f"working_dir cannot be made: {why}")
        return self.working_dir

    def _start(self, spec: dict[str, Any]) -> Command:
        command = self._start_programs(spec) if _runs_programs(spec) else self._start_process(spec)
        if command.running:
            if (given := spec.get("input")) is not None:
                command.stdin.write(0, binascii.a2b_base64(given), True, _ignore)
            command.limit(spec["timeout_seconds"], self._too_late)
        return command

    def _start_programs(self, spec: dict[str, Any]) -> Command:
        """Have it on record: each of its programs, the first too, starts when its input has come."""
        directory = self._directory(spec)
        failure = spawn.enter(directory, "")
        os.chdir("/")
        if failure is not None:
            raise file_error(directory, "file", "nothing more can be opened")
        command = ProgramsCommand(self._loop, self._proc, spec, tree.NOBODY, self._over, self._renew)
        self._by_id[command.exec_id] = command
        command.begin(self._drains, usage.own_peak_bytes())
        return command

    def _start_process(self, spec: dict[str, Any]) -> Command:
        mark, spawned = self._launch(spec)
        command = self._new(spec, mark)
        self._by_id[command.exec_id] = command
        if isinstance(spawned, spawn.Failure):
            command.failed(spawned)
            return command
        self._run(command, mark, spawned)
        return command

    def _new(self, spec: dict[str, Any], mark: int) -> Command:
        if spec.get("cases") is not None:
            return CaseCommand(self._loop, self._proc, spec, mark, self._over, self._renew)
        return Command(self._loop, self._proc, spec, mark, self._over)

    def _renew(self, command: SuccessiveCommand) -> None:
        self._loop.start(self._renewal(command))

    def _renewal(self, command: SuccessiveCommand) -> Iterator[float]:
        """A job: another process for the cases that the last one has left, once nothing of that lives."""
        yield from self.kill(command.exec_id)
        try:
            if not (self.ending or command.given_up):
                if not command.may_begin():
                    return
                mark, spawned = self._launch(command.next_spec, command.open_input())
                if isinstance(spawned, spawn.Failure):
                    command.not_started(spawned)
                    return
                command.mark = mark
                self._run(command, mark, spawned)
                return
        except (OSError, Refused):
            pass  # Its verdicts so far are what there is.
        command.end()

    def _launch(self, spec: dict[str, Any], given: int | None = None) -> tuple[int, spawn.Spawned | spawn.Failure]:
        """Start a process; `given`: what it reads instead of a pipe. It is closed here."""
        try:
            failure = spawn.enter(self._directory(spec), spec["command"][0])
            if failure is not None:
                return -1, failure
            mark, spawned = self.place(lambda: self._begin(spec, given))
            if isinstance(spawned, spawn.Failure) and spawned.for_now:
                while self.reap():
                    pass
                mark, spawned = self.place(lambda: self._begin(spec, given))
        finally:
            os.chdir("/")
            if given is not None:
                os.close(given)
        return mark, spawned

    def _run(self, command: Command, mark: int, spawned: spawn.Spawned) -> None:
        # A number comes back only when its namespace is gone: whoever had it before has no process left.
        self._by_mark[mark] = command.exec_id
        if self.keepers is not None:
            self.keepers.watch(mark, lambda status, used: self._exited(command, status, used))
        else:
            self._by_pid[spawned.pid] = command
        command.attended = self.attended
        command.started(spawned, self._drains, usage.own_peak_bytes())
        if self.nice:
            # By its number this process would be asked, while it waits for the answer; see `by_number`.
            _lower(os.PRIO_PROCESS if self.keepers is None else os.PRIO_PGRP, spawned.pid, self.nice)
        self._offer(spawned.pid)
        self.on_started()

    def _offer(self, pid: int) -> None:
        """Where the machine itself runs out of memory, commands go before supervisors, servers and trainers."""
        try:
            fd = os.open(f"{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return
        try:
            os.write(fd, self.badness)
        except OSError:
            pass
        finally:
            os.close(fd)

    def _begin(self, spec: dict[str, Any], given: int | None) -> tuple[int, spawn.Spawned | spawn.Failure]:
        if self.keepers is not None:
            spawned = self._spawn(spec, given, self.keepers.start)
            return self.keepers.newest, spawned
        try:
            mark = self.new_mark(self._proc)
        except OSError as error:
            return -1, spawn.Failure(126, f"{spec['command'][0]}: no namespace to mark it with: {error.strerror}")
        return mark, self._spawn(spec, given, self.start_program)

    def _spawn(self, spec: dict[str, Any], given: int | None, start: spawn.Start) -> spawn.Spawned | spawn.Failure:
        environment = {**self.environment, **spec["environment"]}
        size = spec.get("terminal")
        if size is not None:
            environment = {**terminal.ENVIRONMENT, **environment}
            return spawn.spawn(
                spec["command"], environment, terminal.terminal(size, self._terminals, self.keepers is not None), start
            )
        cases = spec.get("cases")
        if given is not None:
            connect = spawn.pipes(False, given)
        elif cases is None:
            connect = spawn.pipes(spec["stdin"], self._null)
        else:
            connect = spawn.case_pipes(cases["reports"])
        return spawn.spawn(spec["command"], environment, connect, start)

    def _too_late(self, command: Command) -> None:
        if command.running:
            command.timed_out = True
            command.give_up()
            self._loop.start(self.kill(command.exec_id))

    def _over(self, command: Command) -> None:
        self._last_end = self._loop.now()
        if command.main:
            self.on_main_exit(command)


def _runs_programs(spec: dict[str, Any]) -> bool:
    """Whether its cases are programs."""
    cases = spec.get("cases")
    return cases is not None and cases.get("programs") is not None


def _badness() -> bytes:
    """What commands have where this process has what it has."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return str(BADNESS).encode()
    try:
        return str(min(1000, int(os.read(fd, 32)) + BADNESS)).encode()
    finally:
        os.close(fd)


def _make_directory(path: str) -> None:
    """Make a directory and those above it. `os.makedirs` calls itself for each, and a path may have two thousand."""
    if os.path.isdir(path):
        return
    for end in [place for place, character in enumerate(path) if character == "/" and place] + [len(path)]:
        try:
            os.mkdir(path[:end])
        except FileExistsError:
            continue
    if not os.path.isdir(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def _lower(kind: int, number: int, nice: int) -> None:
    try:
        os.setpriority(kind, number, nice)
    except OSError:
        pass


def _ignore(_: object) -> None:
    """Until someone cares."""


def _pass(command: Command, status: int) -> None:
    """Until someone cares."""


def _nothing() -> None:
    """Until someone cares."""
