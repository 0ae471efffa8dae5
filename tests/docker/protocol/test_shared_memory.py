"""See `aviato.server.backends.conformance`."""

from aviato.server.backends.conformance.shared_memory import *
