"""The public names of sections 1 to 4 of the contract."""

from __future__ import annotations


def _of(owner: str, *attributes: str) -> set[str]:
    return {f"{owner}{'' if attribute.startswith('(') else '.'}{attribute}" for attribute in attributes}


_SANDBOX_PARAMETERS = (
    *("command", "args", "defaults", "container_image", "tags", "base_url", "exec_timeout_seconds", "request_timeout_seconds"),
    *("max_lifetime_seconds", "idle_timeout_seconds", "resources", "strict_limits", "mounted_files", "ports", "network"),
    *("secrets", "environment_variables", "working_dir", "annotations", "detached", "runtime", "runway_ids", "tower_ids"),
    "packages",
)
_EXEC_PARAMETERS = ("cwd", "env", "user", "stdin", "check", "timeout_seconds", "max_output_bytes", "detach")
IMAGE_CALLS = (
    *("pull_image", "pull_image(refresh=)", "pull_image(on_progress=)", "prefetch", "images", "inspect_image", "remove_image"),
    *("pull_image(name=)", "export_image", "push_image", "push_image(destination=)", "push_image(on_progress=)"),
    *("remove_image(force=)", "prune_images", "prune_images(most_bytes=)", "prune_images(unused_seconds=)", "pin_image"),
    *("pin_image(pinned=)", "prefetch(refresh=)", "prefetch(on_progress=)"),
)
SNAPSHOT_ATTRIBUTES = ("snapshot_id", "name", "sandbox_id", "image", "image_id", "size_bytes", "created_at", "expires_at")
IMAGE_ATTRIBUTES = (
    *("reference", "status", "image_id", "names", "message", "reason", "layers", "size_bytes", "created_at", "pulled_at"),
    *("used_at", "pinned", "architecture", "working_dir", "user", "entrypoint", "command", "environment", "done_bytes"),
    *("total_bytes", "layers_done", "layers_total", "labels", "pull_seconds", "joined", "retryable", "shell"),
)
PUSH_ATTRIBUTES = (
    *("reference", "status", "layers_done", "layers_total", "sent_bytes", "layer_done_bytes", "layer_total_bytes"),
)
_ERRORS = {
    *("AviatoError", "AviatoAuthenticationError", "AviatoValidationError", "OperationTimeoutError", "SandboxError"),
    *("SandboxNotRunningError", "SandboxTimeoutError", "SandboxRequestTimeoutError", "SandboxCommandTimeoutError"),
    *("SandboxExecutionError", "SandboxFileError", "SandboxNotFoundError", "SandboxFailedError", "SandboxTerminatedError"),
    *("SandboxUnavailableError", "SandboxResourceExhaustedError", "SandboxImageError", "OperationCancelledError"),
    *("FunctionError", "AsyncFunctionError", "FunctionSerializationError", "AsyncUsageWarning"),
    *("WandbAuthError", "SandboxSnapshotError"),
}

NAMES: set[str] = {
    # section 1
    *_of("OperationRef", "result", "result(timeout=)", "__await__", "done", "cancel", "exception"),
    *_of("Process", "exec_id", "stdout", "stderr", "stdin", "poll", "wait", "returncode", "command", "cancel", "send_signal"),
    *_of("Process", "result", "__await__"),
    *_of("TerminalSession", "output", "stdin", "resize", "result"),
    *_of("TerminalResult", "returncode", "signal", "duration_seconds"),
    *_of("StreamReader", "__iter__", "__aiter__", "lines", "raw"),
    *_of("StreamWriter", "write", "writeline", "close", "closed"),
    *("wait", "wait(num_returns=)", "wait(timeout=)", "as_completed", "as_completed(timeout=)", "results"),
    *_of("AsyncClient", "sandbox", "from_id", "list", "__aenter__", *IMAGE_CALLS, "snapshots", "delete_snapshot"),
    *_of("ImageInfo", *IMAGE_ATTRIBUTES),
    *_of("PushInfo", *PUSH_ATTRIBUTES),
    # section 2
    *(f"Sandbox({name}=)" for name in _SANDBOX_PARAMETERS),
    *_of("Sandbox", "run", "wait", "session", "list", "list(tags=)", "list(status=)", "list(include_stopped=)", "from_id"),
    *_of("Sandbox", "wait_until_complete", "wait_until_complete(timeout=)", "wait_until_complete(raise_on_termination=)"),
    *_of("Sandbox", "start", "stop", "stop(graceful_shutdown_seconds=)", "stop(missing_ok=)", "delete", "delete(missing_ok=)"),
    *_of("Sandbox", "write_file", "write_file(mode=)", "write_file_streaming", "upload", "download", "make_directory"),
    *_of("Sandbox", "remove", "remove(recursive=)", "get_status", "exec", "attach", "attach(stdout_offset=)"),
    *_of("Sandbox", "attach(stderr_offset=)", "read_file", "list_files", "stat", "grade", "stream_logs"),
    *_of("Sandbox", "stream_logs(follow=)", "stream_logs(tail_lines=)", "read_file_streaming", "shell", "shell(command=)"),
    *_of("Sandbox", "shell(width=)", "shell(height=)"),
    *(f"Sandbox.exec({name}=)" for name in _EXEC_PARAMETERS),
    *_of("Sandbox", "sandbox_id", "status", "status_updated_at", "created_at", "started_at", "tags", "annotations"),
    *_of("Sandbox", "returncode", "status_reason", "limits", "exec_stats", "execution_stats", "service_urls"),
    *_of("Sandbox", "exposed_ports", "service_address", "applied_ingress_mode", "applied_egress_mode", "runway_id"),
    *_of("Sandbox", "wait_for_port", "tower_id", "tower_group_id", "__enter__", "__aenter__", "__await__", "__reduce__"),
    "SandboxStatus",
    *_of("ProcessResult", "stdout", "stderr", "stdout_bytes", "stderr_bytes", "stdout_bytes_total", "stderr_bytes_total"),
    *_of("ProcessResult", "returncode", "command", "duration_seconds", "timed_out", "signal", "oom_killed"),
    *_of("ProcessResult", "stdout_truncated", "stderr_truncated", "usage"),
    *_of("ResourceUsage", "cpu_seconds", "max_rss_bytes", "memory_peak_bytes", "processes_peak"),
    *_of("FileInfo", "path", "size_bytes", "mode", "mtime", "type", "link_target"),
    *_of("GradeResult", "passed", "cases", "exec_result", "mode", "message", "left_out", "statuses"),
    *_of("GradeCase", "name", "passed", "status", "message", "duration_seconds"),
    *_of("NetworkOptions", "ingress_mode", "exposed_ports", "egress_mode"),
    *_of("ResourceOptions", "requests", "limits"),
    "Secret.env_var",
    *_of("Sandbox", "snapshot", "snapshot(name=)", "snapshot(expires_after_seconds=)", "fork", "stop(snapshot_on_stop=)"),
    *_of("Sandbox", "list_snapshots", "delete_snapshot", "delete_snapshot(missing_ok=)", "reset", "reset(to=)"),
    *(f"Snapshot.{name}" for name in SNAPSHOT_ATTRIBUTES),
    *_of("Image", "from_", "run", "copy", "env", "workdir", "user", "pip_install", "build", "base", "steps"),
    *_of(
        "Image",
        "build(name=)",
        "from_dockerfile",
        *(f"from_dockerfile({name}=)" for name in ("context", "target", "build_args")),
    ),
    # section 3
    *_of("Session", "(defaults=)", "(report_to=)", "(max_concurrency=)", "__enter__", "__aenter__", "sandbox"),
    *_of("Session", "sandbox(start=)", "function", "list", "list(adopt=)", "from_id", "from_id(adopt=)", "adopt"),
    *_of("Session", "pool", "pool(warmup=)"),
    *_of("Pool", "sandbox", "ready", "size", "close", "__enter__", "__aenter__"),
    *_of("Session", "sandbox_count", "close", "log_metrics", "get_metrics", "prefetch", "prefetch(refresh=)"),
    *_of("RemoteFunction", "remote", "map", "local", "__call__"),
    "Serialization",
    *_of("SandboxDefaults", "container_image", "command", "args", "base_url", "exec_timeout_seconds"),
    *_of("SandboxDefaults", "request_timeout_seconds", "reconnect_timeout_seconds", "max_lifetime_seconds", "temp_dir", "tags"),
    *_of("SandboxDefaults", "secrets", "merge_secrets", "packages"),
    *_of("SandboxDefaults", "resources", "network", "environment_variables", "runway_ids", "tower_ids", "merge_tags"),
    *_of("SandboxDefaults", "merge_environment_variables", "with_overrides", "from_dict"),
    "stop_on_sigterm",
    # section 4
    *_ERRORS,
    *_of("AviatoError", "reason", "retryable", "retry_delay_seconds", "is_infrastructure"),
    *_of("AviatoValidationError", "field_violations"),
    "OperationTimeoutError.status_reason",
    *_of("SandboxCommandTimeoutError", "exec_result"),
    *_of("SandboxExecutionError", "exec_result", "exception_type", "exception_message"),
    *_of("SandboxFileError", "filepath"),
    *_of("SandboxNotFoundError", "sandbox_id"),
}

ASYNC_TOO: set[str] = {
    *_of("OperationRef", "__await__"),
    *_of("Process", "__await__"),
    *_of("StreamReader", "__aiter__"),
    *_of("StreamWriter", "write", "writeline", "close"),
    *("wait", "as_completed", "results"),
    *_of("AsyncClient", "sandbox", "from_id", "list", "__aenter__", *IMAGE_CALLS, "snapshots", "delete_snapshot"),
    "Image.build",
    *_of("Sandbox", "snapshot", "fork", "list_snapshots", "delete_snapshot", "stop(snapshot_on_stop=)", "reset"),
    *_of("Sandbox", "list", "from_id", "wait_until_complete", "start", "stop", "delete", "write_file", "write_file_streaming"),
    *_of("Sandbox", "upload", "download", "make_directory", "remove", "exec", "attach", "read_file", "list_files", "stat"),
    *_of("Sandbox", "stream_logs", "read_file_streaming", "shell", "__aenter__", "__await__", "grade"),
    *_of("TerminalSession", "output", "stdin", "resize"),
    *_of("Session", "__aenter__", "sandbox", "list", "from_id", "close", "prefetch", "pool"),
    *_of("Pool", "__aenter__", "ready", "close"),
    *_of("RemoteFunction", "remote", "map", "__call__"),
    *_of("Process", "send_signal", "cancel", "stdout", "stderr", "stdin"),
    "Sandbox.wait_for_port",
}

LATER: set[str] = {
    # Beyond these: other runtimes
    "Sandbox(runtime=)",
}
"""What is not there yet: the work that brings a name takes it off this list."""

PLUMBING: set[str] = {
    *_of("OperationRef", "start", "check_can_end", "has_begun", "leave_streams", "told_why", "told_why_async"),
    *_of("StreamReader", "collected", "detach_own", "feed", "finish", "offset", "reading", "ready", "skip"),
    *_of("StreamReader", "total_bytes"),
    *_of("StreamWriter", "mark_closed"),
    *_of("ProcessResult", "stdout_head_bytes", "stderr_head_bytes", "stdout_offset", "stderr_offset"),
    *_of("SandboxDefaults", "given"),
    *_of("ResourceOptions", "amounts"),
}
"""What the layers below the facade call on these objects; users have no reason to."""
