"""schemathesis over the served description, against a real server process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from aviato.server.operations import OPERATIONS
from aviato.server.operations.description import document
from aviato.wire.ids import new_sandbox_id
from tests.endings.conftest import until
from tests.matrices import deep

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import requests
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis import checks as known


@schemathesis.serializer("application/x-tar")
def as_it_is(ctx, value):
    """Bytes that are hardly ever an archive."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


DOCUMENT = document(OPERATIONS, "1")
for methods in DOCUMENT["paths"].values():
    for described in methods.values():
        # A wrong version is answered by 426, which schemathesis does not count as a refusal; another test has it.
        described["parameters"] = [item for item in described["parameters"] if item["in"] != "header"]
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]
CHECKS = [
    schemathesis.checks.not_a_server_error,
    *(
        known.CHECKS.get_one(name)
        for name in ("status_code_conformance", "content_type_conformance", "response_schema_conformance", "unsupported_method")
    ),
    known.CHECKS.get_one("negative_data_rejection"),
]


@pytest.fixture(scope="module")
def server():
    """A server over TCP, and one running sandbox in it."""
    with tempfile.TemporaryDirectory(prefix="aviato-test-", dir="/var/tmp") as state:
        os.chmod(state, 0o711)
        (Path(state) / "keys").write_text("the-key\nanother-key\n")
        command = [
            sys.executable,
            "-c",
            "from aviato.cli.main import main; main()",
            "serve",
            "--port",
            "0",
            "--max-sandboxes",
            "50",
        ]
        command += ["--state-dir", f"{state}/state", "--api-key-file", f"{state}/keys"]
        home = str(Path(__file__).resolve().parents[2])
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": home}, cwd="/")
        base = re.search(r"http://\S+", process.stdout.readline())[0]
        with requests.Session() as session:
            session.headers["Authorization"] = "Bearer the-key"
            body = {"sandbox_id": new_sandbox_id(), "detached": True}
            session.post(f"{base}/v1/sandboxes", json=body).raise_for_status()

            def runs():
                return session.get(f"{base}/v1/sandboxes/{body['sandbox_id']}").json()["status"] == "running"

            until(runs, 30)
            yield base, session, body["sandbox_id"]
            at_the_end = runs()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=250) == 0
        process.stdout.close()
        assert at_the_end


@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.label for operation in OPERATIONS])
@pytest.mark.parametrize("mode", list(GenerationMode), ids=str)
@pytest.mark.parametrize("alive", [*deep([False]), True], ids=["any", "a living sandbox"])
def test_what_the_description_says_is_so(server, operation, alive, mode):
    base, session, sandbox_id = server
    ends_it = operation.path.endswith("/stop") or (operation.method == "delete" and operation.path.endswith("{sandbox_id}"))
    if alive and ("{sandbox_id}" not in operation.path or ends_it):
        pytest.skip("not about a living sandbox")
    if mode is GenerationMode.NEGATIVE and operation.path in (
        "/v1/health",
        "/v1/openapi.json",
        "/health",
        "/v1/images",
        "/v1/snapshots",
    ):
        pytest.skip("there is nothing to get wrong")
    if alive and mode is GenerationMode.NEGATIVE:
        pytest.skip("with the id put right nothing may be wrong any more")

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=10,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case):
        if alive:
            case.path_parameters["sandbox_id"] = sandbox_id
            shorten(case)
        response = case.call(base_url=base, session=session, timeout=30)
        case.validate_response(response, checks=CHECKS)

    check()


@pytest.mark.parametrize("operation", OPERATIONS, ids=[operation.label for operation in OPERATIONS])
def test_who_is_not_let_in_is_told_so_as_described(server, operation):
    """Without a key all is 401; with another's key a sandbox is one that is not there, whatever else the request says."""
    base, _, sandbox_id = server

    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    @settings(
        max_examples=3,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case):
        with requests.Session() as stranger:
            response = case.call(base_url=base, session=stranger, timeout=30)
            case.validate_response(response, checks=CHECKS[:4])
            assert response.status_code == 401 and "www-authenticate" in response.headers
        if "{sandbox_id}" in operation.path:
            answers = []
            with requests.Session() as other:
                other.headers["Authorization"] = "Bearer another-key"
                for name in (sandbox_id, new_sandbox_id()):
                    case.path_parameters["sandbox_id"] = name
                    response = case.call(base_url=base, session=other, timeout=30)
                    case.validate_response(response, checks=CHECKS[:4])
                    answers.append((response.status_code, response.text.replace(name, "ID")))
            assert answers[0] == answers[1] and answers[0][0] in (400, 404)

    check()


def shorten(case):
    """Keep waits within the patience of a test."""
    if case.method == "GET" and case.path.endswith("{sandbox_id}"):
        case.query = {**(case.query or {}), "timeout_seconds": 0.1}
    if isinstance(case.query, dict):
        case.query.pop("follow", None)
    if isinstance(case.body, dict) and "command" in case.body:
        case.body["timeout_seconds"] = 1.0


def test_nothing_was_said_to_fail(server):
    base, session, _ = server
    assert json.loads(session.get(f"{base}/v1/health").text)["status"] == "ok"
