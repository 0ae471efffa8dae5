"""What `deploy/kubernetes` holds is what an API server takes, and says what the guide promises."""

from __future__ import annotations

import json

import pytest

from aviato.server.backends.kubernetes import probe
from aviato.server.backends.local import container
from tests.kubernetes.conftest import Cluster
from tests.kubernetes.manifests import DEPLOY, OVERLAYS, as_objects, built, lacking, of_kind

pytestmark = pytest.mark.skipif(lacking() is not None, reason=str(lacking()))


def container_of(objects):
    pod = of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    return pod, server


@pytest.mark.parametrize("overlay", [None, *OVERLAYS])
def test_every_overlay_is_taken_by_the_api_server(namespace: Cluster, overlay):
    objects = built(DEPLOY / "base" if overlay is None else DEPLOY / "overlays" / overlay, namespace)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    said = namespace.kubectl("apply", "--dry-run=server", "--validate=false", "-f", "-", given=text)
    assert len(said.splitlines()) == len(objects) and said.count("created (server dry run)") == len(objects), said


@pytest.mark.parametrize("overlay", [None, *OVERLAYS])
def test_what_every_server_has(overlay):
    objects = built(DEPLOY / "base" if overlay is None else DEPLOY / "overlays" / overlay)
    pod, server = container_of(objects)
    assert pod["automountServiceAccountToken"] is (overlay in ("pods", "agent-sandbox"))  # They speak with the API server.
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[kind]["httpGet"]["path"] == "/v1/health"
    assert server["resources"]["requests"] and server["resources"]["limits"]["memory"]
    labels = of_kind(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    selectors = [one["spec"]["selector"] for one in objects if one["kind"] == "Service"]
    selectors += [of_kind(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]]
    selectors += [of_kind(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]]
    assert all(selector.items() <= labels.items() and selector for selector in selectors)
    # Headless ones are in no pod's variables.
    named = [one["metadata"]["name"] for one in objects if one["kind"] == "Service" and one["spec"].get("clusterIP") != "None"]
    assert named and not any(name.startswith("aviato") for name in named), "AVIATO_PORT of a service would be a setting"
    keys = next(volume for volume in pod["volumes"] if volume["name"] == "keys")
    assert keys["secret"]["secretName"] == "aviato-keys"


def test_who_begins_with_which_rights():
    pod, server = container_of(built(DEPLOY / "base"))
    assert pod["securityContext"]["runAsNonRoot"] and server["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert server["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    profiles = {"dense": {"type": "Unconfined"}, "dense-seccomp": {"type": "Localhost", "localhostProfile": "aviato.json"}}
    for overlay in ("dense", "dense-seccomp", "dense-user-namespaces"):
        pod, server = container_of(built(DEPLOY / "overlays" / overlay))
        assert server["command"] == ["start-server"] and not server["securityContext"].get("privileged")
        assert server["securityContext"]["seccompProfile"] == profiles.get(overlay, profiles["dense"])
        assert pod.get("hostUsers") is (False if overlay == "dense-user-namespaces" else None)
    _, server = container_of(built(DEPLOY / "overlays" / "dense-privileged"))
    assert server["securityContext"]["privileged"] and "capabilities" not in server["securityContext"]


def test_what_doctor_prints_is_what_the_overlay_has():
    """Its lines, in a pod, are those of the manifest."""
    printed = container.KUBERNETES.remedy.removeprefix("in its container: ").partition(", as deploy/")[0]
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: one}\nspec:\n  containers:\n    - " + printed
    (pod,) = as_objects(text)
    said = pod["spec"]["containers"][0]
    _, server = container_of(built(DEPLOY / "overlays" / "dense"))
    assert said["command"] == server["command"]
    for name in ("capabilities", "seccompProfile"):
        assert said["securityContext"][name] == server["securityContext"][name]


def test_the_profile_allows_what_makes_sandboxes_and_little_else():
    profile = json.loads((DEPLOY / "seccomp" / "aviato.json").read_text())
    allowed = {name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    refused = {name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ERRNO" for name in rule["names"]}
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO" and not allowed & refused
    assert {"clone", "clone3", "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "sethostname"} <= allowed
    assert {"move_mount", "open_tree", "mount_setattr", "seccomp", "landlock_create_ruleset"} <= allowed
    assert {"bpf", "kexec_load", "init_module", "reboot", "perf_event_open", "io_uring_setup", "open_by_handle_at"} <= refused
    assert {"keyctl", "swapon", "settimeofday", "userfaultfd"} <= refused


@pytest.mark.parametrize(
    ("overlay", "wanted"),
    [
        ("pods", (*probe.RIGHTS, probe.FORWARD)),
        ("agent-sandbox", (*probe.RIGHTS, probe.FORWARD, *probe.AGENT_SANDBOX, *probe.WARM_POOL)),
    ],
)
def test_what_doctor_looks_for_is_what_the_overlay_gives(overlay, wanted):
    objects = built(DEPLOY / "overlays" / overlay)
    bound = {one["roleRef"]["name"] for one in objects if one["kind"] == "RoleBinding"}
    rules = [rule for one in objects if one["kind"] == "Role" and one["metadata"]["name"] in bound for rule in one["rules"]]
    given = {
        (group, kind, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {(group, kind + (part and f"/{part}"), verb) for group, kind, part, verb in wanted} <= given


def test_who_may_ask_needs_one_label():
    """As the guide has it: a pod of the namespace, whatever else it is called."""
    for overlay in ("dense", "pods"):
        policy = of_kind(built(DEPLOY / "overlays" / overlay), "NetworkPolicy")
        (rule,) = policy["spec"]["ingress"]
        assert rule["from"] == [{"podSelector": {"matchLabels": {"aviato.client": "true"}}}]
