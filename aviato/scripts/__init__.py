"""Scripts that end with their result as an expression, as cells of a notebook do: what runs them inside, and what is read back.

Used on the client's side and by the server. A result counts only with the nonce that was given to the script's own process:
what the script starts knows neither the nonce nor a way to it.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from importlib import resources

RECORD_PATH = ".script_record"
"""Where the record is left, relative to the sandbox's directory."""
MAX_RECORD_BYTES = 2 << 20

_driver = ""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What ended a script early."""

    name: str
    value: str
    traceback: str


@dataclass(frozen=True, kw_only=True)
class Value:
    """How a script came to its end.

    Attributes:
        text: `repr` of the last expression; None if the script does not end with one, or its value is None.
        fault: what ended it early.
    """

    text: str | None = None
    fault: Fault | None = None


def new_nonce() -> str:
    """What makes a record believable."""
    return secrets.token_hex(16)


def command() -> list[str]:
    """The command that runs a script given on stdin."""
    global _driver
    if not _driver:
        _driver = resources.files("aviato.scripts").joinpath("inside.py").read_text(encoding="utf-8")
    return ["python3", "-c", _driver, RECORD_PATH]


def stdin(nonce: str, script: str) -> bytes:
    """What the command reads."""
    return nonce.encode() + script.encode(errors="surrogatepass")


def read(record: bytes, nonce: str) -> Value | None:
    """What a record says; None for one that the script's own process did not write."""
    begin = nonce.encode() + b"\n"
    if not record.startswith(begin):
        return None
    try:
        found = json.loads(record[len(begin) :])
        fault = found.get("fault")
        text = found.get("text")
        parts = {} if fault is None else {name: str(fault[name]) for name in ("name", "value", "traceback")}
        return Value(text=None if text is None else str(text), fault=None if fault is None else Fault(**parts))
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return None
