"""Sandboxes for model-written code, built for reinforcement learning.

Every operation returns one handle that works with both `.result()` and `await`. Names are resolved at first use, so that
`import aviato` stays cheap, loads no third-party library and starts no thread.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncFunctionError",
    "AsyncUsageWarning",
    "AviatoAuthenticationError",
    "AviatoError",
    "AviatoValidationError",
    "FileInfo",
    "FunctionError",
    "FunctionSerializationError",
    "GradeCase",
    "GradeResult",
    "Image",
    "ImageInfo",
    "NetworkOptions",
    "OperationCancelledError",
    "OperationRef",
    "OperationTimeoutError",
    "Pool",
    "Process",
    "ProcessResult",
    "PushInfo",
    "RemoteFunction",
    "ResourceOptions",
    "ResourceUsage",
    "Sandbox",
    "SandboxCommandTimeoutError",
    "SandboxDefaults",
    "SandboxError",
    "SandboxExecutionError",
    "SandboxFailedError",
    "SandboxFileError",
    "SandboxImageError",
    "SandboxNotFoundError",
    "SandboxNotRunningError",
    "SandboxRequestTimeoutError",
    "SandboxResourceExhaustedError",
    "SandboxSnapshotError",
    "SandboxStatus",
    "SandboxTerminatedError",
    "SandboxTimeoutError",
    "SandboxUnavailableError",
    "Secret",
    "Serialization",
    "Session",
    "Snapshot",
    "StreamReader",
    "StreamWriter",
    "TerminalResult",
    "TerminalSession",
    "WandbAuthError",
    "__version__",
    "as_completed",
    "results",
    "stop_on_sigterm",
    "wait",
]

_HOMES = {
    "AsyncClient": "aio.async_client",
    "FileInfo": "results",
    "GradeCase": "results",
    "GradeResult": "results",
    "Image": "building.image",
    "ImageInfo": "results",
    "NetworkOptions": "options",
    "OperationRef": "bridge.operation",
    "Pool": "api.pool",
    "Process": "api.process",
    "ProcessResult": "results",
    "PushInfo": "results",
    "RemoteFunction": "functions.remote",
    "ResourceOptions": "options",
    "ResourceUsage": "results",
    "Sandbox": "api.sandbox",
    "SandboxDefaults": "defaults",
    "SandboxStatus": "options",
    "Secret": "options",
    "Serialization": "options",
    "Session": "api.session",
    "Snapshot": "results",
    "StreamReader": "bridge.stream",
    "StreamWriter": "bridge.writer",
    "TerminalResult": "results",
    "TerminalSession": "api.terminal",
    "as_completed": "api.waiting",
    "results": "api.waiting",
    "stop_on_sigterm": "api.sigterm",
    "wait": "api.waiting",
}
"""Where a name lives; the rest are exceptions."""

if TYPE_CHECKING:
    from aviato import exceptions as exceptions
    from aviato.aio.async_client import AsyncClient as AsyncClient
    from aviato.api.pool import Pool as Pool
    from aviato.api.process import Process as Process
    from aviato.api.sandbox import Sandbox as Sandbox
    from aviato.api.session import Session as Session
    from aviato.api.sigterm import stop_on_sigterm as stop_on_sigterm
    from aviato.api.terminal import TerminalSession as TerminalSession
    from aviato.api.waiting import as_completed as as_completed
    from aviato.api.waiting import results as results
    from aviato.api.waiting import wait as wait
    from aviato.bridge.operation import OperationRef as OperationRef
    from aviato.bridge.stream import StreamReader as StreamReader
    from aviato.bridge.writer import StreamWriter as StreamWriter
    from aviato.building.image import Image as Image
    from aviato.defaults import SandboxDefaults as SandboxDefaults
    from aviato.exceptions import AsyncFunctionError as AsyncFunctionError
    from aviato.exceptions import AsyncUsageWarning as AsyncUsageWarning
    from aviato.exceptions import AviatoAuthenticationError as AviatoAuthenticationError
    from aviato.exceptions import AviatoError as AviatoError
    from aviato.exceptions import AviatoValidationError as AviatoValidationError
    from aviato.exceptions import FunctionError as FunctionError
    from aviato.exceptions import FunctionSerializationError as FunctionSerializationError
    from aviato.exceptions import OperationCancelledError as OperationCancelledError
    from aviato.exceptions import OperationTimeoutError as OperationTimeoutError
    from aviato.exceptions import SandboxCommandTimeoutError as SandboxCommandTimeoutError
    from aviato.exceptions import SandboxError as SandboxError
    from aviato.exceptions import SandboxExecutionError as SandboxExecutionError
    from aviato.exceptions import SandboxFailedError as SandboxFailedError
    from aviato.exceptions import SandboxFileError as SandboxFileError
    from aviato.exceptions import SandboxImageError as SandboxImageError
    from aviato.exceptions import SandboxNotFoundError as SandboxNotFoundError
    from aviato.exceptions import SandboxNotRunningError as SandboxNotRunningError
    from aviato.exceptions import SandboxRequestTimeoutError as SandboxRequestTimeoutError
    from aviato.exceptions import SandboxResourceExhaustedError as SandboxResourceExhaustedError
    from aviato.exceptions import SandboxSnapshotError as SandboxSnapshotError
    from aviato.exceptions import SandboxTerminatedError as SandboxTerminatedError
    from aviato.exceptions import SandboxTimeoutError as SandboxTimeoutError
    from aviato.exceptions import SandboxUnavailableError as SandboxUnavailableError
    from aviato.exceptions import WandbAuthError as WandbAuthError
    from aviato.functions.remote import RemoteFunction as RemoteFunction
    from aviato.options import NetworkOptions as NetworkOptions
    from aviato.options import ResourceOptions as ResourceOptions
    from aviato.options import SandboxStatus as SandboxStatus
    from aviato.options import Secret as Secret
    from aviato.options import Serialization as Serialization
    from aviato.results import FileInfo as FileInfo
    from aviato.results import GradeCase as GradeCase
    from aviato.results import GradeResult as GradeResult
    from aviato.results import ImageInfo as ImageInfo
    from aviato.results import ProcessResult as ProcessResult
    from aviato.results import PushInfo as PushInfo
    from aviato.results import ResourceUsage as ResourceUsage
    from aviato.results import Snapshot as Snapshot
    from aviato.results import TerminalResult as TerminalResult


if not TYPE_CHECKING:  # Type checkers know each name, and that there is no other.

    def __getattr__(name: str) -> Any:
        """Load a public name at its first use."""
        if name == "exceptions":
            return import_module("aviato.exceptions")
        if name not in __all__:
            raise AttributeError(_unknown(name))
        value = getattr(import_module(f"aviato.{_HOMES.get(name, 'exceptions')}"), name)
        globals()[name] = value
        return value


_SYNONYMS = {"Client": "AsyncClient", "AsyncSandbox": "AsyncClient", "Box": "Sandbox", "Container": "Sandbox"}
"""Names that other packages have for what is here."""


def _unknown(name: str) -> str:
    message = f"module {__name__!r} has no attribute {name!r}"
    # Python asks for a module of ours here too, before it imports it.
    if name.startswith("_") or any(os.path.exists(f"{home}/{name}{end}") for home in __path__ for end in ("", ".py")):
        return message
    from aviato.values.suggestions import meant

    return message + meant(name, __all__, _SYNONYMS)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """`results` is a function for users and the name of a module of ours: importing that must not hide the function."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name == "results" and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
