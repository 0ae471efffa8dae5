"""The file operations of a sandbox."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoValidationError
from aviato.sandbox_state import begin

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Iterable

    from aviato.bridge.operation import OperationRef
    from aviato.bridge.stream import StreamReader
    from aviato.core.lifecycle import SandboxHandle
    from aviato.results import FileInfo
    from aviato.sandbox_state import SandboxState


class SandboxFiles:
    """Files of a sandbox. A relative path counts from the directory in which commands start.

    What is wrong with a file (missing, a directory, no permission, too large, disk full) is a `SandboxFileError` with
    `filepath` and `reason`, raised from the handle or at the end of the stream.
    """

    _state: SandboxState

    def read_file(self, path: str) -> OperationRef[bytes]:
        """A whole file of up to 256 MiB."""
        return self._file("read", path, lambda files, handle, name: files.read_file(handle, name))

    def read_file_streaming(self, path: str) -> StreamReader[bytes]:
        """A file of any size, fetched while it is iterated; once."""
        name = _path(path)

        def fetch(handle: SandboxHandle) -> AsyncIterator[bytes]:
            return _files().read_chunks(handle, name)  # type: ignore[no-any-return]

        stream: StreamReader[bytes] = _transfer().LazyStream(self._state_in_use(), f"file {name!r}", fetch, text=False)
        return stream

    def write_file(self, path: str, content: bytes, *, mode: int | None = None) -> OperationRef[None]:
        """Replace a file, atomically; directories above it are made. `mode` None keeps it, 0644 for a new file."""
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise TypeError(f"write_file() takes bytes, not {type(content).__name__}; encode text first")
        data, bits = bytes(content), _mode(mode)
        return self._file("write", path, lambda files, handle, name: files.write_file(handle, name, data, mode=bits))

    def write_file_streaming(
        self, path: str, source: Iterable[bytes] | AsyncIterable[bytes], *, mode: int | None = None
    ) -> OperationRef[None]:
        """Replace a file by what a source yields: an iterable, a binary file, or an async iterable of the running loop."""
        chunks, bits = _transfer().source(source), _mode(mode)
        return self._file("write", path, lambda files, handle, name: files.write_chunks(handle, name, chunks, mode=bits))

    def upload(self, local: str | os.PathLike[str], remote: str) -> OperationRef[None]:
        """Copy a local file in, with its permission bits."""
        path = _transfer().local_file(local)
        return self._file("upload to", remote, lambda _, handle, name: _transfer().upload(handle, path, name))

    def download(self, remote: str, local: str | os.PathLike[str]) -> OperationRef[None]:
        """Copy a file out; the local file is there whole or not at all."""
        path = os.fspath(local)
        return self._file("download", remote, lambda _, handle, name: _transfer().download(handle, name, path))

    def list_files(self, path: str = ".") -> OperationRef[list[FileInfo]]:
        """The entries of a directory, by name."""
        return self._file("list", path, lambda files, handle, name: files.list_files(handle, name))

    def stat(self, path: str) -> OperationRef[FileInfo]:
        """What is known of a file."""
        return self._file("stat", path, lambda files, handle, name: files.stat(handle, name))

    def make_directory(self, path: str) -> OperationRef[None]:
        """Make a directory, and those above it."""
        return self._file("make directory", path, lambda files, handle, name: files.make_directory(handle, name))

    def remove(self, path: str, *, recursive: bool = False) -> OperationRef[None]:
        """Remove a file, or with `recursive` a directory and all in it."""
        return self._file("remove", path, lambda files, handle, name: files.remove(handle, name, recursive=recursive))

    def _file(self, verb: str, path: str, work: Any) -> OperationRef[Any]:
        name = _path(path)
        done = self._state_in_use().do(lambda handle: work(_files(), handle, name))
        return begin(done, f"{verb} {name!r} in {self._state.sandbox_id}")

    def _state_in_use(self) -> SandboxState:
        self._state.used = True
        return self._state


def _files() -> Any:
    """The core's file operations, loaded on the loop thread."""
    from aviato.core import files

    return files


def _transfer() -> Any:
    """What reads and writes on the caller's side."""
    from aviato import transfer

    return transfer


def _path(value: str | os.PathLike[str]) -> str:
    path = os.fspath(value)
    if not isinstance(path, str):
        raise TypeError(f"the path must be a str, not {type(path).__name__}")
    if not path or "\0" in path:
        raise AviatoValidationError(f"{path!r} is not a path", field_violations={"path": "empty, or NUL in it"})
    return path


def _mode(value: int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"mode must be an int such as 0o644, not {type(value).__name__}")
    if not 0 <= value <= 0o7777:
        raise AviatoValidationError(f"mode must be 0 to 0o7777, got {value:o}", field_violations={"mode": "out of range"})
    return value
