"""What so many sandboxes take: servers' pods full of them, beside a pod for each. Arithmetic from constants that were measured.

    python benchmarks/scale_model.py [--sandboxes 10000] [--node-memory-gib 64] [--node-cores 16] [--pods-a-node 1]
    python benchmarks/scale_model.py --measure 50 200

Each constant says how it was measured; `--measure` makes so many sandboxes here and puts what they take beside what the model
says. Seconds are a lower bound: of the cluster's control plane only the processor is in it, and not its own limits of rates.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, fields
from typing import NamedTuple

from common import console, table

from aviato.server.admission import HostRoom, capacity

MIB, GIB = 2**20, 2**30
TOLERANCE = 0.25
"""A run agrees with the model where its bytes differ by no more than this part."""


class Constant(NamedTuple):
    """A number, and where it comes from."""

    value: float
    what: str
    how: str


SERVER_BYTES = Constant(40.4e6, "memory of a server and its zygote", "PSS, after 20 sandboxes: scale_run.py")
SANDBOX_BYTES = Constant(
    197e3, "memory of a live sandbox, what the server holds for it included", "PSS, 10 to 400: scale_run.py"
)
SERVER_DISK_BYTES = Constant(4.2e6, "disk of a server's state", "blocks on ext4: scale_run.py")
SANDBOX_DISK_BYTES = Constant(77e3, "disk of a live sandbox that has written nothing, at most", "blocks on ext4: scale_run.py")
SANDBOX_FILES = Constant(9, "files and directories of a live sandbox", "scale_run.py")
SANDBOX_DESCRIPTORS = Constant(3, "open files of the server for a sandbox", "scale_run.py")
SANDBOX_PROCESSES = Constant(1, "processes of a sandbox, beside its commands", "scale_run.py")
SANDBOX_REQUESTS = Constant(4, "requests to the server: create, wait, command, stop", "3 without waiting: scale_run.py")
SERVER_SECONDS = Constant(3e-3, "processor of the server, one thread, for a create and a command", "2 × AMD EPYC: scale_run.py")
SANDBOX_SECONDS = Constant(9e-3, "processor of all for a create and a command", "2 × AMD EPYC: scale_run.py")
POD_BYTES = Constant(
    3.7e6, "memory of a pod that does nothing", "PSS of shim, pause, sleep; containerd 1.6, crun: scale_pods.py"
)
POD_REQUESTS = Constant(10, "requests to the API server for a pod, until it is gone", "Kubernetes 1.20: scale_pods.py")
POD_OBJECT_BYTES = Constant(2_200, "a pod in the API server's memory and in etcd", "JSON: scale_pods.py")
POD_SECONDS = Constant(
    0.42, "processor of a pod's start, all parts of the cluster", "50 ready in 10.6 s on 2 cores: scale_pods.py"
)
PODS_A_NODE = Constant(110, "pods that a kubelet takes", "its default")
OPEN_FILES = Constant(1_048_576, "open files of a server", "containerd's usual limit; `ulimit -Hn` in the pod")
CONSTANTS = [one for one in list(globals().values()) if isinstance(one, Constant)]


@dataclass(frozen=True, kw_only=True)
class Need:
    """What is asked for.

    Attributes:
        sandboxes: alive at once.
        command_bytes: memory of a sandbox's own programs, at its height.
        command_seconds: processor time of a sandbox's own programs.
        node_bytes, node_cores: of each node, all of them for sandboxes.
        pods_a_node: servers on a node; 0 is a pod for each sandbox.
    """

    sandboxes: int = 10_000
    command_bytes: float = 64 * MIB
    command_seconds: float = 1.0
    node_bytes: float = 64 * GIB
    node_cores: float = 16
    pods_a_node: int = 1


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What that takes, in all unless it says otherwise.

    Attributes:
        nodes: as memory has it, or the pods that a node takes.
        pods: objects of the cluster.
        each_node: sandboxes of a node.
        overhead_bytes: memory, without that of the sandboxes' own programs.
        bytes: memory with it.
        api_requests: to the cluster's API server, to make and end all.
        server_requests: to aviato's servers, for the same and a command in each.
        api_bytes: what the API server holds.
        descriptors_each: open files of a server.
        disk_bytes: of nodes, while nothing was written.
        start_seconds: until all of them run, if their nodes do nothing else; at least.
        work_seconds: until all have started and done their work.
    """

    nodes: int
    pods: int
    each_node: int
    overhead_bytes: float
    bytes: float
    api_requests: float
    server_requests: float
    api_bytes: float
    descriptors_each: float
    disk_bytes: float
    start_seconds: float
    work_seconds: float


def predict(need: Need) -> Answer:
    """Arithmetic, and nothing else."""
    dense = need.pods_a_node > 0
    if dense:
        room = need.node_bytes - need.pods_a_node * SERVER_BYTES.value
        fitting = int(room // (need.command_bytes + SANDBOX_BYTES.value))
        fitting = min(fitting, need.pods_a_node * capacity(HostRoom(open_files_max=int(OPEN_FILES.value))))
    else:
        fitting = int(min(PODS_A_NODE.value, need.node_bytes // (need.command_bytes + POD_BYTES.value)))
    if fitting < 1:
        raise ValueError(f"a node of {need.node_bytes / GIB:g} GiB holds no sandbox of {need.command_bytes / GIB:g} GiB")
    nodes = math.ceil(need.sandboxes / fitting)
    pods = nodes * need.pods_a_node if dense else need.sandboxes
    overhead = pods * SERVER_BYTES.value + need.sandboxes * SANDBOX_BYTES.value if dense else pods * POD_BYTES.value
    cores = nodes * need.node_cores
    if dense:
        start = max(need.sandboxes / pods * SERVER_SECONDS.value, need.sandboxes * SANDBOX_SECONDS.value / cores)
    else:
        start = need.sandboxes * POD_SECONDS.value / cores
    return Answer(
        nodes=nodes,
        pods=pods,
        each_node=min(fitting, math.ceil(need.sandboxes / nodes)),
        overhead_bytes=overhead,
        bytes=overhead + need.sandboxes * need.command_bytes,
        api_requests=pods * POD_REQUESTS.value,
        server_requests=need.sandboxes * SANDBOX_REQUESTS.value,
        api_bytes=pods * POD_OBJECT_BYTES.value,
        descriptors_each=math.ceil(need.sandboxes / pods) * SANDBOX_DESCRIPTORS.value if dense else 0.0,
        disk_bytes=pods * SERVER_DISK_BYTES.value + need.sandboxes * SANDBOX_DISK_BYTES.value if dense else 0.0,
        start_seconds=start,
        work_seconds=start + need.sandboxes * need.command_seconds / cores,
    )


SHOWN = {
    "nodes": "{:,.0f}",
    "pods": "{:,.0f}",
    "each_node": "{:,.0f}",
    "overhead_bytes": "GiB",
    "bytes": "GiB",
    "api_requests": "{:,.0f}",
    "server_requests": "{:,.0f}",
    "api_bytes": "MiB",
    "descriptors_each": "{:,.0f}",
    "disk_bytes": "GiB",
    "start_seconds": "{:,.1f}",
    "work_seconds": "{:,.1f}",
}


def shown(name: str, value: float) -> str:
    """With its unit."""
    unit = SHOWN[name]
    if value == 0:
        return "–"
    if unit in ("GiB", "MiB"):
        return f"{value / (GIB if unit == 'GiB' else MIB):,.1f} {unit}"
    return unit.format(value)


def tell(need: Need) -> None:
    """Print both ways side by side."""
    ways = {"dense": predict(need), "a pod each": predict(Need(**{**vars(need), "pods_a_node": 0}))}
    rows = [
        (field.name.replace("_", " "), *(shown(field.name, getattr(way, field.name)) for way in ways.values()))
        for field in fields(Answer)
    ]
    table(f"{need.sandboxes:,} sandboxes", ("", *ways), rows)
    table("constants", ("", "value", "how"), [(one.what, f"{one.value:,g}", one.how) for one in CONSTANTS])


def measure(counts: list[int]) -> None:
    """Print what runs take, beside the model."""
    import scale_run

    rows = []
    for count in counts:
        seen, said = scale_run.measure(count), predict(Need(sandboxes=count, command_bytes=0.0, node_bytes=1e15))
        rows.append((f"{count}: memory, MiB", f"{seen.bytes / MIB:.1f}", f"{said.bytes / MIB:.1f}"))
        rows.append((f"{count}: disk, MiB", f"{seen.disk_bytes / MIB:.1f}", f"{said.disk_bytes / MIB:.1f}"))
        rows.append((f"{count}: descriptors", f"{seen.descriptors}", f"{said.descriptors_each:.0f}"))
        rows.append((f"{count}: requests, with a stop each", f"{seen.requests + count}", f"{said.server_requests:.0f}"))
        rows.append((f"{count}: processor, s", f"{seen.processor_seconds:.2f}", f"{count * SANDBOX_SECONDS.value:.2f}"))
    table("a run beside the model", ("", "measured", "model"), rows)


def main() -> None:
    """Print the model, or a run beside it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandboxes", type=int, default=Need.sandboxes)
    parser.add_argument("--node-memory-gib", type=float, default=Need.node_bytes / GIB)
    parser.add_argument("--node-cores", type=float, default=Need.node_cores)
    parser.add_argument("--command-mib", type=float, default=Need.command_bytes / MIB)
    parser.add_argument("--command-seconds", type=float, default=Need.command_seconds)
    parser.add_argument("--pods-a-node", type=int, default=Need.pods_a_node)
    parser.add_argument("--measure", type=int, nargs="+", metavar="N")
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    need = Need(
        sandboxes=options.sandboxes,
        command_bytes=options.command_mib * MIB,
        command_seconds=options.command_seconds,
        node_bytes=options.node_memory_gib * GIB,
        node_cores=options.node_cores,
        pods_a_node=options.pods_a_node,
    )
    try:
        tell(need)
    except ValueError as error:
        console.print(f"{error}")


if __name__ == "__main__":
    main()
