"""What is believed of a command's peak."""

from __future__ import annotations

import pytest

from aviato.server.supervisor import usage

MIB = 1 << 20


@pytest.mark.parametrize(
    ("own", "sampled", "rusage", "believed"),
    [
        (MIB, None, 2 * MIB, 2 * MIB),
        (MIB, 3 * MIB, 2 * MIB, 2 * MIB),
        (8 * MIB, 3 * MIB, 8 * MIB, 3 * MIB),
        (8 * MIB, None, 8 * MIB, None),
        (8 * MIB, 12288, 8 * MIB, None),
        (12288, 12288, 12288, None),
    ],
)
def test_the_peak_is_free_of_the_supervisors_own_and_of_what_exec_had_hardly_begun(own, sampled, rusage, believed):
    assert usage.peak_bytes(own, sampled, rusage) == believed
