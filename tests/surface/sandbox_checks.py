"""Section 2: sandboxes, commands, files."""

from __future__ import annotations

import math
import pickle
import time
from datetime import UTC, datetime

import pytest

import aviato
from tests.environments import make_environment
from tests.surface.harness import Place, check


@check("Sandbox(command=)", "Sandbox(args=)", "Sandbox.wait_until_complete", "Sandbox.returncode", "Sandbox.status_reason")
def main_command(place: Place) -> None:
    box = aviato.Sandbox(command="sh", args=["-c", "exit 4"])
    assert box.wait_until_complete().result(20) is box
    assert (box.returncode, box.status, box.status_reason) == (4, "failed", "exited")


@check("Sandbox(defaults=)", "Sandbox(tags=)", "Sandbox.tags", "Sandbox(environment_variables=)", "Sandbox(working_dir=)")
def settings(place: Place) -> None:
    defaults = aviato.SandboxDefaults(tags=["first"], environment_variables={"A": "1", "B": "1"})
    with aviato.Sandbox(defaults=defaults, tags=["second"], environment_variables={"B": "2"}, working_dir="/tmp") as box:
        assert box.tags == ("first", "second")
        assert box.exec(["sh", "-c", "echo $A $B $PWD"]).result().stdout == "1 2 /tmp\n"


@check("Sandbox(container_image=)", "SandboxImageError")
def image(place: Place) -> None:
    with aviato.Sandbox(container_image="host") as box:
        assert box.exec(["true"]).result().returncode == 0
    with pytest.raises(aviato.SandboxImageError, match="no-such-image"):
        aviato.Sandbox(container_image="oci:/no-such-image").exec(["true"]).result(30)


@check("Sandbox(packages=)", "SandboxDefaults.packages")
def packages(place: Place) -> None:
    one = make_environment(place.path / "one", greetings="WORD = 'hello'")
    two = make_environment(place.path / "two", greetings="WORD = 'good day'")
    defaults = aviato.SandboxDefaults(packages=one)
    assert defaults.packages == str(one)
    for options, word in (({}, "hello"), ({"packages": str(two)}, "good day")):
        with aviato.Sandbox(defaults=defaults, **options) as box:
            assert box.exec(["python", "-c", "import greetings; print(greetings.WORD)"]).result().stdout == f"{word}\n"


@check("Sandbox(base_url=)", "SandboxUnavailableError")
def base_url(place: Place) -> None:
    with aviato.Sandbox(base_url=place.url) as box:
        assert box.exec(["true"]).result().returncode == 0
    with pytest.raises(aviato.SandboxUnavailableError) as caught:
        aviato.Sandbox(base_url=f"unix://{place.path}/nobody.sock").start().result()
    assert caught.value.is_infrastructure


@check("Sandbox(exec_timeout_seconds=)", "SandboxCommandTimeoutError", "SandboxCommandTimeoutError.exec_result")
def exec_timeout(place: Place) -> None:
    with aviato.Sandbox(exec_timeout_seconds=0.2) as box:
        with pytest.raises(aviato.SandboxCommandTimeoutError) as caught:
            box.exec(["sh", "-c", "echo before; sleep 60"]).result()
        assert isinstance(caught.value, aviato.SandboxTimeoutError)
        assert (caught.value.exec_result.stdout, caught.value.exec_result.timed_out) == ("before\n", True)
        assert not caught.value.is_infrastructure


@check("Sandbox(request_timeout_seconds=)", "SandboxRequestTimeoutError")
def request_timeout(place: Place) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{place.path}/silent.sock")
        silent.listen()
        box = aviato.Sandbox(base_url=f"unix://{place.path}/silent.sock", request_timeout_seconds=0.2)
        with pytest.raises(aviato.SandboxError) as caught:
            box.start().result(30)
    cause = caught.value
    assert isinstance(cause, aviato.SandboxRequestTimeoutError) or "0.2" in str(cause)
    assert cause.is_infrastructure
    assert aviato.SandboxRequestTimeoutError("x").is_infrastructure


@check("Sandbox(max_lifetime_seconds=)", "SandboxTerminatedError", "Sandbox.wait_until_complete(raise_on_termination=)")
def lifetime(place: Place) -> None:
    box = aviato.Sandbox(max_lifetime_seconds=0.3)
    assert box.wait_until_complete(raise_on_termination=False).result(20).status_reason == "lifetime"
    with pytest.raises(aviato.SandboxTerminatedError) as caught:
        box.exec(["true"]).result()
    assert not caught.value.is_infrastructure


@check("Sandbox(idle_timeout_seconds=)")
def idle(place: Place) -> None:
    box = aviato.Sandbox(idle_timeout_seconds=0.3)
    assert box.wait_until_complete(raise_on_termination=False).result(20).status_reason == "idle"


@check("Sandbox(mounted_files=)")
def mounted(place: Place) -> None:
    with aviato.Sandbox(mounted_files=[{"mount_path": "/data/given", "file_content": "read only"}]) as box:
        assert box.read_file("/data/given").result() == b"read only"
        assert box.exec(["sh", "-c", "echo x > /data/given"]).result().returncode != 0


@check("Sandbox(annotations=)", "Sandbox.annotations")
def annotations(place: Place) -> None:
    with aviato.Sandbox(annotations={"a": "b"}) as box:
        assert aviato.Sandbox.from_id(box.sandbox_id).result().annotations == {"a": "b"} == box.annotations


@check("Sandbox(runway_ids=)", "Sandbox(tower_ids=)", "Sandbox.runway_id", "Sandbox.tower_id", "Sandbox.tower_group_id")
def placement(place: Place) -> None:
    with aviato.Sandbox(runway_ids=["local"], tower_ids=["local"]) as box:
        box.wait()
        assert (box.runway_id, box.tower_id, box.tower_group_id) == ("local", "local", None)


@check("Sandbox(detached=)")
def detached(place: Place) -> None:
    box = aviato.Sandbox(detached=True, max_lifetime_seconds=60)
    box.start().result()
    with aviato.Session() as other:
        other.sandbox().wait()
    assert box.get_status() in ("pending", "running")
    box.stop(0).result()


@check("Sandbox.run", "Sandbox.wait", "Sandbox.sandbox_id", "Sandbox.status", "Sandbox.get_status")
def run(place: Place) -> None:
    box = aviato.Sandbox.run("sleep", "60")
    try:
        assert box.sandbox_id.startswith("sb-")
        assert box.wait(timeout=20) is box
        assert box.status == box.get_status() == aviato.SandboxStatus.RUNNING == "running"
    finally:
        box.stop(0).result()


@check("Sandbox.session")
def session(place: Place) -> None:
    with aviato.Sandbox.session(aviato.SandboxDefaults(tags=["t"])) as made:
        assert made.sandbox(start=False).tags == ("t",)


@check("Sandbox.list", "Sandbox.list(tags=)", "Sandbox.list(status=)", "Sandbox.list(include_stopped=)", "Sandbox.from_id")
def listing(place: Place) -> None:
    tag = f"listing-{time.time_ns()}"
    with aviato.Sandbox(tags=[tag]) as box:
        box.wait()
        found = aviato.Sandbox.list(tags=[tag], status=["running", "pending"]).result()
        assert [one.sandbox_id for one in found] == [box.sandbox_id]
        assert aviato.Sandbox.from_id(box.sandbox_id).result().status == "running"
    assert aviato.Sandbox.list(tags=[tag]).result() == []
    ended = aviato.Sandbox.list(tags=[tag], include_stopped=True).result()
    assert [one.status for one in ended] == ["terminated"]


@check("Sandbox.wait_until_complete(timeout=)", "SandboxTimeoutError")
def complete_timeout(place: Place) -> None:
    with pytest.raises(aviato.SandboxTimeoutError):
        place.box().wait_until_complete(timeout=0.05).result(20)


@check("Sandbox.start", "Sandbox.stop", "Sandbox.stop(graceful_shutdown_seconds=)", "SandboxNotRunningError")
def start_and_stop(place: Place) -> None:
    box = aviato.Sandbox()
    assert box.start().result() is None
    assert box.stop(graceful_shutdown_seconds=0.5).result() is None
    with pytest.raises(aviato.SandboxNotRunningError):
        box.exec(["true"]).result()


@check("Sandbox.stop(missing_ok=)", "Sandbox.delete", "Sandbox.delete(missing_ok=)", "SandboxNotFoundError")
def delete(place: Place) -> None:
    box = aviato.Sandbox.run()
    aviato.Sandbox.delete(box.sandbox_id).result()
    assert box.get_status() == "terminated"
    box.stop(missing_ok=True).result()
    unknown = f"sb-{'a' * 26}"
    aviato.Sandbox.delete(unknown, missing_ok=True).result()
    with pytest.raises(aviato.SandboxNotFoundError) as caught:
        aviato.Sandbox.delete(unknown).result()
    assert caught.value.sandbox_id == unknown


@check("SandboxNotFoundError.sandbox_id")
def not_found(place: Place) -> None:
    with pytest.raises(aviato.SandboxNotFoundError) as caught:
        aviato.Sandbox.from_id("sb-nothing").result()
    assert caught.value.sandbox_id == "sb-nothing"


@check("Sandbox.write_file", "Sandbox.read_file", "Sandbox.write_file(mode=)", "FileInfo.mode", "Sandbox.stat")
def whole_files(place: Place) -> None:
    box = place.box()
    box.write_file("a/b.bin", b"\0\xff", mode=0o600).result()
    assert box.read_file("a/b.bin").result() == b"\0\xff"
    assert box.stat("a/b.bin").result().mode & 0o7777 == 0o600


@check("Sandbox.write_file_streaming", "Sandbox.read_file_streaming")
def streamed_files(place: Place) -> None:
    box = place.box()
    box.write_file_streaming("big", [b"ab", b"cd"]).result()
    assert b"".join(box.read_file_streaming("big")) == b"abcd"


@check("Sandbox.upload", "Sandbox.download")
def local_files(place: Place) -> None:
    box = place.box()
    (place.path / "file").write_text("hello")
    box.upload(place.path / "file", "copy").result()
    box.download("copy", place.path / "back").result()
    assert (place.path / "back").read_text() == "hello"


@check("Sandbox.list_files", "Sandbox.make_directory", "Sandbox.remove", "Sandbox.remove(recursive=)", "SandboxFileError")
def directories(place: Place) -> None:
    box = place.box()
    box.make_directory("/tmp/one/two").result()
    assert [info.path for info in box.list_files("/tmp/one").result()] == ["/tmp/one/two"]
    with pytest.raises(aviato.SandboxFileError):
        box.remove("/tmp/one").result()
    box.remove("/tmp/one", recursive=True).result()
    with pytest.raises(aviato.SandboxFileError) as caught:
        box.stat("/tmp/one").result()
    assert caught.value.filepath == "/tmp/one"


@check("SandboxFileError.filepath")
def file_error(place: Place) -> None:
    with pytest.raises(aviato.SandboxFileError) as caught:
        place.box().read_file("/nothing").result()
    assert caught.value.filepath == "/nothing" and not caught.value.is_infrastructure


@check("FileInfo.path", "FileInfo.size_bytes", "FileInfo.mtime", "FileInfo.type", "FileInfo.link_target")
def file_info(place: Place) -> None:
    box = place.box()
    box.exec(["sh", "-c", "printf four > /tmp/f; ln -s f /tmp/l"], check=True).result()
    infos = {info.path: info for info in box.list_files("/tmp").result()}
    file, link = infos["/tmp/f"], infos["/tmp/l"]
    assert (file.size_bytes, file.type, file.link_target) == (4, "file", None)
    assert (link.type, link.link_target) == ("symlink", "f")
    assert abs(file.mtime.timestamp() if isinstance(file.mtime, datetime) else file.mtime) - time.time() < 60


@check("Sandbox.exec", "ProcessResult.stdout", "ProcessResult.stderr", "ProcessResult.returncode", "ProcessResult.command")
def exec_result(place: Place) -> None:
    result = place.box().exec(["sh", "-c", "echo out; echo err >&2; exit 7"]).result()
    assert (result.stdout, result.stderr, result.returncode) == ("out\n", "err\n", 7)
    assert result.command == ("sh", "-c", "echo out; echo err >&2; exit 7")


@check("ProcessResult.stdout_bytes", "ProcessResult.stderr_bytes", "ProcessResult.duration_seconds", "ProcessResult.signal")
def exec_result_more(place: Place) -> None:
    result = place.box().exec(["sh", "-c", "printf '\\377'; printf '\\376' >&2; kill -9 $$"]).result()
    assert (result.stdout_bytes, result.stderr_bytes, result.returncode, result.signal) == (b"\xff", b"\xfe", 137, 9)
    assert 0 < result.duration_seconds < 20


@check("Sandbox.exec(max_output_bytes=)", "ProcessResult.stdout_truncated", "ProcessResult.stdout_bytes_total")
def exec_output(place: Place) -> None:
    result = place.box().exec(["sh", "-c", "seq 1000"], max_output_bytes=100).result()
    assert result.stdout_truncated and result.stdout_bytes_total == 3893 and len(result.stdout_bytes) <= 100


@check("ProcessResult.stderr_truncated", "ProcessResult.stderr_bytes_total")
def exec_errors(place: Place) -> None:
    result = place.box().exec(["sh", "-c", "seq 1000 >&2"], max_output_bytes=100).result()
    assert result.stderr_truncated and result.stderr_bytes_total == 3893 and not result.stdout_truncated


@check("ProcessResult.timed_out", "ProcessResult.oom_killed", "Sandbox.exec(timeout_seconds=)")
def exec_limits(place: Place) -> None:
    box = place.box()
    with pytest.raises(aviato.SandboxCommandTimeoutError) as caught:
        box.exec(["sleep", "60"], timeout_seconds=0.1).result()
    assert caught.value.exec_result.timed_out and not caught.value.exec_result.oom_killed
    assert box.exec(["true"], timeout_seconds=math.inf).result().timed_out is False


@check("ProcessResult.usage", "ResourceUsage.cpu_seconds", "ResourceUsage.max_rss_bytes")
def usage(place: Place) -> None:
    used = place.box().exec(["python3", "-c", "sum(range(10**6))"]).result().usage
    assert used.cpu_seconds > 0 and used.max_rss_bytes > 1 << 20


@check("ResourceUsage.memory_peak_bytes", "ResourceUsage.processes_peak")
def usage_of_groups(place: Place) -> None:
    used = place.box().exec(["true"]).result().usage
    assert used.memory_peak_bytes is None or used.memory_peak_bytes > 0
    assert used.processes_peak is None or used.processes_peak > 0


@check("Sandbox.exec(cwd=)", "Sandbox.exec(env=)", "Sandbox.exec(user=)", "Sandbox.exec(stdin=)")
def exec_parameters(place: Place) -> None:
    result = place.box().exec(["sh", "-c", "pwd; echo $A; id -u; cat"], cwd="/tmp", env={"A": "a"}, user="root", stdin="in")
    assert result.result().stdout == "/tmp\na\n0\nin"


@check("Sandbox.exec(check=)", "SandboxExecutionError", "SandboxExecutionError.exec_result")
def exec_check(place: Place) -> None:
    with pytest.raises(aviato.SandboxExecutionError) as caught:
        place.box().exec(["false"], check=True).result()
    assert caught.value.exec_result.returncode == 1


@check("Sandbox.stream_logs", "Sandbox.stream_logs(follow=)", "Sandbox.stream_logs(tail_lines=)")
def logs(place: Place) -> None:
    with aviato.Sandbox(command="sh", args=["-c", "seq 3; sleep 60"]) as box:
        following = iter(box.stream_logs(follow=True))
        text = ""
        while text.count("\n") < 3:
            text += next(following)
        assert text == "1\n2\n3\n"
        assert "".join(box.stream_logs(tail_lines=1)) == "3\n"


@check("Sandbox.status_updated_at", "Sandbox.created_at", "Sandbox.started_at")
def moments(place: Place) -> None:
    box = place.box().wait()
    for moment in (box.created_at, box.started_at, box.status_updated_at):
        assert abs((datetime.now(UTC) - moment).total_seconds()) < 30


@check("Sandbox.limits")
def limits(place: Place) -> None:
    box = place.box().wait()
    assert {limit.strength for limit in box.limits.values()} <= {"hard", "watched", "none"} and "open_files" in box.limits


@check("Sandbox.exec_stats", "Sandbox.execution_stats")
def stats(place: Place) -> None:
    box = place.box()
    box.exec(["true"]).result()
    box.exec(["false"]).result()
    assert box.exec_stats == {"exec_count": 2, "completed_ok": 1, "completed_nonzero": 1, "failures": 0}
    assert box.execution_stats == {"total": 2, "successes": 1, "failures": 1, "errors": 0}


@check("Sandbox.applied_ingress_mode", "Sandbox.applied_egress_mode")
def network_modes(place: Place) -> None:
    box = place.box().wait()
    assert (box.applied_ingress_mode, box.applied_egress_mode) == ("none", "none")


@check("Sandbox.__enter__")
def block(place: Place) -> None:
    with aviato.Sandbox() as box:
        assert box.exec(["true"]).result().returncode == 0
    assert box.get_status() == "terminated"


@check("Sandbox.__reduce__")
def pickled(place: Place) -> None:
    box = place.box().wait()
    assert pickle.loads(pickle.dumps(box)).exec(["echo", "same"]).result().stdout == "same\n"


@check("SandboxStatus")
def status_values(place: Place) -> None:
    assert [member.value for member in (aviato.SandboxStatus(name) for name in ("running", "paused", "failed"))] == [
        "running",
        "paused",
        "failed",
    ]
    assert place.box().wait().status is aviato.SandboxStatus("running")


@check("Sandbox.exec(detach=)", "Sandbox.attach", "Sandbox.attach(stdout_offset=)", "Sandbox.attach(stderr_offset=)")
def attach(place: Place) -> None:
    begun = place.box().exec(["sh", "-c", "echo out; echo err >&2; exit 3"], detach=True)
    begun.result()
    box = aviato.Sandbox.from_id(begun._state.sandbox_id).result()
    result = box.attach(begun.exec_id, stdout_offset=1, stderr_offset=2).result()
    assert (result.stdout, result.stderr, result.returncode, result.stdout_bytes_total) == ("ut\n", "r\n", 3, 4)
