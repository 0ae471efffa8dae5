"""Parameters and attributes that there are not: a caller who names them as another tool does is told what they are here."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)

_IMAGE = ("container_image",)
_VARIABLES = ("env", "environment_variables", "env_var")
_SECONDS = ("timeout_seconds", "graceful_shutdown_seconds", "exec_timeout_seconds", "max_lifetime_seconds")
_COMMAND_SECONDS = ("timeout_seconds", "exec_timeout_seconds")
_DIRECTORY = ("cwd", "working_dir")
_DETACH = ("detach", "detached")
_TAGS = ("tags", "annotations")
SYNONYMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("image", "container", "docker_image", "base_image", "template", "template_id", "from_image"), _IMAGE),
    **dict.fromkeys(("env", "envs", "env_vars", "envvars", "environ", "environment", "variables"), _VARIABLES),
    **dict.fromkeys(("timeout", "timeout_s", "timeout_sec", "timeout_secs", "time_limit", "timeout_ms"), _SECONDS),
    "timeout_seconds": ("timeout", "exec_timeout_seconds", "max_lifetime_seconds"),
    **dict.fromkeys(("exec_timeout", "command_timeout", "cmd_timeout"), _COMMAND_SECONDS),
    **dict.fromkeys(("lifetime", "max_lifetime", "ttl", "max_age", "max_duration"), ("max_lifetime_seconds",)),
    **dict.fromkeys(("idle_timeout", "idle"), ("idle_timeout_seconds",)),
    **dict.fromkeys(("request_timeout", "http_timeout"), ("request_timeout_seconds",)),
    **dict.fromkeys(("cwd", "workdir", "work_dir", "working_directory", "directory", "working_dir"), _DIRECTORY),
    **dict.fromkeys(("cmd", "argv", "entrypoint", "program"), ("command",)),
    **dict.fromkeys(("memory", "mem", "mem_limit", "memory_mb", "memory_limit", "ram"), ("resources",)),
    **dict.fromkeys(
        ("cpu", "cpus", "cpu_count", "nano_cpus", "gpu", "gpus", "disk", "disk_size", "limits", "pids_limit", "processes"),
        ("resources",),
    ),
    **dict.fromkeys(("volumes", "volume", "mounts", "mount", "binds", "files"), ("mounted_files",)),
    **dict.fromkeys(("network_mode", "networking", "internet", "egress", "egress_mode", "block_network"), ("network",)),
    **dict.fromkeys(("allow_internet_access", "network_options", "allow_net"), ("network",)),
    **dict.fromkeys(("name", "label", "labels", "tag", "metadata"), _TAGS),
    **dict.fromkeys(("url", "server", "server_url", "host", "endpoint", "domain", "api_url", "address"), ("base_url",)),
    **dict.fromkeys(("detach", "detached", "background", "bg", "daemon"), _DETACH),
    **dict.fromkeys(("input", "stdin_data", "stdin_text"), ("stdin",)),
    **dict.fromkeys(("uid", "as_user", "username"), ("user",)),
    **dict.fromkeys(("max_output", "output_limit", "max_output_size"), ("max_output_bytes",)),
    **dict.fromkeys(("secret",), ("secrets",)),
    **dict.fromkeys(
        ("port", "expose", "exposed_ports", "publish", "encrypted_ports", "unencrypted_ports"), ("ports", "exposed_ports")
    ),
    **dict.fromkeys(("requirements", "pip_packages", "dependencies", "python_packages", "pip_install"), ("packages",)),
    **dict.fromkeys(("concurrency", "max_workers", "n_jobs", "num_workers", "max_concurrent", "workers"), ("max_concurrency",)),
    **dict.fromkeys(("task", "items"), ("tasks",)),
    **dict.fromkeys(("test", "test_cases", "cases", "testcases"), ("tests",)),
    **dict.fromkeys(("solution", "source", "completion", "response"), ("code",)),
    **dict.fromkeys(("expected", "answer", "output"), ("expected_output", "expected")),
    **dict.fromkeys(("width_chars", "cols", "columns"), ("width",)),
    **dict.fromkeys(("rows", "lines"), ("height",)),
}
"""Names that other tools have for a parameter → ours, of which the ones are meant that the function has."""
_INSTEAD = {
    "shell": "; write the command as ['bash', '-c', …]",
    "capture_output": "; output is always captured",
    "text": "; output is text, and its bytes are there too",
    "api_key": "; set AVIATO_API_KEY",
    "token": "; set AVIATO_API_KEY",
}

STOP, EXEC, RETURNCODE = ("stop",), ("exec",), ("returncode",)
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("kill", "terminate", "close", "shutdown", "destroy", "delete_sandbox", "aclose"), ("stop", "cancel")),
    **dict.fromkeys(("execute", "exec_run", "run_code", "run_command", "commands", "process", "command"), EXEC),
    **dict.fromkeys(("read", "read_text", "files", "filesystem", "fs", "get_file", "open", "cat"), ("read_file", "stdout")),
    **dict.fromkeys(("write", "write_text", "put_file"), ("write_file", "stdin")),
    **dict.fromkeys(("put", "copy_to", "upload_file", "put_archive", "cp"), ("upload",)),
    **dict.fromkeys(("get", "copy_from", "download_file", "get_archive"), ("download",)),
    **dict.fromkeys(("ls", "listdir", "list_dir", "list_directory"), ("list_files",)),
    **dict.fromkeys(("mkdir", "makedirs", "make_dir"), ("make_directory",)),
    **dict.fromkeys(("rm", "unlink", "rmtree", "delete_file", "remove_file"), ("remove",)),
    **dict.fromkeys(("logs", "get_logs"), ("stream_logs",)),
    **dict.fromkeys(("pty", "terminal", "bash", "attach_terminal"), ("shell",)),
    **dict.fromkeys(("id", "name", "object_id"), ("sandbox_id", "exec_id")),
    **dict.fromkeys(("state", "is_running", "running"), ("status", "poll")),
    **dict.fromkeys(("get_host", "tunnels", "ip", "url", "urls"), ("service_urls",)),
    **dict.fromkeys(("exit_code", "exitcode", "return_code", "code", "exit_status", "rc"), RETURNCODE),
    **dict.fromkeys(("output", "out", "text", "results"), ("stdout",)),
    **dict.fromkeys(("err", "error", "errors"), ("stderr",)),
    **dict.fromkeys(("duration", "elapsed", "time"), ("duration_seconds",)),
    **dict.fromkeys(("communicate", "join"), ("result",)),
}
"""Names that other tools have for a method or an attribute → ours."""


def suggests(function: Callable[P, T]) -> Callable[P, T]:
    """A function that answers a parameter that it has not with the one that was meant."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # From the inside of it.
            problem = _problem(function, args, kwargs)
            if problem is None:
                raise
        raise TypeError(problem)

    return call


def suggesting(cls: C) -> C:
    """A class whose constructor `suggests`."""
    cls.__init__ = suggests(cls.__init__)  # type: ignore[misc]
    return cls


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that are no parameters.

    Raises:
        TypeError: one is none; the message says what was meant.
    """
    there = list(known)
    unknown = sorted(set(given).difference(there))
    if unknown:
        raise TypeError(_no_parameter(what, unknown, there))


def _problem(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """What is wrong with a call, beyond what Python says of it."""
    import inspect

    parameters = dict(inspect.signature(function).parameters)
    first = next(iter(parameters), None)
    if first == "self":
        del parameters[first]
        args = args[1:]
    what = _shown(function)
    unknown = [name for name in kwargs if name not in parameters]
    if unknown:
        return _no_parameter(what, unknown, list(parameters))
    by_place = [one for one in parameters.values() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if len(args) > len(by_place):
        by_name = [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY]
        if not by_place and by_name:
            example = "container_image" if "container_image" in by_name else by_name[0]
            return f"{what} takes its arguments by name, as in {example}={args[0]!r:.80}"
        if "command" in parameters and all(isinstance(word, str) for word in args):
            return f"{what} takes the command as one list: write {list(args)}"
    return None


def _shown(function: Callable[..., Any]) -> str:
    owner, _, name = function.__qualname__.rpartition(".")
    return f"{owner.rpartition('.')[2]}()" if name == "__init__" else f"{name}()"


def _no_parameter(what: str, unknown: list[str], known: list[str]) -> str:
    return f"{what} has no parameter {', '.join(map(repr, unknown))}{meant_names(unknown, known)}"


def meant_names(unknown: list[str], known: list[str]) -> str:
    """The end of a message about names that are no parameters: what was meant by the first that can be told."""
    from aviato.values.suggestions import closest

    for name in unknown:
        if name in _INSTEAD:
            return _INSTEAD[name]
        first, *others = SYNONYMS.get(name, ("",))
        meant = [f"{one}=" for one in ([first] if first in known else others) if one in known]
        if not meant and (found := closest(name, known)) is not None:
            meant = [f"{found}="]
        if not meant and "defaults" in known and (default := _default((name, first, *others))):
            return f"; write defaults=SandboxDefaults({default}=…)"
        if meant:
            return f"; did you mean {' or '.join(meant)}?"
    return ""


OF_DEFAULTS = ("container_image", "environment_variables", "exec_timeout_seconds", "resources", "network", "secrets", "tags")
"""What other tools' sessions and clients are given, and ours have by `SandboxDefaults`."""


def _default(names: Iterable[str]) -> str | None:
    return next((name for name in names if name in OF_DEFAULTS), None)


class Suggesting:
    """Answers an attribute that there is not with the one that was meant. Type checkers do not see it."""

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if any(name in vars(kind) for kind in type(self).__mro__):
                return object.__getattribute__(self, name)  # A property of ours raised it: let it say why.
            raise AttributeError(self._no_attribute(name), name=name, obj=self)

    def _no_attribute(self, name: str) -> str:
        return no_attribute(self, name)


def no_attribute(owner: object, name: str, otherwise: str = "") -> str:
    """The message of an AttributeError; `otherwise` ends it where no attribute was meant."""
    message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name.startswith("_"):
        return message
    from aviato.values.suggestions import meant

    return message + (meant(name, (one for one in dir(owner) if not one.startswith("_")), ATTRIBUTES) or otherwise)
