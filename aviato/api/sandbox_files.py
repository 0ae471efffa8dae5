"""The file operations of a sandbox."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from aviato import defaults as checks
from aviato.calls.file_arguments import file_content, file_mode, file_path, link_choice, local_path

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterable, AsyncIterator, Iterable
    from typing import Literal

    from aviato.bridge.operation import OperationRef
    from aviato.bridge.stream import StreamReader
    from aviato.calls.sandbox_state import SandboxState
    from aviato.core.lifecycle import SandboxHandle
    from aviato.progress import Told
    from aviato.results import FileInfo


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
        name = file_path(path)

        def fetch(handle: SandboxHandle) -> AsyncIterator[bytes]:
            return _files().read_chunks(handle, name)  # type: ignore[no-any-return]

        stream: StreamReader[bytes] = _transfer().LazyStream(self._state_in_use(), f"file {name!r}", fetch, text=False)
        return stream

    def write_file(self, path: str, content: bytes, *, mode: int | None = None) -> OperationRef[None]:
        """Replace a file, atomically; directories above it are made. `mode` None keeps it, 0644 for a new file."""
        data, bits = file_content(content), file_mode(mode)
        return self._file("write", path, lambda files, handle, name: files.write_file(handle, name, data, mode=bits))

    def write_file_streaming(
        self, path: str, source: Iterable[bytes] | AsyncIterable[bytes], *, mode: int | None = None
    ) -> OperationRef[None]:
        """Replace a file by what a source yields: an iterable, a binary file, or an async iterable of the running loop."""
        chunks, bits = _transfer().source(source), file_mode(mode)

        def write(files: Any, handle: SandboxHandle, name: str) -> Any:
            return _transfer().written(files.write_chunks(handle, name, chunks, mode=bits), chunks)

        return self._file("write", path, write)

    def upload(self, local: str | os.PathLike[str], remote: str, *, progress: Told = None) -> OperationRef[None]:
        """Copy a local file or directory tree in, with permission bits; the sandbox's side changes once all has come.

        `remote` is the name that the copy gets, as with `cp -T` or `rsync -a local/ remote/`: into a directory that is there
        the tree is merged, files and links are replaced by those of the same name, and the rest stays. Links are copied as
        links, modification times of a tree are kept, hard links become files of their own. FIFOs, sockets and devices are left
        out with a warning by `logging`.

        Args:
            local: file or directory.
            remote: path of the copy.
            progress: how far it is, as of `evaluate`; a callable is called with (bytes done, bytes in all) on the event loop's
                thread. Of a tree, bytes are those of its archive, and how many there are in all is None.

        Raises:
            OSError: from the handle, for what is wrong with the local side.
        """
        path = local_path(local)
        checks.progress(progress)
        return self._file("upload to", remote, lambda _, handle, name: _copies().upload(handle, path, name, progress=progress))

    def download(
        self,
        remote: str,
        local: str | os.PathLike[str],
        *,
        outside_links: Literal["refuse", "skip"] = "refuse",
        progress: Told = None,
    ) -> OperationRef[None]:
        """Copy a file or directory tree out, with permission bits less the umask; the local side changes once all has come.

        `local` is the name that the copy gets; a directory is merged as by `upload()`. Nothing is ever written outside it, and
        no link is followed on the way.

        Args:
            remote: file or directory; a link to one is followed.
            local: path of the copy. The directory above it must exist.
            outside_links: a link in the tree that may lead out of it (an absolute target, too many `..`, or `..` after a name)
                is an error, or left out with a warning by `logging`.
            progress: as of `upload()`; how many bytes there are in all is None.

        Raises:
            SandboxFileError: from the handle; reason `hostile_archive` names an entry that no honest tree has.
            OSError: from the handle, for what is wrong with the local side.
        """
        path, links = local_path(local), link_choice(outside_links)
        checks.progress(progress)

        def copy(_: Any, handle: SandboxHandle, name: str) -> Any:
            return _copies().download(handle, name, path, outside_links=links, progress=progress)

        return self._file("download", remote, copy)

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
        name = file_path(path)
        state = self._state_in_use()
        return state.begin(lambda handle: work(_files(), handle, name), f"{verb} {name!r} in {state.sandbox_id}")

    def _state_in_use(self) -> SandboxState:
        self._state.used = True
        return self._state


@cache
def _files() -> Any:
    """The core's file operations, loaded on the loop thread."""
    from aviato.core import files

    return files


def _copies() -> Any:
    """The core's copies from and to the local disk."""
    from aviato.core import transfer

    return transfer


def _transfer() -> Any:
    """Streams and sources on the caller's side."""
    from aviato.calls import transfer

    return transfer
