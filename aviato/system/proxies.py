"""The proxy that the environment names for a URL."""

from __future__ import annotations

from urllib.parse import urlsplit


def proxy_of(url: str) -> str | None:
    """The proxy of a URL, or None. Not aiohttp's `trust_env`: it would also send passwords of ~/.netrc."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")
