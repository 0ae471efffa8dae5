"""Section 3: sessions and defaults."""

from __future__ import annotations

import pytest

import aviato
from tests.integrations import offline_run
from tests.surface.harness import Place, check


@check("Session(defaults=)", "Session.sandbox", "Session.__enter__", "Session.sandbox_count", "Session.close")
def session(place: Place) -> None:
    with aviato.Session(defaults=aviato.SandboxDefaults(tags=["of-the-session"])) as made:
        box = made.sandbox()
        assert box.tags == ("of-the-session",) and made.sandbox_count == 1
        box.wait()
    made.close().result()
    assert box.get_status() == "terminated" and made.sandbox_count == 0


@check("Session.sandbox(start=)")
def not_started(place: Place) -> None:
    box = place.session.sandbox(start=False)
    assert box.get_status() == "unspecified"


@check("Session.list", "Session.list(adopt=)", "Session.adopt", "Session.from_id", "Session.from_id(adopt=)")
def adoption(place: Place) -> None:
    box = aviato.Sandbox.run()
    with aviato.Session() as other:
        assert box.sandbox_id in [one.sandbox_id for one in other.list(adopt=False).result()]
        assert other.sandbox_count == 0
        found = other.from_id(box.sandbox_id, adopt=False).result()
        assert other.sandbox_count == 0
        other.adopt(found)
        assert other.sandbox_count == 1
        assert box.sandbox_id in [one.sandbox_id for one in other.list(adopt=True).result()]
    assert box.get_status() == "terminated"


@check("Session(max_concurrency=)")
def places(place: Place) -> None:
    with aviato.Session(max_concurrency=1) as limited:
        first, second = limited.sandbox().wait(), limited.sandbox()
        second.start().result()
        assert (second.status, second.status_reason) == ("pending", "queued: place 1 in its session's queue")
        first.stop().result()
        assert second.wait(20).status == "running"


@check("Session.get_metrics")
def metrics(place: Place) -> None:
    place.box().exec(["true"]).result()
    assert place.session.get_metrics()["aviato/exec_completed_ok"] == 1


@check("Session.log_metrics", "Session(report_to=)")
def reporting(place: Place) -> None:
    wandb = pytest.importorskip("wandb")
    with aviato.Session() as logged, aviato.Session(report_to=[]) as silent:
        for made in (logged, silent):
            made.sandbox().exec(["true"]).result()
            assert made.log_metrics(step=3) is False
        run = wandb.init(project="surface", dir=place.path)
        try:
            assert logged.log_metrics(step=3) is True
            assert silent.log_metrics(step=3) is False
        finally:
            run.finish()
        assert [made.get_metrics()["aviato/executions"] for made in (logged, silent)] == [0, 1]
    (row,) = offline_run.rows(run.dir)
    assert (row["aviato/step"], row["aviato/executions"]) == (3, 1)


@check("SandboxDefaults.container_image", "SandboxDefaults.command", "SandboxDefaults.args", "SandboxDefaults.temp_dir")
def defaults(place: Place) -> None:
    chosen = aviato.SandboxDefaults(command="sh", args=["-c", "exit 3"])
    assert (chosen.container_image, chosen.command, list(chosen.args), chosen.temp_dir) == (
        *("python:3.11", "sh", ["-c", "exit 3"]),
        "/tmp",
    )
    assert aviato.Sandbox(defaults=chosen).wait_until_complete().result(20).returncode == 3


@check("SandboxDefaults.base_url", "SandboxDefaults.request_timeout_seconds", "SandboxDefaults.reconnect_timeout_seconds")
def defaults_of_connections(place: Place) -> None:
    chosen = aviato.SandboxDefaults(base_url=place.url, request_timeout_seconds=20, reconnect_timeout_seconds=30)
    assert (chosen.base_url, chosen.request_timeout_seconds, chosen.reconnect_timeout_seconds) == (place.url, 20, 30)
    with aviato.Sandbox(defaults=chosen) as box:
        assert box.exec(["true"]).result().returncode == 0


@check("SandboxDefaults.exec_timeout_seconds")
def defaults_of_commands(place: Place) -> None:
    defaults = aviato.SandboxDefaults(exec_timeout_seconds=0.1)
    with aviato.Sandbox(defaults=defaults) as box, pytest.raises(aviato.SandboxCommandTimeoutError):
        box.exec(["sleep", "60"]).result()


@check("SandboxDefaults.max_lifetime_seconds")
def defaults_of_lives(place: Place) -> None:
    box = aviato.Sandbox(defaults=aviato.SandboxDefaults(max_lifetime_seconds=0.2))
    assert box.wait_until_complete(raise_on_termination=False).result(20).status_reason == "lifetime"


@check("SandboxDefaults.tags", "SandboxDefaults.environment_variables", "SandboxDefaults.merge_tags")
def merging(place: Place) -> None:
    chosen = aviato.SandboxDefaults(tags=["a"], environment_variables={"X": "1"})
    assert chosen.tags == ("a",) and chosen.environment_variables == {"X": "1"}
    assert chosen.merge_tags(["b"]) == ("a", "b")
    with aviato.Sandbox(defaults=chosen, tags=["b"]) as box:
        assert box.tags == ("a", "b") and box.exec(["sh", "-c", "echo $X"]).result().stdout == "1\n"


@check("SandboxDefaults.merge_environment_variables", "SandboxDefaults.with_overrides", "SandboxDefaults.from_dict")
def copies(place: Place) -> None:
    chosen = aviato.SandboxDefaults.from_dict({"environment_variables": {"X": "1"}}).with_overrides(tags=["t"])
    assert chosen.merge_environment_variables({"Y": "2"}) == {"X": "1", "Y": "2"} and chosen.tags == ("t",)


@check("SandboxDefaults.runway_ids", "SandboxDefaults.tower_ids")
def defaults_of_places(place: Place) -> None:
    chosen = aviato.SandboxDefaults(runway_ids=["local"], tower_ids=["local"])
    assert (tuple(chosen.runway_ids), tuple(chosen.tower_ids)) == (("local",), ("local",))
    with aviato.Sandbox(defaults=chosen) as box:
        assert box.wait().runway_id == "local"


@check("stop_on_sigterm")
def sigterm(place: Place) -> None:
    import signal

    before = signal.getsignal(signal.SIGTERM)
    try:
        aviato.stop_on_sigterm()
        assert signal.getsignal(signal.SIGTERM) is not before
    finally:
        signal.signal(signal.SIGTERM, before)
