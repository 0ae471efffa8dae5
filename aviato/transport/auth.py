"""As whom a client speaks: nothing on a Unix socket, `AVIATO_API_KEY` over TCP, a W&B key only where it was asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aviato.exceptions import AviatoAuthenticationError, WandbAuthError
from aviato.wire.credentials import WANDB_ENTITY_HEADER, WANDB_KEY_HEADER, WANDB_PROJECT_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.transport.resolution import Endpoint

_NETRC_HOST = "api.wandb.ai"


def headers(endpoint: Endpoint, *, wandb_asked: bool) -> dict[str, str]:
    """Headers that say who calls.

    Args:
        endpoint: where the request goes.
        wandb_asked: whether this server has answered 401 with `WWW-Authenticate: WandB`.

    Raises:
        AviatoAuthenticationError: the key cannot be a header, or `AVIATO_AUTH` is unknown.
        WandbAuthError: W&B credentials are wanted and incomplete.
    """
    if endpoint.socket_path is not None:  # A Unix socket knows its callers by peer credentials.
        return {}
    key = os.environ.get("AVIATO_API_KEY", "").strip()
    if key:
        if not key.isascii() or not key.isprintable():
            raise AviatoAuthenticationError("AVIATO_API_KEY holds characters that a key cannot have")
        return {"Authorization": f"Bearer {key}"}
    auth = os.environ.get("AVIATO_AUTH", "")
    if auth.lower() not in ("", "wandb"):
        raise AviatoAuthenticationError(f"AVIATO_AUTH is {auth!r}; the only value it has is 'wandb'")
    if endpoint.is_secure and (wandb_asked or auth):
        return _wandb_headers()
    return {}


def asks_for_wandb(endpoint: Endpoint, status: int, response_headers: Mapping[str, str]) -> bool:
    """Whether an answer asks for W&B credentials, and may have them."""
    if status != 401 or not endpoint.is_secure or os.environ.get("AVIATO_API_KEY", "").strip():
        return False
    challenge = response_headers.get("WWW-Authenticate", "")
    return any(part.strip().lower().split(" ")[0] == "wandb" for part in challenge.split(","))


def _wandb_headers() -> dict[str, str]:
    key = os.environ.get("WANDB_API_KEY", "").strip() or _netrc_key()
    if not key:
        raise WandbAuthError("the server asks for W&B credentials: set WANDB_API_KEY or run `wandb login`")
    entity = os.environ.get("WANDB_ENTITY_NAME", "").strip()
    if not entity:
        raise WandbAuthError("the server asks for W&B credentials: set WANDB_ENTITY_NAME beside the key")
    found = {WANDB_KEY_HEADER: key, WANDB_ENTITY_HEADER: entity}
    project = os.environ.get("WANDB_PROJECT_NAME", "").strip()
    if project:
        found[WANDB_PROJECT_HEADER] = project
    if not all(value.isascii() and value.isprintable() for value in found.values()):
        raise WandbAuthError("a W&B key, entity or project holds characters that a header cannot have")
    return found


def _netrc_key() -> str | None:
    import netrc

    path = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "")).hostname or _NETRC_HOST
    try:
        entry = netrc.netrc(path).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    return entry[2] if entry else None
