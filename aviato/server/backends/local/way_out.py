"""How programs inside find the way to the network, and what they reach without it. Pure.

Most read variables. JVMs read none: they have it from a file of /etc, which such sandboxes have with other lines at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

OWN_NAMES = ("localhost", "localhost.localdomain", "127.0.0.1", "127.0.1.1", "0.0.0.0", "::1", "::")
"""What a sandbox reaches by itself, beside its own name. No network with a mask: the machine's other addresses of its loopback
may be let through, and not all programs know masks. None in brackets: httpx refuses to work at all where it finds one."""
JVM_SETTINGS = "/etc/java-*/net.properties"
"""As those of shells."""
_IDS = "sb-01*"
"""Names of sandboxes: the file is one for all of them."""


def environment(port: int | None, hostname: str) -> dict[str, str]:
    """The variables by which programs find the proxy, in both spellings: each tool reads its own.

    Args:
        port: of the proxy; None: there is no way out.
        hostname: of the sandbox.
    """
    if port is None:
        return {}
    proxy, own = f"http://127.0.0.1:{port}", ",".join((*OWN_NAMES, hostname))
    names = {**dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), proxy), "no_proxy": own}
    # By this Node's own fetch reads them, from Node 24 on.
    return {**names, **{name.upper(): value for name, value in names.items()}, "NODE_USE_ENV_PROXY": "1"}


def jvm_settings(files: Iterable[tuple[str, str]], port: int) -> list[tuple[str, str]]:
    """What JVMs read about networks, with the proxy.

    Args:
        files: as they are on the machine: paths and contents.
        port: of the proxy.
    """
    # All of 127.0.0.0/8 stays inside, whatever stands here: JVMs add it.
    own = "|".join(("localhost", "*.localhost", "localhost.localdomain", "0.0.0.0", "[::1]", "[::]", _IDS))
    lines = [f"{kind}.proxyHost=127.0.0.1\n{kind}.proxyPort={port}\n" for kind in ("http", "https")]
    added = "".join([*lines, f"http.nonProxyHosts={own}\n"])
    return [(path, f"{content}\n{added}") for path, content in files]
