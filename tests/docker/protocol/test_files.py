"""See `aviato.server.backends.conformance`."""

from aviato.server.backends.conformance.files import *
