"""The filter of system calls, in the words of container engines. Pure.

An engine puts its profile on before process 1 runs. Three calls process 1 makes once and nobody after it: it leaves the mounts
that it came by, takes a user namespace of its own, and opens what tells of sockets. Those stand in its own filter, which it
puts on when it has made them; all else is the engine's.
"""

from __future__ import annotations

import errno
import json
import platform
from typing import TYPE_CHECKING, Any

from aviato.server.backends.local import rules

if TYPE_CHECKING:
    from aviato.server.backends.local.rules import Condition, Rule

UNMOUNT = "umount2"
ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_NO_LATER = rules.Condition(2, rules.NETLINK_ROUTE + 1, None)


def split(all_rules: tuple[Rule, ...]) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """The rules of the engine, and those that process 1 takes by itself."""
    engine: list[Rule] = []
    own: list[Rule] = []
    for rule in all_rules:
        if UNMOUNT in rule.calls:
            engine.append(rule._replace(calls=tuple(call for call in rule.calls if call != UNMOUNT)))
            own.append(rule._replace(calls=(UNMOUNT,)))
        elif _is_begun_with(rule):
            own.append(rule)
        else:
            engine.append(rule)
    return tuple(engine), tuple(own)


def _is_begun_with(rule: Rule) -> bool:
    """Whether process 1 breaks it while it begins."""
    own_users = rule.calls == ("unshare",) and any(condition.value == rules.NEWUSER for condition in rule.where)
    return own_users or (rule.calls == ("socket",) and _NO_LATER in rule.where)


def profile(engine_rules: tuple[Rule, ...], machine: str | None = None) -> str:
    """A seccomp profile, as JSON: all calls are allowed but these; those of other architectures end the process.

    Args:
        engine_rules: what is refused, and how.
        machine: the architecture, by default this one.
    """
    found: dict[str, Any] = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [_call(rule) for rule in engine_rules]}
    architecture = ARCHITECTURES.get(machine or platform.machine())
    if architecture is not None:
        found["architectures"] = [architecture]
    return json.dumps(found, separators=(",", ":"))


def _call(rule: Rule) -> dict[str, Any]:
    found: dict[str, Any] = {"names": list(rule.calls), "action": "SCMP_ACT_ERRNO", "errnoRet": rule.answer or errno.EPERM}
    if rule.where:
        found["args"] = [_condition(condition) for condition in rule.where]
    return found


def _condition(condition: Condition) -> dict[str, Any]:
    if condition.mask is None:
        return {"index": condition.argument, "value": condition.value, "op": "SCMP_CMP_GE"}
    return {"index": condition.argument, "value": condition.mask, "valueTwo": condition.value, "op": "SCMP_CMP_MASKED_EQ"}
