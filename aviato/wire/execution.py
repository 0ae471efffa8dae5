"""Commands on the wire: what a client posts, and the JSON payloads of the frames that answer."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo, model_validator

from aviato.options import SandboxStatus
from aviato.wire import bounds
from aviato.wire.base import RequestModel, ResponseModel, empty
from aviato.wire.frames import INPUT_BYTES
from aviato.wire.images import ImagePull
from aviato.wire.sandboxes import Base64, CreateSandbox, EnvironmentName, ExecId, QueueInfo, SandboxId, Text

ReaderId = Annotated[str, Field(max_length=64, pattern="^[0-9a-z]*$")]
"""Who reads a command: empty for the one that began it; another one is made up by each that attaches."""

FRAMES_CONTENT_TYPE = "application/vnd.aviato.frames"


LARGEST_CASE_OUTPUT_BYTES = 64 << 20
LARGEST_PROGRAM_OUTPUT_BYTES = 160 << 20
MOST_CASE_INPUT_BYTES = 256 << 20
LONGEST_INPUT = (INPUT_BYTES + 2) // 3 * 4


class TerminalSize(RequestModel):
    """Size of a terminal in characters; also the body of `POST …/execs/{ex}/resize`."""

    width: Annotated[int, Field(ge=1, le=65535)]
    height: Annotated[int, Field(ge=1, le=65535)]


class CaseProgram(RequestModel):
    """A case that is a program of its own."""

    command: Annotated[list[Text], Field(min_length=1)]
    input_bytes: Annotated[int, Field(ge=0, le=MOST_CASE_INPUT_BYTES)] = 0
    """Its share of the command's input, of which each has what follows the share of the one before."""
    output_bytes: Annotated[int, Field(gt=0, le=LARGEST_PROGRAM_OUTPUT_BYTES)] = 64 << 10
    """What is kept of its standard output, and 64 KiB of its standard error; the rest is counted and dropped."""
    required: bool = False
    """Whether no other follows it unless it ends with 0."""


class Cases(RequestModel):
    """What is asked of a command that runs cases: standard output has what process 1 says of each, one JSON a line.

    The command is the program that `aviato.grading` sends, or the first of `programs`. It ends with 0 when there is a verdict
    on each of them.
    """

    timeout_seconds: Annotated[list[Annotated[float, Field(gt=0, allow_inf_nan=False)] | None], Field(min_length=1)]
    """Of each case in turn; None: no limit of its own."""
    token: Annotated[str, Field(min_length=16, max_length=64, pattern="^[0-9a-f]+$")] | None = None
    """What a record of the program begins with; None with `programs`."""
    output_bytes: Annotated[int, Field(gt=0, le=LARGEST_CASE_OUTPUT_BYTES)] = 64 << 10
    """What is kept of each stream of a case; the rest is dropped."""
    reports: bool = False
    """Whether there is a descriptor for what a case has to say of its parts."""
    report_bytes: Annotated[int, Field(gt=0, le=LARGEST_CASE_OUTPUT_BYTES)] | None = None
    """What is kept of what a case says there; None: as of each stream."""
    programs: list[CaseProgram] | None = None
    """Each case is a process of its own."""

    @model_validator(mode="after")
    def _records_or_programs(self) -> Self:
        if (self.token is None) == (self.programs is None):
            raise ValueError("cases have a token, or programs")
        if self.programs is not None:
            if len(self.programs) != len(self.timeout_seconds):
                raise ValueError("there are as many programs as timeouts")
            if sum(program.input_bytes for program in self.programs) > MOST_CASE_INPUT_BYTES:
                raise ValueError(f"all programs together may be given {MOST_CASE_INPUT_BYTES} bytes")
        return self


def _come_by_stdin(cases: Cases | None, request: ValidationInfo) -> Cases | None:
    """Cases have what else they need in the fields before them; where one of those is wrong, that is what is said."""
    given = request.data
    if cases is not None and (given.get("terminal") is not None or not (given.get("stdin") or given.get("input") is not None)):
        raise ValueError("cases come by standard input, and have no terminal")
    if cases is not None and cases.programs is not None and cases.programs[0].command != given.get("command"):
        raise ValueError("the command is the first of its programs")
    return cases


class ExecRequest(RequestModel):
    """Body of `POST /v1/sandboxes/{sb}/execs`. A repeat with the same id and body joins the running command."""

    exec_id: ExecId
    command: Annotated[list[Text], Field(min_length=1)]
    environment_variables: dict[EnvironmentName, Text] = empty(dict)
    working_dir: Text | None = None
    user: Annotated[str, StringConstraints(min_length=1, max_length=bounds.USER_CHARACTERS, pattern=r"^[^\x00\n]*$")] | None = (
        None
    )
    """A name or number, or two with a colon, the second of a group; None: who commands of the sandbox are."""
    stdin: bool = False
    """False: /dev/null. True: a pipe, fed by `POST …/stdin`."""
    input: Annotated[Base64, Field(max_length=LONGEST_INPUT)] | None = None
    """All that stdin gives, then its end."""
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """None: no limit. The client puts its defaults in."""
    detach: bool = False
    """Kept on disk by the server: it waits for no reader, and its result stays until the sandbox has ended and it was taken."""
    terminal: TerminalSize | None = None
    """A terminal of its own in place of all pipes: what it shows is stdout, `POST …/stdin` types."""
    cases: Annotated[Cases | None, AfterValidator(_come_by_stdin)] = None
    """The command runs cases, which come in by standard input."""


class RunRequest(RequestModel):
    """Body of `POST /v1/runs`: a sandbox for one command. A repeat with the same ids and bodies joins it."""

    sandbox: CreateSandbox
    command: ExecRequest


class Accepted(ResponseModel):
    """Payload of ACCEPTED. `command` is told to those who attach, where it is known and not too long."""

    exec_id: str
    command: list[str] | None = None


class Started(ResponseModel):
    """Payload of STARTED; carries what the client then knows of the sandbox without asking."""

    started_at: float | None = None
    startup_seconds: float | None = None
    was_ready: bool = False
    """As of the sandbox."""
    image_pull: ImagePull | None = None
    """As of the sandbox."""
    image_id: str | None = None
    """As of the sandbox."""
    status: SandboxStatus = SandboxStatus.RUNNING
    wide_window: bool = False
    """See `frames.WIDE_WINDOW_BYTES`; False: no more than 1 MiB of a stream is ever on its way."""


class Gap(ResponseModel):
    """Payload of GAP: bytes of a stream that are gone for good."""

    from_offset: int
    to_offset: int
    is_infrastructure: bool = False
    """The server could not keep them; False: so much came after them, or an earlier reader had them."""


class KeepAlive(ResponseModel):
    """Payload of KEEPALIVE: where the sandbox waits, while it does."""

    queue: QueueInfo | None = None


class ExecExit(ResponseModel):
    """Payload of EXIT. `stdout_bytes_total` and its twin say how much the client must have seen for a whole result."""

    returncode: int
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    cancelled: bool = False
    duration_seconds: float
    stdout_bytes_total: int
    stderr_bytes_total: int
    cpu_seconds: float | None = None
    max_rss_bytes: int | None = None
    memory_peak_bytes: int | None = None
    processes_peak: int | None = None


class SignalRequest(RequestModel):
    """Body of `POST …/execs/{ex}/signal`: sent to the command's process group."""

    signal: Annotated[int, Field(ge=1, le=64)]


class ExecAck(RequestModel):
    """What a client has received of one exec: its windows move on, and at `done` its record is freed."""

    sandbox_id: SandboxId
    exec_id: ExecId
    stdout: Annotated[int, Field(ge=0)] = 0
    stderr: Annotated[int, Field(ge=0)] = 0
    done: bool = False
    reader_id: ReaderId = ""


ACKNOWLEDGED_AT_ONCE = 1000
"""How many of a kind may be in one request: a server handles the whole of it before it does anything else."""


class Acknowledgements(RequestModel):
    """Body of `POST /v1/acknowledgements`: batched, idempotent; what is not known any more is ignored."""

    execs: Annotated[list[ExecAck], Field(max_length=ACKNOWLEDGED_AT_ONCE)] = []
    let_go: Annotated[list[SandboxId], Field(max_length=ACKNOWLEDGED_AT_ONCE)] = []
    """Sandboxes whose `Sandbox` object the caller has let go; they may be released under pressure."""
