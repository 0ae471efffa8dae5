"""What bare pods take that do nothing: requests to the API server, memory on their node, seconds until they are ready.

    python benchmarks/scale_pods.py [--pods N] [--namespace NAME] [--image REF]

By the cluster of KUBECONFIG. Memory is read where a node's processes can be seen (root, in the nodes' namespace of processes).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import console, table

from aviato.bench.growth import tree_bytes
from aviato.bench.processes import descendants

BACKGROUND = re.compile(r'resource="(leases|events|tokenreviews|subjectaccessreviews|nodes)"|verb="WATCH"')
"""What goes by time, and not by pods; events are counted beside."""


def kubectl(*arguments: str, given: str | None = None) -> str:
    """What it says."""
    return subprocess.run(["kubectl", *arguments], input=given, capture_output=True, text=True, check=True).stdout


def requests() -> Counter[str]:
    """Answered so far, by verb and resource."""
    found: Counter[str] = Counter()
    for line in kubectl("get", "--raw", "/metrics").splitlines():
        if line.startswith("apiserver_request_total{") and not BACKGROUND.search(line):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            found[f"{labels['verb']} {labels['resource']}/{labels['subresource']}".rstrip("/")] += int(float(line.split()[-1]))
    return found


def pod(name: str, namespace: str, image: str) -> dict[str, Any]:
    """A manifest."""
    container = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "infinity"]}
    spec = {"containers": [container], "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}
    labels = {"aviato.benchmark": "pods"}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def shims() -> dict[int, int]:
    """Memory (PSS) of every container shim with all below it; by its process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().startswith("containerd-shim"):
                pid = int(path.parent.name)
                found[pid] = tree_bytes(pid) or 0
        except OSError:
            continue  # It has just ended.
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=20)
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--image", default="registry.local/aviato/server:0.1.0")
    options = parser.parse_args()
    manifests = [pod(f"bare-{number}", options.namespace, options.image) for number in range(options.pods)]
    chosen = ("--namespace", options.namespace, "--selector", "aviato.benchmark=pods")
    before, shims_before = requests(), set(shims())
    try:
        begin = time.perf_counter()
        kubectl("create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))
        kubectl("wait", "pods", *chosen, "--for=condition=Ready", "--timeout=300s")
        seconds = time.perf_counter() - begin
        memory = {pid: held for pid, held in shims().items() if pid not in shims_before}
        processes = sum(1 + len(descendants(pid)) for pid in memory)
        listed = json.loads(kubectl("get", "pods", *chosen, "-o", "json"))["items"]
    finally:
        kubectl("delete", "pods", *chosen, "--wait=true")
    asked = requests() - before
    rows = [(name, f"{count / options.pods:.2f}") for name, count in asked.most_common(12)]
    table(
        f"requests a pod, {options.pods} pods created and deleted: {sum(asked.values()) / options.pods:.1f}",
        ("", "a pod"),
        rows,
    )
    mib = sum(memory.values()) / max(1, len(memory)) / 2**20
    console.print(f"ready after {seconds:.1f} s: {options.pods / seconds:.2f} a second")
    console.print(f"memory of {len(memory)} pods: {mib:.2f} MiB each, {processes / max(1, len(memory)):.1f} processes each")
    console.print(f"object: {sum(len(json.dumps(one)) for one in listed) / len(listed):.0f} bytes of JSON each")


if __name__ == "__main__":
    main()
