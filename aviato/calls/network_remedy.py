"""What to do about a command that found no network, in a sandbox that was given none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aviato.log import logger
from aviato.values.text import line

if TYPE_CHECKING:
    from aviato.core.lifecycle import SandboxHandle
    from aviato.results import ProcessResult

INDEX_HOSTS = ("pypi.org", "files.pythonhosted.org")
"""Where Python's installers find packages."""
_INSTALLER = re.compile(r"\b(?:pip[\d.]*|uv|pipx|poetry|pdm)\b.*\b(?:install|add|sync|download)\b", re.DOTALL)
_UNREACHED = (
    b"failure in name resolution",
    b"Could not resolve host",
    b"failure resolving",
    b"Name or service not known",
    b"failed to lookup address",
    b"getaddrinfo ENOTFOUND",
    b"getaddrinfo EAI_AGAIN",
    b"unable to resolve host",
    b"bad address '",
)
"""What programs write where no name can be looked up."""
_NO_VERSION = b"(from versions: none)"
"""What pip writes of an index that it cannot reach, where it is not to try again."""
TAIL_BYTES = 4000
_told = False


def remedy(command: str, output: bytes) -> tuple[str, ...] | None:
    """The hosts that a command would have needed; None where the lack of a network is not what it ended by.

    Args:
        command: its words, or a line for a shell.
        output: the end of what it wrote.
    """
    installs = _INSTALLER.search(command) is not None
    if not any(words in output for words in _UNREACHED) and not (installs and _NO_VERSION in output):
        return None
    return INDEX_HOSTS if installs else ("internet",)


def advice(hosts: tuple[str, ...]) -> str:
    """How a sandbox is made that reaches these hosts."""
    mode = '"internet"' if hosts == ("internet",) else str(list(hosts)).replace("'", '"')
    return f"the sandbox has no network: make it with network=NetworkOptions(egress_mode={mode})"


def said(result: ProcessResult, handle: SandboxHandle) -> str:
    """The end of a message about a command, empty where the network is not the matter; an installer's is logged once, too."""
    global _told
    if result.returncode == 0 or _network(handle) != "none":
        return ""
    command = " ".join(result.command)
    hosts = remedy(command, result.stdout_bytes[-TAIL_BYTES:] + result.stderr_bytes[-TAIL_BYTES:])
    if hosts is None:
        return ""
    if hosts == INDEX_HOSTS and not _told:
        _told = True
        logger.warning("%.100s found no host: %s", line(command), advice(hosts))
    return f"; {advice(hosts)}"


def _network(handle: SandboxHandle) -> object:
    if handle.info is not None:
        return handle.info.egress_mode
    return "unknown" if handle.create_fields is None else handle.create_fields.get("egress_mode", "none")
