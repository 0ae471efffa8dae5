"""The exposed ports of a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato import defaults as checks

if TYPE_CHECKING:
    from aviato.bridge.operation import OperationRef
    from aviato.calls.sandbox_state import SandboxState
    from aviato.core.lifecycle import SandboxHandle


class SandboxPorts:
    """Ports of a sandbox that programs outside can connect to: those of `ports=`."""

    _state: SandboxState

    @property
    def exposed_ports(self) -> tuple[int, ...]:
        """The exposed ports, in the order of `ports=`."""
        info, create = self._state.last_seen, self._state.config.create
        return tuple(info.exposed_ports if info is not None else (create or {}).get("ports", ()))

    @property
    def service_urls(self) -> dict[int, str]:
        """URL of each exposed port, on the server's machine, from acceptance until the sandbox has ended.

        Any protocol over TCP works at the address, WebSocket included.
        """
        info = self._state.last_seen
        if info is None:
            return {}
        return {port: info.service_urls[port] for port in info.exposed_ports if port in info.service_urls}

    @property
    def service_address(self) -> str | None:
        """`host:port` at which the first exposed port is reached; None where there is none."""
        urls = list(self.service_urls.values())
        return urls[0].partition("://")[2] if urls else None

    @property
    def applied_ingress_mode(self) -> str | None:
        """Who may connect to it: `none`, or `public` for anyone on the server's machine."""
        info = self._state.last_seen
        return None if info is None else info.ingress_mode

    @property
    def applied_egress_mode(self) -> str | tuple[str, ...] | None:
        """What it may connect to: `none`, `internet`, or the hosts of its allow-list as `NetworkOptions` has them."""
        info = self._state.last_seen
        mode = None if info is None else info.egress_mode
        return mode if mode is None or isinstance(mode, str) else tuple(mode)

    def wait_for_port(self, port: int, timeout_seconds: float = 30.0) -> OperationRef[str]:
        """The URL of an exposed port once a program inside listens on it, at 127.0.0.1, ::1 or every address.

        Args:
            port: one of `exposed_ports`.
            timeout_seconds: counted from when the sandbox runs.

        Raises (from the handle):
            AviatoValidationError: the port is not exposed.
            SandboxTimeoutError: nobody listens on it in time.
            SandboxError: the sandbox ended.
        """
        number = checks.port("port", port)
        limit = checks.seconds("timeout_seconds", timeout_seconds)
        self._state.used = True

        async def work(handle: SandboxHandle) -> str:
            from aviato.core.ports import wait_for_port

            return await wait_for_port(handle, number, limit)

        return self._state.begin(work, f"wait for port {number} of {self._state.sandbox_id}")
