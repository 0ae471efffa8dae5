"""See `aviato.server.backends.conformance`."""

from aviato.server.backends.conformance.streams import *
