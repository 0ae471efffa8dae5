"""What an API server is asked for to make one sandbox. Pure."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any

from aviato.server.backends.kubernetes.labels import (
    CLAIM,
    NETWORK,
    PLACE,
    PREFIX,
    SANDBOX,
    SERVER,
    VALUE,
    tag_annotation,
    tag_labels,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aviato.server.backends.base import Limit, SandboxSpec
    from aviato.server.backends.kubernetes.options import ClusterOptions

Object = dict[str, Any]

CONTAINER = "sandbox"
"""The name of the container."""
PORT = 7723
"""Where process 1 listens."""
PROGRAM_DIRECTORY = "/.aviato"
PROGRAM = f"{PROGRAM_DIRECTORY}/aviato-init"
WORKSPACE = "/workspace"
KEY_DIRECTORY = "/.aviato-key"
"""In a pod that was made from a template: process 1 finds its key there, and leaves nothing."""
KEY = "key"
"""In a sandbox's Secret: by which its process 1 knows a server."""
RECORD = "record"
"""In it: what another server has to know."""
UID = 65_532
"""Of all in a pod under `restricted` Pod Security."""
ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
ENDS_LATER_SECONDS = 60
"""After its lifetime a pod is ended by Kubernetes, if its process 1 has not ended by then."""
MOST_SECRET_BYTES = (1 << 20) - (16 << 10)
"""What a sandbox's Secret may hold beside its key and what its server adds to its record: Kubernetes takes 1 MiB in all."""
NODE_SECONDS = 5
"""After a node was found gone its pods are."""
SHM = "shm"
USUAL_CPU, USUAL_MEMORY_BYTES = 0.1, 64 << 20
"""Kept free for who says nothing."""
KEY_VOLUME_BYTES = 64 << 10
GPU = "nvidia.com/gpu"
"""A resource of nodes, and the taint of those that have it."""


def name_of(sandbox_id: str) -> str:
    """What the pod and the Secret of a sandbox are called."""
    return f"aviato-{sandbox_id}"


def labels(claim: str, server: str, spec: SandboxSpec) -> dict[str, str]:
    """Of a pod: `aviato.dev/sandbox` is the id that clients know, `aviato.dev/place` that of the pod.

    Args:
        claim: of all servers of the same sandboxes.
        server: which of them has it.
        spec: of it.
    """
    own = {PLACE: spec.sandbox_id, SANDBOX: spec.host_name or spec.sandbox_id, SERVER: server}
    return {CLAIM: claim, **own, NETWORK: network_of(spec), **tag_labels(spec.tags)}


def network_of(spec: SandboxSpec) -> str:
    """Which policy of the network holds for a pod."""
    return "internet" if spec.network == "internet" else "none"


def own_annotations(spec: SandboxSpec) -> dict[str, str]:
    """Of a pod: what labels cannot say."""
    return {**tag_annotation(spec.tags), f"{PREFIX}image": spec.image.reference}


def unmountable(path: str) -> str | None:
    """Why a file cannot be mounted at a path; None if it can."""
    for closed in ("/proc", "/sys", "/dev", PROGRAM_DIRECTORY, KEY_DIRECTORY):
        if path == closed or path.startswith(f"{closed}/"):
            return f"{closed} is the pod's own"
    if path == WORKSPACE:
        return f"{WORKSPACE} is a directory"
    return "the path has a colon in it, which Kubernetes takes for its own" if ":" in path else None


def not_placeable(ids: Iterable[str]) -> str | None:
    """Why no node can be found by the values of one of its labels; None if one can."""
    for one in ids:
        if not VALUE.fullmatch(one):
            return f"{one!r} is no label's value: 63 letters, digits, '-', '_' and '.' at most, a letter or digit at both ends"
    return None


def secret_bytes(spec: SandboxSpec) -> int:
    """How much of its Secret a sandbox needs for its record and its files."""
    return len((spec.record or "").encode()) + sum(len(file.content) for file in spec.mounted_files)


def secret(spec: SandboxSpec, key: bytes | None, claim: str, server: str, owner: Object) -> Object:
    """The key of a sandbox (None: a pool's makes it), what another server has to know of it, and the files that it finds."""
    data = {} if key is None else key_data(key)
    if spec.record is not None:
        data[RECORD] = text_of(spec.record.encode())
    data |= {file_key(number): text_of(file.content) for number, file in enumerate(spec.mounted_files)}
    return _secret(name_of(spec.sandbox_id), {CLAIM: claim, PLACE: spec.sandbox_id, SERVER: server}, owner, data)


def _secret(name: str, labels: dict[str, str], owner: Object, data: dict[str, str]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
        "type": "Opaque",
        "data": data,
    }


def key_data(key: bytes) -> dict[str, str]:
    """A key as a Secret has it."""
    return {KEY: text_of(key.hex().encode())}


def data_in(kept: Object) -> dict[str, str]:
    """What a Secret has; one without anything says nothing of that."""
    return kept.get("data") or {}


def file_key(number: int) -> str:
    """Under which a sandbox's Secret has one of its mounted files."""
    return f"file-{number}"


def record_in(kept: Object) -> tuple[str, list[bytes]] | None:
    """The record that a Secret has, and the contents of the mounted files; None: it has none."""
    data = {name: base64.b64decode(text) for name, text in data_in(kept).items()}
    if not (record := data.get(RECORD)):
        return None
    files = [data[key] for key in map(file_key, range(len(data))) if key in data]
    return record.decode(), files


def key_in(kept: Object) -> bytes:
    """The key that a Secret has."""
    return bytes.fromhex(base64.b64decode(data_in(kept)[KEY]).decode())


def pool_key(claim: str, key: bytes, owner: Object) -> Object:
    """The Secret of which the keys of all pods are made that come from templates."""
    return _secret(pool_key_name(claim), {CLAIM: claim}, owner, key_data(key))


def pool_key_name(claim: str) -> str:
    """What that is called."""
    return f"{claim}-pool-key"


def pod(
    spec: SandboxSpec, image: str, held: Mapping[str, Limit], options: ClusterOptions, server: str, owner: Object | None
) -> Object:
    """The pod of a sandbox.

    Args:
        spec: what is wanted.
        image: as the nodes' engines have it.
        held: its limits.
        options: of the server.
        server: which has it.
        owner: what the pod goes with; None: nothing.
    """
    name = name_of(spec.sandbox_id)
    body = _pod_spec(spec, image, held, options)
    body["hostname"] = spec.host_name or spec.sandbox_id
    body["containers"][0]["env"].insert(0, {"name": "AVIATO_KEY", "valueFrom": _from_secret(name)})
    if spec.mounted_files:
        items = [{"key": key, "path": key} for key in map(file_key, range(len(spec.mounted_files)))]
        body["volumes"].append({"name": "files", "secret": {"secretName": name, "items": items, "defaultMode": 0o444}})
        for number, file in enumerate(spec.mounted_files):
            mount = {"name": "files", "mountPath": file.path, "subPath": file_key(number), "readOnly": True}
            body["containers"][0]["volumeMounts"].append(mount)
    if spec.max_lifetime_seconds is not None:
        body["activeDeadlineSeconds"] = math.ceil(spec.max_lifetime_seconds + options.start_seconds) + ENDS_LATER_SECONDS
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels(options.claim, server, spec),
            "annotations": own_annotations(spec),
            **({} if owner is None else {"ownerReferences": [owner]}),
        },
        "spec": body,
    }


def pod_template(spec: SandboxSpec, image: str, held: Mapping[str, Limit], options: ClusterOptions) -> Object:
    """What pods are made from that are nobody's yet: whose they are, their labels and the server's words say later.

    Its init container alone sees the key of the pool; what it leaves is the key of this pod, which process 1 takes.

    Args:
        spec: image, network, resources and placement of all of them.
        image: as the nodes' engines have it.
        held: their limits.
        options: of the servers that will have them.
    """
    body = _pod_spec(spec, image, held, options)
    key = f"{KEY_DIRECTORY}/key"
    mount = {"name": "key", "mountPath": KEY_DIRECTORY}
    body["volumes"].append({"name": "key", "emptyDir": {"medium": "Memory", "sizeLimit": str(KEY_VOLUME_BYTES)}})
    (init,), (container,) = body["initContainers"], body["containers"]
    init["command"] += ["--key", key]
    init["env"] = [
        {"name": "AVIATO_POOL_KEY", "valueFrom": _from_secret(pool_key_name(options.claim))},
        {"name": "AVIATO_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
    ]
    init["volumeMounts"].append(mount)
    container["env"].insert(0, {"name": "AVIATO_KEY_FILE", "value": key})
    container["volumeMounts"].append(mount)
    own = {CLAIM: options.claim, NETWORK: network_of(spec)}
    return {"metadata": {"labels": own, "annotations": {f"{PREFIX}image": spec.image.reference}}, "spec": body}


def _from_secret(name: str) -> Object:
    return {"secretKeyRef": {"name": name, "key": KEY}}


def _pod_spec(spec: SandboxSpec, image: str, held: Mapping[str, Limit], options: ClusterOptions) -> Object:
    """What all pods with these resources are alike in."""
    body: Object = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "tolerations": _tolerations(spec),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": pod_security(options),
        "initContainers": [
            {
                "name": "aviato-init",
                "image": str(options.init_image),
                "imagePullPolicy": "IfNotPresent",
                "command": ["aviato-init", "install", PROGRAM],
                "securityContext": _unprivileged(),
                "resources": {"limits": {"cpu": "500m", "memory": "32Mi"}, "requests": {"cpu": "1m", "memory": "8Mi"}},
                "volumeMounts": [{"name": "program", "mountPath": PROGRAM_DIRECTORY}],
            }
        ],
        "containers": [
            {
                "name": CONTAINER,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": [PROGRAM, "serve", "--port", str(PORT)],
                "env": [{"name": "AVIATO_TERMINATION_LOG", "value": "/dev/termination-log"}],
                "ports": [{"name": "aviato", "containerPort": PORT}],
                "securityContext": security(options),
                "resources": resources(spec, held),
                "volumeMounts": [
                    {"name": "program", "mountPath": PROGRAM_DIRECTORY, "readOnly": True},
                    {"name": "workspace", "mountPath": WORKSPACE},
                    {"name": SHM, "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "program", "emptyDir": {}},
            {"name": "workspace", "emptyDir": _sized(held, "disk")},
            {"name": SHM, "emptyDir": {"medium": "Memory", **_sized(held, SHM)}},
        ],
        **_placed(spec, options),
    }
    if options.runtime_class is not None:
        body["runtimeClassName"] = options.runtime_class
    if options.pull_secrets:
        body["imagePullSecrets"] = [{"name": one} for one in options.pull_secrets]
    return body


def _tolerations(spec: SandboxSpec) -> list[Object]:
    """Of a node that is gone a sandbox has nothing to wait for: its files and processes are gone with it."""
    gone = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": NODE_SECONDS}
    found: list[Object] = [{"key": f"node.kubernetes.io/{what}", **gone} for what in ("unreachable", "not-ready")]
    if _gpus(spec):
        # Nodes with GPUs are commonly kept free of all that needs none, by a taint of the resource's name.
        found.append({"key": GPU, "operator": "Exists", "effect": "NoSchedule"})
    return found


def _gpus(spec: SandboxSpec) -> int:
    return int(spec.limits.get("gpu", spec.requests.get("gpu", 0)))


def pod_security(options: ClusterOptions) -> Object:
    """Of all its containers."""
    if options.security == "root":
        return {"seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "runAsNonRoot": True,
        "runAsUser": UID,
        "runAsGroup": UID,
        "fsGroup": UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def security(options: ClusterOptions) -> Object:
    """Of the container."""
    if options.security == "restricted":
        return _unprivileged()
    # SETPCAP: process 1 takes from its commands what is its own.
    own = ["SETPCAP", *ROOT_CAPABILITIES]
    return {
        "runAsUser": 0,
        "runAsGroup": 0,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": own},
    }


def _unprivileged() -> Object:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def resources(spec: SandboxSpec, held: Mapping[str, Limit]) -> Object:
    """What a node keeps free for it, and what it may not go beyond."""
    limits: dict[str, str] = {}
    memory = int(held["memory"].value or 0)
    if memory:
        limits["memory"] = str(memory)
    if held["cpu"].value:
        limits["cpu"] = _cores(held["cpu"].value)
    if held["disk"].value:
        limits["ephemeral-storage"] = str(int(held["disk"].value))
    requests = {
        "cpu": _cores(spec.requests.get("cpu", spec.limits.get("cpu", USUAL_CPU))),
        "memory": str(int(spec.requests.get("memory", min(spec.limits.get("memory", USUAL_MEMORY_BYTES), memory)))),
    }
    if "disk" in spec.requests:
        requests["ephemeral-storage"] = str(int(spec.requests["disk"]))
    if gpus := _gpus(spec):
        limits[GPU] = str(gpus)
    return {"limits": limits, "requests": requests}


def _placed(spec: SandboxSpec, options: ClusterOptions) -> Object:
    """Which nodes it may be on."""
    wanted = []
    if spec.runway_ids:
        wanted.append({"key": options.pool_label, "operator": "In", "values": sorted(spec.runway_ids)})
    if spec.tower_ids:
        wanted.append({"key": "kubernetes.io/hostname", "operator": "In", "values": sorted(spec.tower_ids)})
    if not wanted:
        return {}
    terms = {"nodeSelectorTerms": [{"matchExpressions": wanted}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def policies(claim: str, owner: Object) -> list[Object]:
    """What holds of the network of all sandboxes of a claim: nobody comes in but by the port of process 1, with its key."""
    private = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10", "127.0.0.0/8"]
    out = {
        "none": [],
        "internet": [
            {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": private}}]},
            {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]},
        ],
    }
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": f"{claim}-network-{name}", "labels": {CLAIM: claim}, "ownerReferences": [owner]},
            "spec": {
                "podSelector": {"matchLabels": {CLAIM: claim, NETWORK: name}},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"ports": [{"protocol": "TCP", "port": PORT}]}],
                "egress": egress,
            },
        }
        for name, egress in out.items()
    ]


def claim_map(claim: str) -> Object:
    """What all objects of a claim belong to: with it Kubernetes takes them away."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{claim}-claim", "labels": {CLAIM: claim}},
        "data": {"about": "Pods, Secrets and NetworkPolicies of the sandboxes of aviato belong to this; they go with it."},
    }


def owner_of(found: Object) -> Object:
    """A reference to an object."""
    return {
        "apiVersion": found.get("apiVersion", "v1"),
        "kind": found.get("kind", "ConfigMap"),
        "name": found["metadata"]["name"],
        "uid": found["metadata"]["uid"],
    }


def _sized(held: Mapping[str, Limit], name: str) -> Object:
    value = held[name].value if name in held else None
    return {"sizeLimit": str(int(value))} if value else {}


def _cores(value: float) -> str:
    return f"{max(1, round(value * 1000))}m"


def text_of(data: bytes) -> str:
    """As a Secret has it."""
    return base64.b64encode(data).decode("ascii")
