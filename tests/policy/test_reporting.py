"""Which reporters there are, and what one that fails does: nothing to the counting."""

import importlib.metadata
import sys
import types

import pytest

from aviato.exceptions import AviatoValidationError
from aviato.policy import reporting
from aviato.policy.metrics import Metrics


class Kept:
    name = "kept"

    def __init__(self):
        self.rows = []
        self.answer = True

    def log(self, metrics, step):
        if self.answer is None:
            raise RuntimeError("no disk")
        if self.answer:
            self.rows.append((metrics["aviato/retries"], step))
        return self.answer


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    """Two packages with a reporter each, one of them broken."""
    entries = importlib.metadata.EntryPoints(
        [
            importlib.metadata.EntryPoint("kept", "a_package_of_a_user:Kept", "aviato.reporters"),
            importlib.metadata.EntryPoint("broken", "no_such_package:Reporter", "aviato.reporters"),
        ]
    )
    monkeypatch.setitem(sys.modules, "a_package_of_a_user", types.SimpleNamespace(Kept=Kept))
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries.select(group=group))
    monkeypatch.setattr(reporting, "_made", {})


def test_a_reporter_of_another_package_is_named():
    one, metrics = reporting.Reporting(["kept"]), Metrics()
    metrics.retry()
    assert one.log(metrics, 7, reset=True)
    assert not one.log(metrics, 7, reset=True, rest=True)
    metrics.retry()
    assert reporting.Reporting(["kept", "kept"]).log(metrics, 8, reset=False, rest=True)
    assert metrics.snapshot()["aviato/retries"] == 1
    kept = reporting.find("kept")
    assert isinstance(kept, reporting.Reporter)
    assert kept.rows == [(1, 7), (1, 8)]


@pytest.mark.parametrize("answer", [False, None], ids=["nowhere", "raises"])
def test_what_was_not_logged_is_kept(answer, caplog):
    one, metrics = reporting.Reporting(["kept"]), Metrics()
    reporting.find("kept").answer = answer
    metrics.retry()
    assert not one.log(metrics, 1, reset=True)
    assert not one.log(metrics, 1, reset=True)
    assert metrics.snapshot()["aviato/retries"] == 1
    assert metrics.has_news
    assert sum("not logged to kept" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("report_to", "error", "text"),
    [
        ("wandb", TypeError, r"\['wandb'\]"),
        ([3], TypeError, "int"),
        (["tensorboard"], AviatoValidationError, "tensorboard.*broken, kept, wandb"),
        (["broken"], AviatoValidationError, "no_such_package"),
    ],
)
def test_what_is_refused(report_to, error, text):
    with pytest.raises(error, match=text) as caught:
        reporting.Reporting(report_to)
    assert error is TypeError or caught.value.field_violations["report_to"]
