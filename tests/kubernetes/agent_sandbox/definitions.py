"""The CustomResourceDefinitions of kubernetes-sigs/agent-sandbox: the real ones where a variable names their directory.

`AVIATO_TEST_AGENT_SANDBOX_CRDS=DIR` names a copy of upstream's `helm/crds`. Their conversion webhooks are left out, since
nobody here answers those; a cluster from before rules in CEL (1.25) leaves those out by itself. Else there are four that take
any fields.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aviato.server.backends.kubernetes.agent_sandbox import CORE_GROUP, EXTENSIONS_GROUP, VERSION

DIRECTORY = os.environ.get("AVIATO_TEST_AGENT_SANDBOX_CRDS")
"""Before the tests' own environment takes its place."""
KINDS = {
    "Sandbox": (CORE_GROUP, "sandboxes"),
    "SandboxClaim": (EXTENSIONS_GROUP, "sandboxclaims"),
    "SandboxTemplate": (EXTENSIONS_GROUP, "sandboxtemplates"),
    "SandboxWarmPool": (EXTENSIONS_GROUP, "sandboxwarmpools"),
}
OURS = "aviato.dev/tests"
REPAIRED = "+custom-resources"
SECONDS = 60


class CannotBe(Exception):
    """The cluster has agent-sandbox, whose controller would do what the stand-in does, or bears no custom resources."""


def definitions() -> list[dict[str, Any]]:
    """All four, with a label by which they are known to be of the tests."""
    found = [_read(path) for path in sorted(Path(DIRECTORY).iterdir())] if DIRECTORY else [_own(kind) for kind in KINDS]
    for one in found:
        one["spec"].pop("conversion", None)
        one["metadata"].setdefault("labels", {})[OURS] = "stand-in"
    return found


def _read(path: Path) -> dict[str, Any]:
    import yaml  # Comes with kubernetes-asyncio.

    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def _own(kind: str) -> dict[str, Any]:
    group, plural = KINDS[kind]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}},
        "subresources": {"status": {}},
    }
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def dies_of_custom_resources(version: dict[str, str]) -> str | None:
    """Why the API server of this version would, if it would.

    The library (reflect2 1.0.1) by which those before 1.24 write maps as JSON goes by what maps are like before Go 1.18. What a
    newer Go has built reads beside them at the first custom resource, and is gone; it takes an empty text for no value, too. A
    build that has neither says so behind its version.
    """
    minor, go = int(version["gitVersion"].split(".")[1]), version["goVersion"].removeprefix("go").split(".")
    if version["gitVersion"].endswith(REPAIRED) or minor >= 24 or int(go[1]) < 18:
        return None
    built = f"the API server {version['gitVersion']}, built by {version['goVersion']}"
    return f"{built}, dies of custom resources; one whose version ends in {REPAIRED} does not"


@contextmanager
def installed() -> Iterator[None]:
    """For as long as any process of this machine uses them.

    Raises:
        CannotBe: they cannot be used there.
    """
    if (why := dies_of_custom_resources(json.loads(_kubectl("get", "--raw", "/version")))) is not None:
        raise CannotBe(why)
    users = Path(tempfile.gettempdir(), "aviato-test-agent-sandbox-users")
    with users.open("a+") as file:
        _counted(file, 1)
        try:
            yield
        finally:
            _counted(file, -1)


def _counted(file: Any, change: int) -> None:
    """One user more, or fewer; the first makes them, and with the last they go."""
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        file.seek(0)
        alive = [int(pid) for pid in file.read().split() if int(pid) != os.getpid() and os.path.exists(f"/proc/{pid}")]
        now = [*alive, os.getpid()] if change > 0 else alive
        if change > 0:
            _make()
        elif not now:
            _kubectl("delete", "crd", "-l", OURS, "--timeout=60s")
        file.truncate(0)
        file.write(" ".join(map(str, now)))
        file.flush()
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _make() -> None:
    there = json.loads(_kubectl("get", "crd", "-o", "json"))["items"]
    names = {f"{plural}.{group}" for group, plural in KINDS.values()}
    known = {one["metadata"]["name"]: one for one in there if one["metadata"]["name"] in names}
    if any(OURS not in (one["metadata"].get("labels") or {}) for one in known.values()):
        raise CannotBe("the cluster has agent-sandbox of its own")
    for one in definitions():
        if one["metadata"]["name"] not in known:
            _kubectl("create", "--validate=false", "-f", "-", given=json.dumps(one))
    deadline = time.monotonic() + SECONDS
    while True:
        done = subprocess.run(["kubectl", "get", ",".join(names)], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.2)


def _kubectl(*words: str, given: str | None = None) -> str:
    done = subprocess.run(["kubectl", *words], input=given, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
    return done.stdout
