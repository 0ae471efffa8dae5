"""What a server asks of the files of a sandbox, as process 1 answers it. Standard library only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from aviato.server.supervisor import files, lent, reading, writing
from aviato.server.supervisor.again import Again, Part, Repeated
from aviato.server.supervisor.errors import Refused
from aviato.wire.memory import REFUSED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aviato.grading.inside.loop import Loop
    from aviato.server.supervisor.commands import Commands
    from aviato.server.supervisor.connection import Connection
    from aviato.server.supervisor.transfers import Transfer
    from aviato.server.supervisor.watch import Watch


class FileRequests:
    """Of a supervisor; `program.Supervisor` has the rest, which this uses."""

    commands: Commands
    _loop: Loop
    _watch: Watch
    _again: Again
    _open: dict[int, Transfer | dict[str, Any] | None]

    if TYPE_CHECKING:

        def _work(self, connection: Connection, channel: int, steps: Iterator[float], reply: bool) -> None: ...
        def _reply(self, connection: Connection, channel: int, value: dict[str, Any] | None = None) -> None: ...
        def _close_channel(self, channel: int) -> None: ...

    @property
    def file_operations(self) -> dict[str, Callable[[Connection, int, dict[str, Any]], None]]:
        """By their names."""
        return {
            "stat": self._stat,
            "list": self._list,
            "mkdir": self._mkdir,
            "remove": self._remove,
            "read": self._read,
            "write": self._write,
            "read_tree": self._read_tree,
            "write_tree": self._write_tree,
        }

    def _path(self, request: dict[str, Any]) -> str:
        path: str = request["path"]
        return self.commands.working_dir if path in (".", "./") else os.path.join(self.commands.working_dir, path)

    def _stat(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        self._reply(connection, channel, files.stat_path(self._path(request)))

    def _list(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        self._work(connection, channel, files.list_directory(self._path(request), connection, channel), reply=False)

    def _mkdir(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        path = self._path(request)
        self._watch.disk.take(path, 0)
        files.make_directory(path, request["mode"])
        self._reply(connection, channel)

    def _remove(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        key = request.get("key")

        def steps() -> Iterator[float]:
            if not self._again.is_done(key):
                yield from files.remove(self._path(request), request["recursive"])
                self._again.done(key)
                yield from self._watch.disk.settle()

        self._work(connection, channel, steps(), reply=True)

    def _read(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        path, window = self._path(request), request["window"]
        seen = request.get("offset", 0), request.get("version")
        if (memory := connection.descriptor(request.get("memory"))) is not None:
            try:
                if reading.read_into(memory, path, connection, channel, *seen):
                    return
            finally:
                os.close(memory)
        self._open[channel] = reading.read_file(path, request["max_bytes"], window, connection, channel, *seen)

    def _write(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        if (inode := request.get("memory")) is None:
            transfer = self._begin_write(connection, channel, request)
            if "content" in request:
                transfer.data(request["content"])
                transfer.end()
            return
        if (memory := connection.descriptor(inode)) is None:
            raise Refused("VALIDATION", "no memory came with the request", reason=REFUSED)
        try:
            transfer = self._begin_write(connection, channel, request)
        except BaseException:
            os.close(memory)
            raise
        self._open[channel] = lent.Lent(memory, request["size"], transfer)

    def _begin_write(self, connection: Connection, channel: int, request: dict[str, Any]) -> Transfer:
        waits = not request.keys() & {"memory", "content"}
        answers = writing.Answers(connection, channel, self._close_channel, waits=waits)
        path, disk, key = self._path(request), self._watch.disk, request.get("key")
        transfer: Transfer
        if key is None:
            transfer = writing.Whole(writing.Upload(path, request["mode"], disk), request["size"], answers)
        elif self._again.is_done(key):
            transfer = Repeated(answers)
        else:
            offset = request["offset"]
            upload = self._again.take(key, offset) or writing.Upload(path, request["mode"], disk)
            transfer = Part(self._again, key, upload, offset, request["size"], request["last"], answers)
        self._open[channel] = transfer
        return transfer

    def _read_tree(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        self._open[channel] = reading.read_tree(self._path(request), request["window"], connection, channel)

    def _write_tree(self, connection: Connection, channel: int, request: dict[str, Any]) -> None:
        answers = writing.Answers(connection, channel, self._close_channel)
        key = request.get("key")
        if self._again.is_done(key):
            self._open[channel] = Repeated(answers)
            return
        done = lambda: self._again.done(key)  # noqa: E731
        self._open[channel] = writing.TreeUpload(self._path(request), self._loop, answers, self._watch.disk, done)
