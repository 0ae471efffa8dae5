"""Takes defences away, for the control of each attack: it must succeed then. No flag of the product does this."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aviato.server.backends.local import filters, plan, rules

CAPABILITIES = ("no_more_namespaces", "last_user_namespace", "capabilities")
"""Steps of the plan without which commands have every capability in the sandbox's own namespaces."""
UNDUMPABLE = (*CAPABILITIES, "settle")
"""And process 1 can be looked into."""
FILTER = ("filter",)


@contextmanager
def without(backend: Any, *families: str, steps: tuple[str, ...] = ()) -> Iterator[None]:
    """Sandboxes made meanwhile lack these families of rules and these steps of the plan."""
    assert set(families) <= set(rules.families(rules.RULES))
    compiled, make_plan = backend._filter, plan.make_plan
    backend._filter = filters.compile_rules(tuple(rule for rule in rules.RULES if rule.family not in families))
    plan.make_plan = lambda options: tuple(step for step in make_plan(options) if step.operation not in steps)
    try:
        yield
    finally:
        backend._filter, plan.make_plan = compiled, make_plan
