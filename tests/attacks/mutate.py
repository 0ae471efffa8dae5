"""Takes defences away, for the control of each attack: it must succeed then. No flag of the product does this.

`python -m tests.attacks.mutate` makes every attack of the registry with its defences and without, and prints a table: what must
fail failed, and what must succeed succeeded, or it ends with 1. Words of its command line go to pytest (`-k memory`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

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
    compiled, make_plan, remembered = backend._filter, plan.make_plan, backend._remembered
    backend._remembered = None  # plans of before
    backend._lends = lambda spec: False  # roots of before, and to others
    backend._filter = filters.compile_rules(tuple(rule for rule in rules.RULES if rule.family not in families))
    plan.make_plan = lambda options: tuple(step for step in make_plan(options) if step.operation not in steps)
    try:
        yield
    finally:
        backend._filter, plan.make_plan, backend._remembered = compiled, make_plan, remembered
        del backend._lends


class Table:
    """A plug-in of pytest that prints what became of each pair."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest."""
        for name, value in report.user_properties:
            if name == "pair" and report.when == "call":
                area, attack, walls, said = value
                self._lines.append(
                    f"{area:10} {attack:60} {said['all of them']:6} {said['none']:9} without {' + '.join(walls)}"
                )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Called by pytest."""
        if self._lines:
            terminalreporter.section("attacks, with their defences and without")
            terminalreporter.write_line("\n".join(self._lines))


def main() -> int:
    """Run every pair."""
    pairs = str(Path(__file__).with_name("test_pairs.py"))
    return int(pytest.main(["-q", "--long", pairs, *sys.argv[1:]], [Table()]))


if __name__ == "__main__":
    raise SystemExit(main())
