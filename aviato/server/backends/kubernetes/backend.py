"""The kubernetes backend: sandboxes as pods of a cluster, each with aviato-init as its process 1."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import platform
import secrets
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError, AviatoValidationError, SandboxUnavailableError
from aviato.server.backends.base import Backend, Capability, SandboxSpec
from aviato.server.backends.kubernetes import objects, plan, probe
from aviato.server.backends.kubernetes.claim import Claim
from aviato.server.backends.kubernetes.cluster import NOT_FOUND, Cluster, ClusterError, NoCluster, NoLibrary
from aviato.server.backends.kubernetes.images import PodImages, id_in, pull_failed
from aviato.server.backends.kubernetes.labels import SERVER
from aviato.server.backends.kubernetes.left_behind import LeftBehind, places_with_secrets
from aviato.server.backends.kubernetes.limits import NOT_COUNTED, pod_limits
from aviato.server.backends.kubernetes.options import ClusterOptions
from aviato.server.backends.kubernetes.pod_maker import PodMaker
from aviato.server.backends.kubernetes.pod_state import last_warning
from aviato.server.backends.kubernetes.pods import Pods
from aviato.server.backends.kubernetes.reach import NotReached, begin, reach
from aviato.server.backends.kubernetes.sandbox_maker import SandboxMaker
from aviato.server.backends.kubernetes.start_errors import did_not_start
from aviato.server.backends.landlock import rules
from aviato.server.backends.local import bounds, filters, way_out
from aviato.server.backends.local import probe as local_probe
from aviato.server.backends.local.plan import BASE_ENVIRONMENT, ONE_ID
from aviato.server.backends.own_name import own_name
from aviato.server.link.link import Configuration, Ended, Process1Link, SandboxGone
from aviato.server.link.port_calls import RelayedPorts
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from aviato.server.backends.base import Check, Limit, ResolvedImage

log = logging.getLogger(__name__)

DEFAULT_IMAGE = "python:3.12-slim"
LOOK_SECONDS = 0.1
"""How often a pod that is on its way is tried: what it says of itself comes later than it is."""
IMAGE_SECONDS = 30.0
"""So long a node may try to pull again what may come by itself."""
SWEEP_SECONDS = 30.0
RECONNECT_SECONDS = 5.0
LOST_SECONDS, AGAIN_SECONDS = 300.0, 0.5
"""So long a connection that was lost is looked for: longer than a cluster takes to find that a node is gone."""
LAST_WORDS_SECONDS = 1.0
END_SECONDS = 5.0
"""More than a kubelet takes to say that a container has ended."""
UNKEPT = (
    "network: what keeps sandboxes from it is a NetworkPolicy, which holds where the cluster's network enforces those",
    "disk: the node's kubelet looks now and then, and ends the sandbox that has more than its limit",
    "inodes: how many files a sandbox makes is not limited",
    "last words: of a sandbox that ends while no server is connected, results that nobody had received are lost",
)


class KubernetesBackend(Backend):
    """Sandboxes as pods.

    Args:
        directory: of the server; nothing of a pod is in it.
        default_image: of sandboxes that name none.
        options: where and how pods are made.
    """

    name = "kubernetes"
    capabilities = frozenset(
        {
            *(
                Capability.PORTS,
                Capability.EGRESS,
                Capability.INTERNET,
                Capability.PLACES,
                Capability.LOCAL_SOCKETS,
                Capability.MOUNTED_FILES,
            ),
            *(Capability.IMAGES, Capability.POOLS),
        }
    )
    brings_internet = True
    own_ports = frozenset({objects.PORT})
    shares_sandboxes = True
    creates_at_once = 24
    unkept_promises = UNKEPT

    def __init__(self, directory: Path, *, default_image: str = DEFAULT_IMAGE, options: ClusterOptions | None = None) -> None:
        self._options = options or ClusterOptions()
        self.start_seconds = self._options.start_seconds
        if self._options.security == "root":
            self.capabilities = KubernetesBackend.capabilities | {Capability.USERS, Capability.WORKING_DIR}
        self._images = PodImages(default_image)
        self._cluster: Cluster | None = None
        self._pods: Pods | None = None
        self._pod_maker: PodMaker | None = None
        self._claim: Claim | None = None
        self._filters = (b"", b"")
        self._directory = directory / "kubernetes"
        self._server = ""
        """What this server calls itself to others of the claim."""
        self._sweeper: asyncio.Task[None] | None = None
        self._links: dict[str, Process1Link] = {}
        self._trouble: dict[str, str] = {}
        """Of pods that are on their way: what the events say."""

    # -- opening --------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """See `Backend`."""
        if (unable := local_probe.cannot_run(await self._look(), "in pods here")) is not None:
            await self.close()
            raise unable
        cluster = self._live_cluster()
        try:
            self._claim = Claim(cluster, self._options.claim)
            await self._claim.hold()
            self._server = await in_thread(self._named)
            self._pods = Pods(cluster, self._options.claim, self._server, self._has_ended)
            await self._pods.open()
            kind = SandboxMaker if self._options.objects == "agent-sandbox" else PodMaker
            self._pod_maker = kind(cluster, self._pods, self._options)
            await self._pod_maker.open(self._claim.owner)
        except ClusterError as error:
            await self.close()
            raise error.as_error("the backend cannot begin") from error
        left = LeftBehind(cluster, self._pods, self._pod_maker, self._options, self._server, self._remove)
        self._sweeper = asyncio.create_task(self._sweep(left), name="pods of servers that are gone")

    async def _sweep(self, left: LeftBehind) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await left.look()
            await self._hold()

    async def _hold(self) -> None:
        """Have the claim there again if somebody has taken it away: what is made from here on belongs to the new one."""
        claim = self._claim
        assert claim is not None
        try:
            if await claim.hold():
                log.warning("the claim %s had been removed, and what belonged to it with it", self._options.claim)
                await self._maker().keep(claim.owner)
        except ClusterError as error:
            log.warning("the claim %s cannot be looked for now: %s", self._options.claim, error.message)

    def _named(self) -> str:
        """The same after a restart on the same state."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return own_name(self._directory / "server")

    async def close(self) -> None:
        """See `Backend`."""
        for link in self._links.values():
            link.detach()
        self._links.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
            self._sweeper = None
        if self._pod_maker is not None:
            await self._pod_maker.close()
            self._pod_maker = None
        if self._pods is not None:
            await self._pods.close()
            self._pods = None
        if self._cluster is not None:
            await self._cluster.close()
            self._cluster = None

    async def probe(self) -> list[Check]:
        """See `Backend`."""
        was_open = self._cluster is not None
        try:
            return await self._look()
        finally:
            if not was_open:
                await self.close()

    async def _look(self) -> list[Check]:
        checks = [await asyncio.to_thread(self._compile)]
        try:
            self._cluster = self._cluster or await Cluster.connect(self._options.context, self._options.namespace)
        except NoLibrary as error:
            return [*checks, probe.library_check(error.remedy)]
        except NoCluster as error:
            return [*checks, probe.library_check(None), probe.no_cluster(str(error), self._options.context)]
        checks.append(probe.library_check(None))
        if self._options.init_image is None:
            self._options = replace(self._options, init_image=await _own_image(self._cluster))
        return [*checks, *await probe.look(self._cluster, self._options)]

    def _compile(self) -> Check:
        try:
            self._filters = filters.compile_rules(plan.RULES), filters.compile_rules(rules.command_rules())
        except filters.FilterUnavailable as error:
            return local_probe.filter_check(str(error), error.remedy)
        return local_probe.filter_check(None, None)

    def _live_cluster(self) -> Cluster:
        if self._cluster is None:
            raise SandboxUnavailableError("the backend is closed")
        return self._cluster

    def _live_pods(self) -> Pods:
        if self._pods is None:
            raise SandboxUnavailableError("the backend is closed")
        return self._pods

    def _maker(self) -> PodMaker:
        if self._pod_maker is None:
            raise SandboxUnavailableError("the backend is closed")
        return self._pod_maker

    # -- what can be had ------------------------------------------------------------------------------------------------

    def resolve_image(self, reference: str | None, *, fallback: str | None = None) -> ResolvedImage:
        """See `Backend`."""
        return self._images.resolve(reference)

    def limits(self, spec: SandboxSpec) -> dict[str, Limit]:
        """See `Backend`."""
        return pod_limits(spec.requests, spec.limits)

    def check(self, spec: SandboxSpec) -> None:
        """See `Backend`."""
        refused: dict[str, str] = {}
        for name in NOT_COUNTED:
            if name in spec.limits or name in spec.requests:
                refused["resources"] = f"the backend 'kubernetes' cannot limit {name!r}"
        if (size := objects.secret_bytes(spec)) > objects.MOST_SECRET_BYTES:
            said = f"{size} bytes with the rest of the request; a Secret has at most {objects.MOST_SECRET_BYTES}"
            refused["mounted_files" if spec.mounted_files else "environment_variables"] = said
        for name, ids in (("runway_ids", spec.runway_ids), ("tower_ids", spec.tower_ids)):
            if (why := objects.not_placeable(ids)) is not None:
                refused[name] = why
        for file in spec.mounted_files:
            if (why := objects.unmountable(file.path)) is not None:
                refused["mounted_files"] = f"mount_path {file.path!r}: {why}"
        if refused:
            text = "; ".join(f"{name}: {problem}" for name, problem in refused.items())
            raise AviatoValidationError(text, field_violations=refused)

    def node_of(self, sandbox_id: str) -> str | None:
        """See `Backend`."""
        state = None if self._pods is None else self._pods.of(sandbox_id)
        return None if state is None else state.node

    def image_id_in(self, sandbox_id: str, reference: str) -> str | None:
        """See `Backend`."""
        state = None if self._pods is None else self._pods.of(sandbox_id)
        return None if state is None else id_in(self._images.resolve(reference), state)

    def waits_for(self, sandbox_id: str) -> str | None:
        """See `Backend`."""
        state = None if self._pods is None else self._pods.of(sandbox_id)
        if state is None:
            return None if self._pod_maker is None else self._pod_maker.waits_for(sandbox_id)
        if state.phase != "waits":
            return None
        said = self._trouble.get(sandbox_id) or state.message
        return f"{state.reason}: {said}" if said else state.reason

    # -- a sandbox ------------------------------------------------------------------------------------------------------

    async def create(self, spec: SandboxSpec) -> Process1Link:
        """See `Backend`."""
        sandbox_id = spec.sandbox_id
        image = self._images.current(spec.image)
        assert image.image_id is not None
        self._live_pods().expect(sandbox_id)
        try:
            key = await self._asked_for(spec, image.image_id)
        except ClusterError as error:
            raise error.as_error("the pod could not be made", sandbox_id) from error
        sock = await self._started(sandbox_id, image, key)
        link = await self._begun(spec, sock)
        if (state := self._live_pods().of(sandbox_id)) is not None:
            self._images.learn(image, state)
        self._trouble.pop(sandbox_id, None)
        self._links[sandbox_id] = link
        return link

    async def _asked_for(self, spec: SandboxSpec, image: str) -> bytes | None:
        """Have a pod on its way, and its key; None: it is made of a pool's."""
        cluster, maker = self._live_cluster(), self._maker()
        may_be_there = await maker.gives(spec)
        key = None if may_be_there else secrets.token_bytes(32)
        assert self._claim is not None
        owner = self._claim.owner
        body = objects.secret(spec, key, self._options.claim, self._server, owner)
        kept = await cluster.make(cluster.path("secrets"), body)
        if may_be_there and await maker.claim(spec, self._server, owner):
            return None
        if may_be_there:
            body = {"data": objects.key_data(secrets.token_bytes(32))}
            path = cluster.path("secrets", objects.name_of(spec.sandbox_id))
            kept = await cluster.ask("PATCH", path, body, patch=True)
        await maker.make(spec, objects.pod(spec, image, self.limits(spec), self._options, self._server, owner))
        return objects.key_in(kept)

    async def _started(self, sandbox_id: str, image: ResolvedImage, key: bytes | None) -> socket.socket:
        """A connection to the process 1 of a pod that is on its way."""
        pods, image_trouble_since = self._live_pods(), None
        ask_events_at = time.monotonic() + 1.0
        while True:
            state = pods.of(sandbox_id)
            in_trouble = state is not None and state.phase == "waits" and (state.is_image or state.is_final)
            if in_trouble and image_trouble_since is None:
                image_trouble_since = ask_events_at = time.monotonic()
            if state is not None and time.monotonic() >= ask_events_at:
                await self._hear_events(sandbox_id)
                ask_events_at = time.monotonic() + (1.0 if in_trouble else 5.0)
            if state is None:
                if pods.had_one(sandbox_id):
                    await self._hold()  # It may have been taken away with its claim.
                    raise did_not_start(sandbox_id, "somebody has deleted its pod", "deleted")
                self._maker().look_for(sandbox_id)
            elif state.phase == "ended":
                raise did_not_start(sandbox_id, f"{state.reason}: {state.message}", state.reason)
            elif in_trouble:
                warning, since = self._trouble.get(sandbox_id), image_trouble_since or time.monotonic()
                if state.is_image:
                    failed = pull_failed(image, state, warning, has_credentials=bool(self._options.pull_secrets))
                    if not failed.retryable or time.monotonic() - since > IMAGE_SECONDS:
                        raise failed
                # The Secret of a pool may have come later than the pool, and the node tries again.
                if state.is_final and (key is not None or time.monotonic() - since > IMAGE_SECONDS):
                    raise did_not_start(sandbox_id, warning or state.message, state.reason)
            elif state.phase == "runs" or (state.node is not None and state.reason == "starting"):
                try:
                    known = key or await self._maker().key(sandbox_id)
                    sock, said = await reach(self._live_cluster(), state, self._options.reach, known)
                    if said == "new":
                        return sock
                    sock.close()
                    raise did_not_start(sandbox_id, "another server has begun it", "taken")
                except NotReached as error:
                    log.debug("sandbox %s: %s", sandbox_id, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await pods.changed(sandbox_id)

    async def _hear_events(self, sandbox_id: str) -> None:
        """Look what the events of a pod say went wrong last."""
        cluster, state = self._live_cluster(), self._live_pods().of(sandbox_id)
        name = objects.name_of(sandbox_id) if state is None else state.name
        selector = f"involvedObject.name={name},involvedObject.kind=Pod"
        try:
            found = await cluster.ask("GET", cluster.path("events"), query={"fieldSelector": selector, "limit": "50"})
        except ClusterError as error:
            log.debug("the events of sandbox %s cannot be read: %s", sandbox_id, error.message)
            return
        if (said := last_warning(found["items"])) is not None:
            self._trouble[sandbox_id] = said

    async def _begun(self, spec: SandboxSpec, sock: socket.socket) -> Process1Link:
        try:
            await begin(sock, plan.told(self._options.security, *self._filters))
        except OSError as error:
            sock.close()
            raise did_not_start(spec.sandbox_id, str(error), "start_failed") from error
        reopen = partial(self._reopened, spec.sandbox_id)
        try:
            return await Process1Link.connect(spec.sandbox_id, sock, self._configuration(spec), reopen=reopen)
        except SandboxGone as gone:
            raise did_not_start(spec.sandbox_id, str(gone), "start_failed") from gone

    def _configuration(self, spec: SandboxSpec) -> Configuration:
        held = self.limits(spec)
        proxy = None if spec.network == "internet" else spec.egress_port
        base = dict(BASE_ENVIRONMENT)
        if self._options.security == "restricted":
            base |= {"HOME": objects.WORKSPACE, "USER": "aviato", "LOGNAME": "aviato", **ONE_ID}
        return Configuration.of(
            {
                "base_environment": base,
                "environment": {
                    **way_out.environment(proxy, spec.host_name or spec.sandbox_id),
                    **spec.environment,
                    **spec.secrets,
                },
                "working_dir": spec.working_dir or "",
                "user": None,
                "nice": 0,
                "limits": {
                    **{name: limit.value for name, limit in held.items() if limit.strength == "watched"},
                    "open_files": bounds.LIMIT_OPEN_FILES,
                    "filters": bounds.LIMIT_FILTERS,
                    "group_memory": held["memory"].value,
                },
                "orphan_timeout_seconds": spec.orphan_timeout_seconds,
                "max_lifetime_seconds": spec.max_lifetime_seconds,
                "idle_timeout_seconds": spec.idle_timeout_seconds,
            }
        )

    def claim(self, spec: SandboxSpec, link: Process1Link) -> None:
        """See `Backend`. What was made ahead has the labels of its pool; those of its sandbox come in a moment."""
        link.configure(self._configuration(spec), spec.host_name or spec.sandbox_id)
        task = asyncio.get_running_loop().create_task(self._label(spec))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _label(self, spec: SandboxSpec) -> None:
        cluster, name = self._live_cluster(), objects.name_of(spec.sandbox_id)
        labels = objects.labels(self._options.claim, self._server, spec)
        kept = {"data": {objects.RECORD: objects.text_of((spec.record or "").encode())}}
        try:
            await cluster.ask("PATCH", cluster.path("secrets", name), kept, patch=True)
            await self._maker().label(spec.sandbox_id, labels, objects.own_annotations(spec))
        except ClusterError as error:
            log.warning("the pod of sandbox %s cannot be labelled: %s", spec.sandbox_id, error.message)

    async def reconnect(self, sandbox_id: str) -> Process1Link | None:
        """See `Backend`."""
        sock = await self._connected(sandbox_id)
        if sock is None:
            return None
        reopen = partial(self._reopened, sandbox_id)
        try:
            link = await asyncio.wait_for(Process1Link.connect(sandbox_id, sock, reopen=reopen), RECONNECT_SECONDS)
        except SandboxGone as gone:  # Or its connection, which is why its pod alone says that it has ended.
            message = f"process 1 of {sandbox_id} cannot be reached: its connection ended before it said anything"
            raise SandboxUnavailableError(message, sandbox_id=sandbox_id, reason="unreachable") from gone
        self._links[sandbox_id] = link
        return link

    async def open_port_channel(self, sandbox_id: str) -> RelayedPorts:
        """See `Backend`. No descriptor comes out of a pod: connections go over the link."""
        link = self._links.get(sandbox_id)
        if link is None or link.ended() is not None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"process 1 of {sandbox_id} is gone")
        if not link.knows_ports:
            why = "its aviato-init is of a version that carries no ports; --kubernetes-init-image names a newer one"
            raise OSError(errno.EOPNOTSUPP, why)
        return RelayedPorts(link)

    async def _connected(self, sandbox_id: str) -> socket.socket | None:
        """A connection to a process 1 that runs; None if it is gone, or was never told what to do.

        Raises:
            AviatoError: that is not known now.
            SandboxGone: another server has it.
        """
        state = self._live_pods().of(sandbox_id)
        if state is None or state.phase == "ended":
            return None
        if self.is_taken(sandbox_id):
            raise SandboxGone(Ended(reason="taken"))
        cluster = self._live_cluster()
        self._live_pods().expect(sandbox_id)
        try:
            found = await cluster.find(cluster.path("secrets", objects.name_of(sandbox_id)))
        except ClusterError as error:
            raise error.as_error("the key of its process 1 cannot be read", sandbox_id) from error
        if found is None:
            return None
        try:
            key = objects.key_in(found) if objects.KEY in objects.data_in(found) else await self._maker().key(sandbox_id)
            sock, said = await reach(cluster, state, self._options.reach, key)
        except NotReached as error:
            message = f"process 1 of {sandbox_id} cannot be reached: {error}"
            raise SandboxUnavailableError(message, sandbox_id=sandbox_id, reason="unreachable") from error
        if said == "running":
            return sock
        sock.close()  # Its server died before it had told it anything.
        return None

    async def _reopened(self, sandbox_id: str) -> socket.socket | None:
        """The same after a connection was lost: tried until the pod is said to have ended, or for a long time."""
        deadline = time.monotonic() + LOST_SECONDS
        while self._pods is not None:
            try:
                return await self._connected(sandbox_id)
            except AviatoError as error:
                log.info("sandbox %s: %s", sandbox_id, error)
                if time.monotonic() > deadline:
                    return None
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_SECONDS):
                    await self._live_pods().changed(sandbox_id)
        return None

    def _has_ended(self, sandbox_id: str) -> None:
        """A pod has: what its process 1 said last may still be on its way, and a network that is gone says nothing."""
        if sandbox_id in self._links:
            asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._let_go, sandbox_id)

    def _let_go(self, sandbox_id: str) -> None:
        link = self._links.get(sandbox_id)
        if link is not None and link.ended() is None:
            state = None if self._pods is None else self._pods.of(sandbox_id)
            message = "its pod was deleted" if state is None else state.message or f"its pod has ended: {state.reason}"
            link.let_go(Ended(reason="lost", message=message))

    def how_ended(self, sandbox_id: str) -> str | None:
        """See `Backend`."""
        pods = self._pods
        state = None if pods is None else pods.wait_ended(sandbox_id, END_SECONDS)
        return None if state is None else state.left

    async def destroy(self, sandbox_id: str) -> None:
        """See `Backend`."""
        self._trouble.pop(sandbox_id, None)  # Where it was not begun in time, that says why.
        if (link := self._links.pop(sandbox_id, None)) is not None and link.ended() is None:
            link.detach()
        if self.is_taken(sandbox_id):
            return
        try:
            await self._remove(sandbox_id)
        except ClusterError as error:
            raise error.as_error("the pod could not be removed", sandbox_id) from error

    async def _remove(self, sandbox_id: str) -> None:
        cluster, name = self._live_cluster(), objects.name_of(sandbox_id)
        await self._maker().remove(sandbox_id)
        await cluster.remove(cluster.path("secrets", name))
        self._live_pods().forget(sandbox_id)

    async def place_ids(self) -> list[str]:
        """See `Backend`."""
        pods = self._live_pods()
        try:
            left = await places_with_secrets(self._live_cluster(), self._options.claim, f"{SERVER}={self._server}")
        except ClusterError as error:
            raise error.as_error("the sandboxes' objects cannot be listed") from error
        own = {one for one in pods.ids() if pods.server(one) == self._server}
        return sorted(own | {one for one in left if not self.is_taken(one)})

    # -- several servers ------------------------------------------------------------------------------------------------

    def is_taken(self, place_id: str) -> bool:
        """See `Backend`."""
        server = None if self._pod_maker is None else self._pod_maker.server(place_id)
        return server is not None and server != self._server

    async def record_elsewhere(self, sandbox_id: str) -> tuple[str, list[bytes]] | None:
        """See `Backend`."""
        cluster, place_id = self._live_cluster(), self._live_place(sandbox_id)
        if place_id is None:
            return None
        try:
            kept = await cluster.find(cluster.path("secrets", objects.name_of(place_id)))
        except ClusterError as error:
            raise error.as_error("the sandbox cannot be looked for", sandbox_id) from error
        return None if kept is None else objects.record_in(kept)

    async def take_over(self, sandbox_id: str) -> bool:
        """See `Backend`."""
        if (place_id := self._live_place(sandbox_id)) is None:
            return False
        try:
            await self._maker().label(place_id, {SERVER: self._server})
        except ClusterError as error:
            if error.status == NOT_FOUND:
                return False
            raise error.as_error("the sandbox cannot be taken over", sandbox_id) from error
        return True

    def _live_place(self, sandbox_id: str) -> str | None:
        pods = self._live_pods()
        place_id = pods.place(sandbox_id)
        state = None if place_id is None else pods.of(place_id)
        return None if state is None or state.phase == "ended" else place_id


async def _own_image(cluster: Cluster) -> str | None:
    """The image of the pod that this is; None: it is none of the namespace."""
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    try:
        pod = await cluster.find(cluster.path("pods", platform.node()))
    except ClusterError:
        return None
    return None if pod is None else str(pod["spec"]["containers"][0]["image"])
