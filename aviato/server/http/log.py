"""What aiohttp has to say, without what its callers sent."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError


def _is_ours(record: logging.LogRecord) -> bool:
    """Malformed requests are their sender's business: a line for each would fill the disk, and could quote a key."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (HttpProcessingError, RequestPayloadError))


log = logging.getLogger(__name__)
log.addFilter(_is_ours)
