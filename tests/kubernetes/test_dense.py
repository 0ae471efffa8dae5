"""Servers in pods, with sandboxes of the local backend: what a pod has to be allowed, and what it does then."""

from __future__ import annotations

import errno
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from aviato import SandboxDefaults, Session
from aviato.exceptions import AviatoError
from aviato.rl import Task, evaluate
from tests.images.whole_images import make_layout, tar_of
from tests.kubernetes.conftest import KEY, Cluster, own_namespace
from tests.kubernetes.manifests import DEPLOY, as_objects, built, lacking, of_kind

READY = "--timeout=100s"
pytestmark = [pytest.mark.skipif(lacking() is not None, reason=str(lacking()))]


def pod(name, image, security, **fields):
    """One that waits to be asked, with its state on a disk of its node."""
    main = {"name": "server", "image": image, "imagePullPolicy": "IfNotPresent", "securityContext": security, **fields}
    main = {"command": ["sleep", "infinity"], **main, "volumeMounts": [{"name": "state", "mountPath": "/var/lib/aviato"}]}
    main["env"] = [{"name": "AVIATO_STATE_DIR", "value": "/var/lib/aviato/state"}]
    spec = {"containers": [main], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    spec |= {"automountServiceAccountToken": False, "volumes": [{"name": "state", "emptyDir": {}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def doctor(namespace: Cluster, name: str, *before: str) -> tuple[int, str]:
    done = namespace.run("exec", name, "--", *before, "aviato", "doctor")
    return done.returncode, done.stdout + done.stderr


PODS = {
    "default": ({}, "own /proc", "parts of /proc are masked"),
    "runtime-default": ({"seccompProfile": {"type": "RuntimeDefault"}}, "user namespaces", "forbidden in a Kubernetes pod"),
    "unconfined": ({"seccompProfile": {"type": "Unconfined"}}, "own /proc", "parts of /proc are masked"),
    "privileged": ({"privileged": True}, None, None),
}
"""What pods are allowed, by their names, and what doctor has to say fails."""


def test_doctor_says_what_a_pod_lacks_and_its_lines_repair_it(namespace: Cluster, server_image):
    pods = [pod(name, server_image, security) for name, (security, _, _) in PODS.items()]
    namespace.apply(*pods)
    namespace.kubectl("wait", "pods", *PODS, "--for=condition=Ready", READY, seconds=120)
    lines = set()
    for name, (_, failing, why) in PODS.items():
        code, said = doctor(namespace, name)
        failed = re.findall(r"^✗ (.*?)  +(.*)\n +repair: (.*)$", said, re.MULTILINE)
        assert (code, [one[0] for one in failed]) == (0, []) if failing is None else (1, [failing]), said
        assert failing is None or why in failed[0][1]
        lines |= {one[2] for one in failed}
    without = ["env", "AVIATO_BACKEND=landlock", "aviato", "run", "echo", "works"]
    assert namespace.kubectl("exec", "runtime-default", "--", *without) == "works\n", (
        "in any pod there are sandboxes without namespaces"
    )
    namespace.kubectl("delete", "pods", *PODS, "--grace-period=0", "--force")
    (line,) = lines
    (repaired,) = as_objects(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: repaired}\nspec:\n  containers:\n    - "
        + line.removeprefix("in its container: ").partition(", as deploy/")[0]
    )
    said = repaired["spec"]["containers"][0]
    # The command is what the image begins with: here it serves for good, and doctor is asked beside it.
    namespace.apply(pod("repaired", server_image, said["securityContext"], command=said["command"], args=["serve"]))
    namespace.kubectl("wait", "pod", "repaired", "--for=condition=Ready", READY, seconds=120)
    deadline = time.monotonic() + 60
    while True:
        done = namespace.run("exec", "repaired", "--", "start-server", "doctor")
        if done.returncode == 0 or time.monotonic() > deadline:
            break
    assert done.returncode == 0 and "Sandboxes can run here." in done.stdout, done.stdout + done.stderr


class Servers:
    """Those of an overlay."""

    def __init__(self, namespace: Cluster, overlay: str, image: str) -> None:
        self.namespace, self.overlay = namespace, overlay
        self.objects = built(DEPLOY / "overlays" / overlay, namespace, image)
        of_kind(self.objects, "StatefulSet")["spec"]["replicas"] = 1
        self.namespace.apply(*self.objects)

    def ready(self) -> str:
        """The address of its pod, once it is there."""
        self.namespace.kubectl("rollout", "status", "statefulset/aviato", READY, seconds=120)
        return f"http://{self.namespace.get('pod', 'aviato-0')['status']['podIP']}:8700"

    def status(self, field: str) -> str:
        """Of the server's own process."""
        text = self.namespace.kubectl("exec", "aviato-0", "--", "cat", "/proc/1/status")
        return re.search(rf"^{field}:\s*(.*)$", text, re.MULTILINE)[1]


@pytest.fixture
def servers(cluster: Cluster, server_image, request, monkeypatch):
    monkeypatch.setenv("AVIATO_API_KEY", KEY)
    with own_namespace(cluster) as namespace:
        yield Servers(namespace, getattr(request, "param", "dense"), server_image)


BPF = """
import ctypes, platform
ctypes.CDLL(None, use_errno=True).syscall(321 if platform.machine() == "x86_64" else 280, -1, 0, 0)
print(ctypes.get_errno())
"""


def status(url: str, path: str, key: str) -> int:
    """Of the answer to a key."""
    request = urllib.request.Request(f"{url}/v1/{path}", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def sessions(url: str, **defaults) -> Session:
    return Session(SandboxDefaults(base_url=url, **defaults), report_to=[])


@pytest.mark.parametrize("servers", ["dense", "dense-seccomp", "dense-privileged"], indirect=True)
def test_a_pod_serves_many_sandboxes(servers):
    url = servers.ready()
    privileged = servers.overlay == "dense-privileged"
    if not privileged:
        # What the pod began with is given up, and what is left belongs to two programs that map ids.
        assert servers.status("Uid").split() == ["10001"] * 4
        assert (servers.status("CapEff"), servers.status("CapPrm")) == ("0" * 16, "0" * 16)
        assert int(servers.status("CapBnd"), 16) == 1 << 1 | 1 << 6 | 1 << 7
    asked = [
        status(url, path, key)
        for path, key in (("health", "probe"), ("sandboxes", "probe"), ("sandboxes", KEY), ("health", "-"))
    ]
    assert asked == [200, 401, 200, 401], "the key of probes opens what it is for, and nothing else"
    assert servers.status("Seccomp") == ("2" if servers.overlay == "dense-seccomp" else "0")
    if servers.overlay == "dense-seccomp":
        # Of who execs into the pod, who has the capability: the filter is what refuses it.
        said = servers.namespace.kubectl("exec", "aviato-0", "--", "python3", "-c", BPF)
        assert said == f"{errno.EPERM}\n"
    with sessions(url) as session:
        sandboxes = [session.sandbox() for _ in range(60)]
        said = {
            process.result().stdout
            for process in [one.exec(["sh", "-c", "id -u; ls /proc | grep -c '^[0-9]'"]) for one in sandboxes]
        }
        assert {text.split()[0] for text in said} == {"0"} and all(int(text.split()[1]) < 8 for text in said)
        users = sandboxes[0].exec(
            ["sh", "-c", "useradd --create-home bob && su bob -c 'id -un; touch ~/file; stat -c %U ~/file'"]
        )
        assert users.result().stdout.split() == ["bob", "bob"], users.result().stderr
        looked = "cat /etc/aviato/keys || ls /run/secrets /opt/aviato/private /var/lib/aviato || printenv AVIATO_STATE_DIR"
        assert sandboxes[1].exec(["sh", "-c", looked]).result().stdout == "", "the server's own are not to be seen"
        task = Task(code="def double(n):\n    return 2 * n\n", tests=["assert double(2) == 4", "assert double(0) == 0"])
        wrong = Task(code="def double(n):\n    return n\n", tests=["assert double(2) == 4"])
        rewards = [one.reward() for one in evaluate([task, wrong] * 8, session=session, progress=False).result()]
        assert rewards == [1.0, 0.0] * 8


def small_image(directory: Path) -> None:
    """A layout with two users and a file that belongs to one."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("no busybox")
    users = b"root:x:0:0::/:/bin/sh\nbob:x:1000:1000::/home:/bin/sh\n"
    files = {
        "bin/": b"",
        "bin/busybox": Path(busybox).read_bytes(),
        "bin/sh": "busybox",
        "bin/cat": "busybox",
        "bin/id": "busybox",
    }
    files |= {"etc/": b"", "etc/passwd": (0o644, 0, 0, users), "home/": b"", "home/file": (0o600, 1000, 1000, b"bob's")}
    make_layout(directory / "layout", [tar_of(files)], {"Env": ["PATH=/bin"]})


def test_images_lie_on_a_volume_of_their_own_and_keep_their_users(servers, tmp_path):
    spec = of_kind(servers.objects, "StatefulSet")["spec"]["template"]["spec"]
    spec["volumes"].append({"name": "images", "emptyDir": {}})
    spec["containers"][0]["volumeMounts"].append({"name": "images", "mountPath": "/var/lib/aviato/state/images"})
    servers.namespace.apply(*servers.objects)
    url = servers.ready()
    small_image(tmp_path)
    with subprocess.Popen(["tar", "-C", tmp_path, "-cf", "-", "layout"], stdout=subprocess.PIPE) as packed:
        unpack = ["exec", "-i", "aviato-0", "--", "tar", "-C", "/tmp", "-xf", "-"]
        subprocess.run(["kubectl", "--namespace", servers.namespace.namespace, *unpack], stdin=packed.stdout, check=True)
    servers.namespace.kubectl("exec", "aviato-0", "--", "start-server", "image", "import", "/tmp/layout", "--as", "small:1")
    with sessions(url) as session:
        sandbox = session.sandbox(container_image="small:1")
        assert sandbox.exec(["sh", "-c", "id -u; cat /home/file"], user="bob").result().stdout == "1000\nbob's"


def test_a_pod_that_dies_is_no_verdict_and_its_next_one_serves(servers):
    # In the end it cannot stop what has gone.
    with pytest.raises(AviatoError), sessions(servers.ready(), reconnect_timeout_seconds=3.0) as session:
        sandbox = session.sandbox()
        sandbox.exec(["true"]).result()
        running = sandbox.exec(["sleep", "600"])
        servers.namespace.kubectl("delete", "pod", "aviato-0", "--wait=true", seconds=100)
        with pytest.raises(AviatoError) as caught:
            running.result()
        assert caught.value.is_infrastructure, caught.value
    with sessions(servers.ready()) as session:
        assert session.sandbox().exec(["echo", "again"]).result().stdout == "again\n"
