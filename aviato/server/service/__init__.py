"""Every rule of the server; the only caller of the store and of backends."""

from aviato.server.service.service import Service

__all__ = ["Service"]
