"""Others' interfaces, kept as they are: SandboxFusion's `POST /run_code`, and `POST /execute_batch` of open-r1's router."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, RootModel, StringConstraints

from aviato.wire.base import RequestModel, ResponseModel
from aviato.wire.sandboxes import Base64, Text

LONGEST_SECONDS = 3600.0

Limit = Annotated[float, Field(gt=0, le=LONGEST_SECONDS, allow_inf_nan=False)]
Path = Annotated[Text, StringConstraints(min_length=1, max_length=4096)]

Language = Literal[
    "python", "cpp", "nodejs", "java", "bash", "perl",
    "go", "go_test", "pytest", "typescript", "jest", "junit", "rust", "php", "csharp", "sql", "cuda", "lua", "R", "D_ut",
    "ruby", "scala", "julia", "kotlin_script", "verilog", "python_gpu", "lean", "swift", "racket",
]  # fmt: skip
"""What clients know. The first row can be run, where the image has it."""


class RunCode(RequestModel):
    """Body of `POST /run_code`. Times are in seconds."""

    code: str
    language: Language
    stdin: str | None = None
    """None: /dev/null."""
    compile_timeout: Limit = 10.0
    run_timeout: Limit = 10.0
    memory_limit_MB: Annotated[int, Field(ge=-1, lt=1 << 31)] = -1
    """Of private writable memory, for each process; 0 and -1 are no limit."""
    files: dict[Path, Base64 | None] = {}
    """Written before, relative to the directory in which the code runs; one that is null is left out."""
    fetch_files: Annotated[list[Path], Field(max_length=256)] = []
    """Read after; one that is not there is left out of the answer."""


class CommandRunResult(ResponseModel):
    """How a compiler or the program itself came to its end."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class RunCodeResult(ResponseModel):
    """Answer of `POST /run_code`. `SandboxError` is for failures of the machine and nothing else."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    compile_result: CommandRunResult | None = None
    run_result: CommandRunResult | None = None
    executor_pod_name: str | None = None
    """Id of the sandbox."""
    files: dict[str, str] = {}
    """In base64."""


class ExecuteBatch(RequestModel):
    """Body of `POST /execute_batch`."""

    scripts: Annotated[list[str], Field(max_length=4096)]
    languages: list[Text] | None = None
    """One for each script; None: all are Python."""
    timeout: Limit = 30.0
    """Of each script, in seconds, counted from its start."""
    request_timeout: Limit | None = None
    """Taken for the sake of the interface: requests to the sandbox are the server's own affair."""


class ScriptValue(ResponseModel):
    """The value of a script's last expression."""

    text: str
    is_main_result: bool = True


class ScriptLogs(ResponseModel):
    """What a script printed."""

    stdout: list[str] = []
    stderr: list[str] = []


class ScriptFault(ResponseModel):
    """What ended a script early."""

    name: str
    value: str
    traceback: str


class ScriptExecution(ResponseModel):
    """How a script ran."""

    results: list[ScriptValue] = []
    logs: ScriptLogs = ScriptLogs()
    error: ScriptFault | None = None
    execution_count: int | None = 1


class ScriptResult(ResponseModel):
    """What came of one script."""

    execution: ScriptExecution | None
    """None: the machine failed, so there is no verdict."""
    exception_str: str | None = None


class BatchResult(RootModel[list[ScriptResult]]):
    """Answer of `POST /execute_batch`, in the order of the scripts."""


class RouterHealth(ResponseModel):
    """Answer of `GET /health`."""

    status: Literal["ok"] = "ok"
