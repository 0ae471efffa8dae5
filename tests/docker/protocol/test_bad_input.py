"""See `aviato.server.backends.conformance`."""

from aviato.server.backends.conformance.bad_input import *
