"""SandboxFusion: its client, on the server that SANDBOX_FUSION_ENDPOINT names. It runs snippets and keeps nothing."""

import os
import shlex

from sandbox_fusion import RunCodeRequest, run_code, set_endpoint

set_endpoint(os.environ["SANDBOX_FUSION_ENDPOINT"])


def create():
    return None


def run(nothing, argv):
    request = RunCodeRequest(code=shlex.join(argv), language="bash", run_timeout=60)
    result = run_code(request, max_attempts=1).run_result
    return result.return_code, result.stdout


def stop(nothing):
    pass
