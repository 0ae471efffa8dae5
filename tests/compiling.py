"""How tests compile `aviato-init`."""

from __future__ import annotations

QUICKLY = {
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
}
"""Variables for cargo. It does the same as one of a release, and is there in a tenth of the time."""
