"""What this process knows of one server, whichever loop learned it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from aviato.exceptions import SandboxUnavailableError
from aviato.transport import faults

if TYPE_CHECKING:
    from aviato.transport.resolution import Endpoint


class Server:
    """One server.

    Attributes:
        reached: it has answered once, so it is worth waiting for.
        foreign: answers before that which were not aviato's.
        up: an embedded server that has answered and not been lost since.
        wandb_asked: it has asked for W&B credentials.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.reached = False
        self.foreign = 0
        self.up = False
        self.wandb_asked = False

    def failed(self, error: Exception, seconds: float) -> NoReturn:
        """Raise what went wrong below HTTP as an error of ours; after some the embedded server is looked for anew."""
        try:
            faults.raise_typed(error, self.endpoint.url, seconds)
        except SandboxUnavailableError:
            self.up = False
            raise
