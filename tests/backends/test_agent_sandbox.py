"""What is asked of agent-sandbox's controller, and what its objects mean, without a cluster."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from aviato.server.backends.base import MountedFile, ResolvedImage, SandboxSpec
from aviato.server.backends.kubernetes import agent_sandbox, objects
from aviato.server.backends.kubernetes.agent_sandbox import FITS, GIVES, Gives, said_by
from aviato.server.backends.kubernetes.limits import pod_limits
from aviato.server.backends.kubernetes.options import ClusterOptions
from aviato.server.backends.kubernetes.pods import Pods

IMAGE = ResolvedImage(reference="python:3.12", kind="oci", image_id="docker.io/library/python:3.12")
SPEC = SandboxSpec(sandbox_id="sb-1", host_name="sb-0", image=IMAGE, tags=("run=7",), limits={"memory": 1 << 30}, record="{}")
OPTIONS = ClusterOptions(claim="c", init_image="registry.example.org/init:1", objects="agent-sandbox", warm_pool="p")
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c-claim", "uid": "u"}


def pod_of(spec: SandboxSpec) -> dict:
    return objects.pod(spec, str(spec.image.image_id), pod_limits(spec.requests, spec.limits), OPTIONS, "server", OWNER)


def test_a_sandbox_has_our_pod_and_nothing_else():
    pod = pod_of(SPEC)
    made = agent_sandbox.sandbox(pod, SPEC, OPTIONS)
    assert made["spec"] == {
        "podTemplate": {
            "metadata": {"labels": pod["metadata"]["labels"], "annotations": pod["metadata"]["annotations"]},
            "spec": pod["spec"],
        },
        "service": False,
    }
    assert made["metadata"] == {key: pod["metadata"][key] for key in ("name", "labels", "ownerReferences")}


def test_a_lifetime_is_the_clusters_too():
    limited = replace(SPEC, max_lifetime_seconds=60.0)
    made = agent_sandbox.sandbox(pod_of(limited), limited, OPTIONS)["spec"]
    assert made["shutdownPolicy"] == "Delete" and made["shutdownTime"].endswith("Z")
    assert made["podTemplate"]["spec"]["activeDeadlineSeconds"] == 60 + 300 + 60
    claim = agent_sandbox.claim(limited, {}, OPTIONS, OWNER)["spec"]
    assert claim["lifecycle"]["shutdownPolicy"] == "Delete"


def test_a_claim_says_nothing_of_what_is_secret_or_passes_the_pool_over():
    spec = replace(SPEC, environment={"A": "never"}, secrets={"B": "never"})
    made = agent_sandbox.claim(spec, {"aviato.dev/claim": "c"}, OPTIONS, OWNER)
    assert made["spec"] == {"warmPoolRef": {"name": "p"}}
    assert "never" not in json.dumps(made)


def test_only_the_init_container_of_a_template_sees_the_pools_key():
    gives = Gives.of(SPEC)
    assert gives is not None
    spec = gives.pods(OPTIONS)["spec"]
    (init,), (container,) = spec["initContainers"], spec["containers"]
    assert init["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "c-pool-key", "key": "key"}
    assert init["command"] == ["aviato-init", "install", "/.aviato/aviato-init", "--key", "/.aviato-key/key"]
    assert "secret" not in json.dumps([container, spec["volumes"]]).lower()
    assert next(one for one in spec["volumes"] if one["name"] == "key")["emptyDir"]["medium"] == "Memory"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"environment": {"A": "1"}, "secrets": {"B": "2"}, "tags": ("x",), "host_name": "h", "working_dir": "/"}, True),
        ({"max_lifetime_seconds": 10.0, "idle_timeout_seconds": 1.0, "limits": {"memory": float(1 << 30)}}, True),
        ({"limits": {"memory": 1 << 30, "processes": 5}}, True),  # Process 1 counts those.
        (
            {"image": replace(IMAGE, image_id="docker.io/library/python@sha256:" + "0" * 64)},
            True,
        ),
        ({"image": replace(IMAGE, reference="python:3.13")}, False),
        ({"limits": {"memory": 1 << 29}}, False),
        ({"limits": {"memory": 1 << 30, "cpu": 1}}, False),
        ({"requests": {"cpu": 1}}, False),
        ({"limits": {"memory": 1 << 30, "gpu": 1}}, False),
        ({"network": "internet"}, False),
        ({"mounted_files": (MountedFile(path="/a", content=b""),)}, False),
        ({"tower_ids": ("node1",)}, False),
        ({"runway_ids": ("pool",)}, False),
    ],
)
def test_who_is_taken_from_a_pool(changed, expected):
    (template, pool) = agent_sandbox.warm_pool("p", 3, Gives.of(SPEC), OPTIONS)
    assert pool["spec"]["replicas"] == 3 and pool["spec"]["sandboxTemplateRef"] == {"name": "p"}
    wanted = Gives.of(replace(SPEC, **changed))
    fits = template["metadata"]["annotations"][FITS]
    assert fits == template["spec"]["podTemplate"]["metadata"]["annotations"][FITS]
    assert (wanted is not None and wanted.fits(OPTIONS) == fits) is expected


@pytest.mark.parametrize(
    "changed",
    [{"claim": "d"}, {"init_image": "other"}, {"security": "root"}, {"runtime_class": "kata"}, {"pull_secrets": ("s",)}],
)
def test_a_template_is_for_servers_with_the_same_options(changed):
    gives = Gives.of(SPEC)
    assert gives is not None and gives.fits(OPTIONS) != gives.fits(replace(OPTIONS, **changed))


def test_what_a_template_says_that_it_gives_is_read():
    gives = Gives.of(SPEC)
    (template, _) = agent_sandbox.warm_pool("p", 1, gives, OPTIONS)
    assert Gives.read(template["metadata"]["annotations"][GIVES]) == gives
    for wrong in ("", "{}", "[]", "1", '{"image": 1}', "{"):
        assert Gives.read(wrong) is None


def condition(kind, status, reason, message=""):
    return {"type": kind, "status": status, "reason": reason, "message": message}


@pytest.mark.parametrize(
    ("status", "reason", "words", "sandbox", "is_quota"),
    [
        ({}, "", "", None, False),
        ({"conditions": None}, "", "", None, False),
        (
            {"conditions": [condition("Ready", "False", "DependenciesNotReady", "Pod does not exist")]},
            *("DependenciesNotReady", "DependenciesNotReady: Pod does not exist", None, False),
        ),
        (
            {
                "conditions": [
                    condition("Ready", "False", "DependenciesNotReady", "Pod exists with phase: Pending"),
                    condition("PodScheduled", "False", "Unschedulable", "0/2 nodes are available"),
                ]
            },
            *("DependenciesNotReady", "Unschedulable: 0/2 nodes are available", None, False),
        ),
        (
            {"conditions": [condition("Ready", "False", "ReconcilerError", "Error seen: exceeded quota: few")]},
            *("ReconcilerError", "ReconcilerError: Error seen: exceeded quota: few", None, True),
        ),
        (
            {"conditions": [condition("Ready", "True", "DependenciesReady")], "sandbox": {"name": "p-x"}},
            *("DependenciesReady", "DependenciesReady", "p-x", False),
        ),
    ],
)
def test_what_its_objects_say(status, reason, words, sandbox, is_quota):
    said = said_by({"metadata": {"uid": "u", "labels": {"aviato.dev/server": "s"}}, "status": status})
    assert (said.uid, said.server, said.reason, said.words, said.sandbox, said.is_quota) == (
        *("u", "s"),
        *(reason, words, sandbox, is_quota),
    )


def test_which_pod_is_a_sandboxs():
    found = {"metadata": {"name": "one", "uid": "u"}}
    assert agent_sandbox.pod_of(found) == "one"
    found["metadata"]["annotations"] = {"agents.x-k8s.io/pod-name": "two"}
    assert agent_sandbox.pod_of(found) == "two"
    pod = {"metadata": {"ownerReferences": [{"uid": "u"}, {"uid": "v", "controller": True}]}}
    assert agent_sandbox.is_controlled_by(pod, "v") and not agent_sandbox.is_controlled_by(pod, "u")
    assert not agent_sandbox.is_controlled_by({"metadata": {}}, "u")


class NoCluster:
    def path(self, kind: str, name: str | None = None, *, group: str = "api/v1") -> str:
        return f"/{group}/{kind}/{name or ''}"


def seen(uid: str, *, server: str = "server", phase: str = "Running") -> dict:
    state = {"running": {}} if phase == "Running" else {"terminated": {"exitCode": 0}}
    labels = {**pod_of(SPEC)["metadata"]["labels"], "aviato.dev/server": server}
    return {
        "metadata": {"name": "aviato-sb-1", "uid": uid, "labels": labels},
        "status": {"phase": phase, "containerStatuses": [{"name": "sandbox", "state": state}]},
    }


def test_a_place_has_one_pod_ever():
    ended: list[str] = []
    pods = Pods(NoCluster(), "c", "server", ended.append)  # type: ignore[arg-type]
    pods.expect("sb-1")
    assert not pods.had_one("sb-1")
    pods.take("sb-1", seen("one"))
    assert pods.had_one("sb-1") and pods.of("sb-1").phase == "runs"
    pods._hear("DELETED", seen("one"))
    assert (pods.of("sb-1"), pods.had_one("sb-1"), ended) == (None, True, ["sb-1"])
    pods._hear("ADDED", seen("two"))
    state = pods.of("sb-1")
    assert (state.phase, state.left) == ("ended", None) and "another one" in state.message and ended == ["sb-1"]
    pods._hear("DELETED", seen("two"))
    assert pods.of("sb-1").phase == "ended"
    pods.forget("sb-1")
    pods.take("sb-1", seen("three"))
    assert pods.of("sb-1").phase == "runs" and not pods.had_one("sb-1")


def test_another_servers_pod_is_that_servers_to_tell():
    pods = Pods(NoCluster(), "c", "server", lambda _: None)  # type: ignore[arg-type]
    pods.expect("sb-1")
    pods.take("sb-1", seen("one"))
    pods.take("sb-1", seen("one", server="other"))
    pods.take("sb-1", seen("two", server="other"))
    assert pods.of("sb-1").phase == "runs" and pods.server("sb-1") == "other"


def test_a_pod_of_nobody_is_not_looked_at():
    pods = Pods(NoCluster(), "c", "server", lambda _: None)  # type: ignore[arg-type]
    ready = seen("one")
    del ready["metadata"]["labels"]["aviato.dev/place"]
    pods._hear("ADDED", ready)
    pods._hear("DELETED", ready)
    assert pods.ids() == []
