"""What a pod's status means for its sandbox. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

Object = dict[str, Any]
Phase = Literal["waits", "runs", "ended"]

END_REASONS = {0: "stopped", 81: "lifetime", 82: "idle", 83: "orphaned", 84: "exited"}
"""What an exit status of process 1 says: no code inside can have it end with another."""
_IMAGE = {
    "InvalidImageName": "no_such_name",
    "ErrImageNeverPull": "image_not_here",
    "ErrImagePull": "image_pull",
    "ImagePullBackOff": "image_pull",
    "ImageInspectError": "image_pull",
    "RegistryUnavailable": "image_pull",
}
_FINAL_IMAGE = ("InvalidImageName", "ErrImageNeverPull")
_CONFIGURED = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError")
_OWN_DISK = ("ephemeral local storage usage exceeds", "usage of emptydir volume", "exceeds its local ephemeral storage limit")


@dataclass(frozen=True, kw_only=True)
class PodState:
    """Where a pod is.

    Attributes:
        phase: `runs` once its container does.
        reason: why it waits or how it ended, in one word; empty: nothing is known.
        message: the same for people.
        is_image: it waits for its image, and something is wrong with that.
        is_final: it waits for what will not come.
        address: of the pod.
        node: where it is.
        image_id: of the image, as the node's engine has it.
        uid: of the pod.
        name: of the pod.
    """

    phase: Phase
    reason: str = ""
    message: str = ""
    is_image: bool = False
    is_final: bool = False
    address: str | None = None
    node: str | None = None
    image_id: str | None = None
    uid: str = ""
    name: str = ""

    @property
    def left(self) -> str | None:
        """The reason that a service knows of how its process 1 ended; None: no more is known than that it is gone."""
        return self.reason if self.phase == "ended" and self.reason in (*END_REASONS.values(), "oom", "disk") else None


def state_of(pod: Object, container: str) -> PodState:
    """From the pod as the API server has it.

    Args:
        pod: all of it.
        container: the name of the one that is the sandbox.
    """
    status = pod.get("status") or {}
    found: Object = next((one for one in status.get("containerStatuses") or [] if one.get("name") == container), {})
    here: Object = {
        "address": status.get("podIP"),
        "node": (pod.get("spec") or {}).get("nodeName"),
        "image_id": found.get("imageID") or None,
        "uid": str(pod["metadata"].get("uid", "")),
        "name": str(pod["metadata"].get("name", "")),
    }
    state = found.get("state") or {}
    if (over := _ended(status, state)) is not None:
        return PodState(phase="ended", reason=over[0], message=over[1], **here)
    if pod["metadata"].get("deletionTimestamp"):
        return PodState(phase="ended", reason="deleted", message="its pod is being deleted", **here)
    if "running" in state:
        return PodState(phase="runs", **here)
    return _waiting(status, here)


def _ended(status: Object, state: Object) -> tuple[str, str] | None:
    """How it ended, if it has."""
    whole, text = str(status.get("reason") or ""), str(status.get("message") or "")
    if whole == "Evicted":
        own = any(words in text.lower() for words in _OWN_DISK)
        return ("disk", text) if own else ("evicted", f"the node evicted its pod: {text}")
    if whole == "DeadlineExceeded":
        return "lifetime", text
    if whole in ("NodeLost", "NodeShutdown", "Terminated", "Shutdown", "Preempting", "NodeAffinity", "OutOfcpu", "OutOfmemory"):
        return "node", f"{whole}: {text}"
    if (over := state.get("terminated")) is not None:
        code, why = int(over.get("exitCode", -1)), str(over.get("reason") or "")
        if code in END_REASONS:
            return END_REASONS[code], ""  # First: kubelets say OOMKilled, too, where the kernel has killed a command once.
        if why == "OOMKilled":
            return "oom", "its memory limit was reached, and the kernel killed its process 1"
        return (
            "start_failed" if code == 85 else "lost",
            f"process 1 ended with status {code} ({why}): {over.get('message') or ''}",
        )
    if status.get("phase") in ("Failed", "Succeeded"):
        failed = next(
            (one for one in status.get("initContainerStatuses") or [] if "terminated" in (one.get("state") or {})), None
        )
        over = {} if failed is None else failed["state"]["terminated"]
        if over.get("exitCode"):
            said = over.get("message") or over.get("reason") or ""
            return "start_failed", f"its init container ended with status {over['exitCode']}: {said}"
        return "lost", f"its pod has ended: {whole} {text}".rstrip()
    return None


def _waiting(status: Object, here: Object) -> PodState:
    """Why it does not run yet."""
    everybody = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for one in everybody:
        wait = (one.get("state") or {}).get("waiting") or {}
        reason, message = str(wait.get("reason") or ""), str(wait.get("message") or "")
        text = f"{one.get('image')}: {reason}: {message}" if message else f"{one.get('image')}: {reason}"
        if reason in _IMAGE:
            return PodState(
                phase="waits",
                reason=_IMAGE[reason],
                message=text,
                is_image=one.get("name") != "aviato-init",
                is_final=reason in _FINAL_IMAGE,
                **here,
            )
        if reason in _CONFIGURED:
            return PodState(phase="waits", reason="start_failed", message=f"{reason}: {message}", is_final=True, **here)
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return PodState(phase="waits", reason="unschedulable", message=str(condition.get("message") or ""), **here)
    return PodState(phase="waits", reason="starting" if here["node"] else "scheduling", **here)


def last_warning(events: Iterable[Object]) -> str | None:
    """What went wrong last, of the events of a pod."""
    found = [event for event in events if event.get("type") == "Warning"]
    if not found:
        return None
    last = max(found, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return f"{last.get('reason')}: {last.get('message')}"
