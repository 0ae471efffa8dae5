"""What operations give back: frozen dataclasses without pydantic."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Literal

from aviato.values.parameters import Suggesting
from aviato.values.representation import Hidden, beginning, named, short
from aviato.values.text import line


@dataclass(frozen=True, kw_only=True)
class ResourceUsage:
    """What a command used; None where the backend cannot tell.

    Attributes:
        cpu_seconds: user and system time of the command and its waited-for children.
        max_rss_bytes: largest resident set of any one process of the command.
        memory_peak_bytes: peak of the command's control group.
        processes_peak: most processes at once.
    """

    cpu_seconds: float | None = None
    max_rss_bytes: int | None = None
    memory_peak_bytes: int | None = None
    processes_peak: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessResult(Suggesting):
    """How a command ended. A returncode other than 0 is a result, not an error.

    Attributes:
        stdout_bytes, stderr_bytes: collected output: all of it, or head + tail if it passed the cap.
        stdout_offset, stderr_offset: where the collected output begins: 0, or the offset given to `attach`.
        stdout_head_bytes, stderr_head_bytes: how many of the collected bytes are head; the rest is tail.
        stdout_bytes_total, stderr_bytes_total: how much the command wrote.
        returncode: exit code, or 128 + n if signal n killed it.
        signal: the signal that killed it, or None.
        timed_out: killed at its `timeout_seconds`.
        oom_killed: killed by the sandbox's own memory limit.
        duration_seconds: from its start to its exit, by process 1's monotonic clock.
    """

    returncode: int
    command: tuple[str, ...]
    stdout_bytes: bytes = field(default=b"", repr=False)
    stderr_bytes: bytes = field(default=b"", repr=False)
    stdout_bytes_total: int = 0
    stderr_bytes_total: int = 0
    stdout_head_bytes: int | None = field(default=None, repr=False)
    stderr_head_bytes: int | None = field(default=None, repr=False)
    stdout_offset: int = field(default=0, repr=False)
    stderr_offset: int = field(default=0, repr=False)
    duration_seconds: float = 0.0
    timed_out: bool = False
    signal: int | None = None
    oom_killed: bool = False
    usage: ResourceUsage = ResourceUsage()

    def __repr__(self) -> str:
        shown: dict[str, object] = {"returncode": self.returncode}
        shown |= {name: True for name in ("timed_out", "oom_killed") if getattr(self, name)}
        if self.signal is not None:
            shown["signal"] = self.signal
        shown["command"] = Hidden(beginning(" ".join(self.command), _SHOWN_CHARACTERS))
        for name in ("stdout", "stderr"):
            data: bytes = getattr(self, f"{name}_bytes")
            text = data[: 4 * _SHOWN_CHARACTERS].decode(errors="replace")
            more = f" of {getattr(self, f'{name}_bytes_total')} bytes" if len(data) > _SHOWN_CHARACTERS else ""
            shown[name] = Hidden(beginning(text, _SHOWN_CHARACTERS) + more)
        shown["duration_seconds"] = Hidden(f"{self.duration_seconds:.3g}")
        return named(type(self).__name__, shown)

    @cached_property
    def stdout(self) -> str:
        """Standard output as text (`errors="replace"`), with a marker where bytes were left out."""
        return _text(self.stdout_bytes, self.stdout_bytes_total - self.stdout_offset, self.stdout_head_bytes)

    @cached_property
    def stderr(self) -> str:
        """Standard error as text (`errors="replace"`), with a marker where bytes were left out."""
        return _text(self.stderr_bytes, self.stderr_bytes_total - self.stderr_offset, self.stderr_head_bytes)

    @property
    def stdout_truncated(self) -> bool:
        """Whether bytes of standard output were left out."""
        return self.stdout_bytes_total > len(self.stdout_bytes)

    @property
    def stderr_truncated(self) -> bool:
        """Whether bytes of standard error were left out."""
        return self.stderr_bytes_total > len(self.stderr_bytes)


@dataclass(frozen=True, kw_only=True)
class TerminalResult:
    """How a command on a terminal ended.

    Attributes:
        returncode: exit code, or 128 + n if signal n killed it.
        signal: the signal that killed it, or None.
        duration_seconds: from its start to its exit, by process 1's monotonic clock.
    """

    returncode: int
    signal: int | None = None
    duration_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """One file of a sandbox.

    Attributes:
        path: absolute path inside the sandbox.
        size_bytes: size of a regular file.
        mode: permission bits.
        mtime: seconds since the epoch.
        type: `file`, `directory`, `symlink` or `other`.
        link_target: of a symlink, as written; else None.
    """

    path: str
    size_bytes: int
    mode: int
    mtime: float
    type: str
    link_target: str | None = None

    def __repr__(self) -> str:
        shown: dict[str, object] = {"path": self.path, "size_bytes": self.size_bytes, "mode": Hidden(f"0o{self.mode:03o}")}
        return named(type(self).__name__, {**shown, "mtime": self.mtime, "type": self.type, "link_target": self.link_target})


@dataclass(frozen=True, kw_only=True)
class ImageInfo(Suggesting):
    """An image that a server has, fetches, or could not get. Times are seconds since the epoch.

    Attributes:
        reference: as it was asked for; in a listing its first name, or its id.
        status: `here`, `pulling` or `failed`.
        image_id: `sha256:…` of its configuration, as Docker's image id; None before it is here.
        names: references in full that mean it on the server.
        message: why it could not be had, for people; else None.
        reason: the same, for programs, such as `unknown_tag`.
        retryable: whether that may pass by itself.
        pull_seconds: how long it took to come; None if it was there when it was asked for.
        joined: whether somebody else had asked for it before, and it came for both: metrics count a pull once.
        layers: how many different ones it has.
        size_bytes: of its layers, unpacked.
        created_at: as the image says, or None.
        pulled_at: when the server got it.
        used_at: when a sandbox last began or ended with it, or when it was pulled.
        pinned: whether it stays, whatever is pruned.
        architecture: as OCI names it, such as `amd64`.
        working_dir, user, environment: what its commands have, unless you say otherwise.
        entrypoint, command: what other tools run in it; aviato does not run them by itself.
        labels: what its makers say of it.
        shell: words by which a Dockerfile that begins with it runs a text; empty: `/bin/sh -c`.
        done_bytes, total_bytes: downloaded, and of how many; None until that is known.
        layers_done, layers_total: how many layers are there, and of how many.
    """

    reference: str
    status: Literal["here", "pulling", "failed"]
    image_id: str | None = None
    names: tuple[str, ...] = ()
    message: str | None = None
    reason: str | None = None
    retryable: bool = False
    pull_seconds: float | None = None
    joined: bool = False
    layers: int = 0
    size_bytes: int = 0
    created_at: float | None = None
    pulled_at: float | None = None
    used_at: float | None = None
    pinned: bool = False
    architecture: str | None = None
    working_dir: str | None = None
    user: str | None = None
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    shell: tuple[str, ...] = ()
    done_bytes: int = 0
    total_bytes: int | None = None
    layers_done: int = 0
    layers_total: int = 0

    def __repr__(self) -> str:
        shown: dict[str, object] = {"reference": self.reference, "status": self.status, "image_id": self.image_id}
        return named(type(self).__name__, {**shown, "size_bytes": self.size_bytes, "message": self.message})


@dataclass(frozen=True, kw_only=True)
class PushInfo(Suggesting):
    """How far an image is on its way into a registry.

    Attributes:
        reference: where it goes.
        status: `pushing` or `done`.
        layers_done, layers_total: how many layers are there, and of how many.
        sent_bytes: of layers that were not there, so far.
        layer_done_bytes, layer_total_bytes: sent of the layer that is on its way, and of how many; None while one is packed.
    """

    reference: str
    status: Literal["pushing", "done"]
    layers_done: int = 0
    layers_total: int = 0
    sent_bytes: int = 0
    layer_done_bytes: int = 0
    layer_total_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot(Suggesting):
    """What a sandbox had written at one moment: an image that others can begin with. Times are seconds since the epoch.

    Attributes:
        snapshot_id: to be given as `container_image=`.
        name: that its maker gave it, which means it too; or None.
        sandbox_id: whose files it has.
        image: that the sandbox was made of.
        image_id: `sha256:…` of the snapshot as an image of the server.
        size_bytes: of its own layer and the image's below, unpacked; None where nobody has counted the files yet, which
            `list_snapshots` does: a snapshot takes the same time whatever there is.
        created_at: when it was taken.
        expires_at: when the server removes it; None: when you do.
    """

    snapshot_id: str
    name: str | None = None
    sandbox_id: str
    image: str
    image_id: str
    size_bytes: int | None = field(compare=False)  # It may be told of the same one before and after it is known.
    created_at: float
    expires_at: float | None = None

    def __repr__(self) -> str:
        shown: dict[str, object] = {"snapshot_id": self.snapshot_id, "sandbox_id": self.sandbox_id}
        return named(type(self).__name__, {**shown, "name": self.name, "size_bytes": self.size_bytes})


class CaseStatus(StrEnum):
    """What became of one test, in the words of pytest and unittest."""

    PASSED = "passed"
    FAILED = "failed"
    """Its own assertion or exception, or a success that its strict mark forbids."""
    ERROR = "error"
    """Not the test but what comes before or after it: a fixture, `setUp`, `tearDown`, an import."""
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    """It failed as its mark says that it would."""
    XPASSED = "xpassed"
    """It passed although its mark says that it would fail, and that mark is not strict."""
    NOT_RUN = "not_run"
    """It was found, and never began."""


@dataclass(frozen=True, kw_only=True)
class GradeCase:
    """One test of a grade.

    Attributes:
        name: as its framework names it; what is no printable character in it is escaped, here and in the message.
        passed: it ran and passed.
        status: what became of it; where it is not given, `passed` or `failed` as `passed` says.
        message: why not.
        duration_seconds: of this test.
    """

    name: str
    passed: bool
    status: CaseStatus = None  # type: ignore[assignment]  # only until __post_init__ has looked at `passed`
    message: str = ""
    duration_seconds: float = 0.0

    __repr__ = short

    def __post_init__(self) -> None:
        found = self.status or (CaseStatus.PASSED if self.passed else CaseStatus.FAILED)
        object.__setattr__(self, "status", CaseStatus(found))
        object.__setattr__(self, "name", line(self.name))
        object.__setattr__(self, "message", line(self.message))


@dataclass(frozen=True, kw_only=True)
class GradeResult:
    """What a grade came to.

    Attributes:
        passed: the verdict.
        cases: the tests of pytest, unittest or an in-process script, as they were collected; empty for any other command.
            Their names are those on the framework's own lines: pytest's node ids, unittest's ids.
        exec_result: how the grader's command ended; with `timed_out` or `oom_killed` the verdict is not passed.
        mode: `separate`: no process of the grader ran code of the policy. `in_process`: the tests share their process with it,
            and code that is out to deceive them can.
        message: one printable line on why it did not pass.
        left_out: files that a pattern or a directory found, or that the policy changed, and that were not taken over, since a
            grader's tools would load them by themselves.
    """

    passed: bool
    cases: list[GradeCase]
    exec_result: ProcessResult = field(repr=False)
    mode: str
    message: str = ""
    left_out: tuple[str, ...] = ()

    def __repr__(self) -> str:
        cases = Hidden(f"<{sum(case.passed for case in self.cases)} of {len(self.cases)} passed>")
        shown: dict[str, object] = {"passed": self.passed, "cases": cases, "mode": self.mode, "message": self.message}
        return named(type(self).__name__, shown if not self.left_out else {**shown, "left_out": self.left_out})

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", line(self.message))

    @property
    def statuses(self) -> dict[str, CaseStatus]:
        """Name of a test → its status, as lists of FAIL_TO_PASS and PASS_TO_PASS are read. Of several of a name, the worst."""
        found: dict[str, CaseStatus] = {}
        for case in self.cases:
            known = found.get(case.name, case.status)
            found[case.name] = max(known, case.status, key=_WORSE.index)
        return found


_SHOWN_CHARACTERS = 50
"""Of a command and of each stream, in a repr."""
_WORSE = (
    *(CaseStatus.PASSED, CaseStatus.XPASSED, CaseStatus.XFAILED, CaseStatus.SKIPPED, CaseStatus.NOT_RUN),
    *(CaseStatus.ERROR, CaseStatus.FAILED, CaseStatus.OUT_OF_MEMORY, CaseStatus.TIMED_OUT),
)


def _text(data: bytes, total: int, head: int | None) -> str:
    left_out = total - len(data)
    if left_out <= 0 or head is None:
        return data.decode(errors="replace")
    first, last = data[:head], data[head:]
    cut = _incomplete_tail(first)
    lead = _continuation_head(last)
    left_out += cut + lead
    before, after = first[: len(first) - cut], last[lead:]
    return f"{before.decode(errors='replace')}\n[… {left_out} bytes left out …]\n{after.decode(errors='replace')}"


def _incomplete_tail(data: bytes) -> int:
    """How many bytes at the end begin a UTF-8 character that is not whole."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if length > back else 0
    return 0


def _continuation_head(data: bytes) -> int:
    """How many bytes at the start continue a character whose first byte is gone."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count
