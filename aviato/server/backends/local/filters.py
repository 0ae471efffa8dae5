"""Compiles the rules to what the kernel takes, by libseccomp. Runs in the server: process 1s get the bytes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aviato.server.backends.local.rules import Rule

PACKAGE = "sudo apt install libseccomp2"
BINARY_TREE = 2


class FilterUnavailable(Exception):
    """No filter can be compiled here.

    Attributes:
        remedy: the line that repairs it, if there is one.
    """

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy


def compile_rules(rules: tuple[Rule, ...]) -> bytes:
    """The program for this architecture; calls of any other end the process.

    Raises:
        FilterUnavailable: libseccomp or its Python door is missing.
    """
    from aviato.installation import packages_command

    try:
        import pyseccomp
    except ImportError as error:
        raise FilterUnavailable(
            f"the Python package pyseccomp cannot be imported: {error}", packages_command("pyseccomp")
        ) from error
    except (RuntimeError, OSError) as error:
        raise FilterUnavailable(f"libseccomp.so.2 is not there: {error}", PACKAGE) from error
    try:
        made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        made.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.KILL_PROCESS)
        _sort(pyseccomp, made)
        for rule in rules:
            conditions = [_condition(pyseccomp, *condition) for condition in rule.where]
            for call in rule.calls:
                if (called := number(call)) >= 0:
                    made.add_rule(_action(pyseccomp, rule.answer), called, *conditions)
        with open(os.memfd_create("filter", os.MFD_CLOEXEC), "w+b", buffering=0) as file:
            made.export_bpf(file)
            file.seek(0)
            return file.read()
    except OSError as error:
        raise FilterUnavailable(f"libseccomp could not make the filter: {error}") from error


def _sort(pyseccomp: Any, made: Any) -> None:
    try:
        made.set_attr(pyseccomp.Attr.CTL_OPTIMIZE, BINARY_TREE)
    except OSError:
        pass  # Before libseccomp 2.5: a longer way to the same answer.


def _action(pyseccomp: Any, answer: int) -> int:
    from aviato.server.backends.local.rules import ASK

    action: int = pyseccomp.NOTIFY if answer == ASK else pyseccomp.ERRNO(answer)
    return action


def _condition(pyseccomp: Any, argument: int, value: int, mask: int | None) -> Any:
    if mask is None:
        return pyseccomp.Arg(argument, pyseccomp.GE, value)
    return pyseccomp.Arg(argument, pyseccomp.MASKED_EQ, mask, value)


def number(call: str) -> int:
    """Of a call on this architecture; negative where it has none."""
    import pyseccomp

    from aviato.server.backends.local.rules import LATE_NUMBERS

    found: int = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, call)
    return found if found >= 0 else LATE_NUMBERS.get(call, -1)
