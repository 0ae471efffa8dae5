"""What programs print, as the harness of each data set compares it.

The verdicts are those of the harnesses' own comparisons, which were run on these rows; for CodeContests its C++ was built.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from aviato.rl import ProgramCase
from aviato.rl.datasets import printed
from aviato.rl.datasets.deepmind_contests import same_words

NINES, OTHER = "9" * 400, "9" * 399 + "8"

CODE_CONTESTS = [
    # expected, printed, verdict of the harness
    ("YES\n1.500001", "yes 1.5", True),
    ("1", "1.00001", False),
    ("1", "1.0000099", True),
    ("99999999999", "99999999999.000001", True),
    ("12345678901234567890", "12345678901234567891", True),
    ("1e5", "100000", True),
    ("1", "+1", True),
    ("1", "01", True),
    ("0", "-0", True),
    ("0.5", ".5", True),
    ("16", "0x10", True),
    ("1000", "1_000", False),
    ("1000", "1,000", False),
    ("inf", "inf", True),
    ("inf 1", "inf 1.0", False),
    ("NaN", "nan", True),
    ("nan 1", "nan 1.0", False),
    ("1e401", "1e400", False),
    ("É", "é", False),
    ("1 2", "1\u00a02", False),
    ("a b", "a\x0cb", False),
    ("a b", "a\x0bb", True),
    ("1\n2\n", "1\r\n2\r\n", True),
    ("1 2", "1\n\n2", True),
    ("١", "1", False),
    ("\n", "", True),
    ("x y", "x", False),
    ("x2", "x1", False),
    ("true", "True", True),
    ("1.0.0", "1.0.0", True),
]
TACO = [
    # expected, printed, verdict of the harness
    ("1 2\n3", " 1 2\n3\n\n", True),
    ("1 2\n3", "1 2 \n3", False),
    ("12\n34", "12 \n34", False),
    ("1\n2", "1 \n2 \n", True),
    ("1\n0", "1 0", True),
    ("Y\nN", "Y N", True),
    ("1\n2", "1\r\n2\r\n", True),
    ("1 2\n3", "1 2\r\n3", True),
    ("10\n20", "10\r20", True),
    ("1\n2", "2\n1", True),
    ("1.5", "1.50", False),
    ("YES", "yes", False),
    ("é✓", "é✓", True),
    ("", "\n \n", True),
    ("1\n\n2", "1\n2", True),
    ("12 20", "12  20", False),
    ("1\r\n2", "1\n2", True),
    ("10\r\n20", "10\n20", False),
    (NINES, OTHER, False),
    ("nan", "nan", True),
]
APPS = [
    # expected, printed, verdict of the harness
    ("1 2\n3", "1  2 \n\n3", True),
    ("0.1 0.2", "0.10001 0.2", True),
    ("0.3", "0.30000000000000004", True),
    ("1000000", "1000001", True),
    ("100", "101", False),
    ("YES 0.3", "YES 0.30001", False),
    ("YES\n0.3", "YES\n0.30000000000000004", False),
    ("YES\n1", "YES\n1.0", False),
    ("1 2\n3", "1 2\n3.0", True),
    ("[1, 2]", "[1,2]", False),
    ("[1, 2]", "[1, 2] ", True),
    ("a b", "b a", True),
    ("1\n2", "2\n1", True),
    ("1\n2", "1 2", False),
    ("1\r\n2", "1\n2", True),
    ("1\n2", "1\r\n2\r\n", True),
    ("1\n2", "1\r2", True),
    ("inf", "inf", True),
    ("inf 1", "inf 1.0", True),
    ("nan 1", "nan 1.0", False),
    ("nan", "NaN", False),
    ("YES", "yes", False),
    ("é  ✓", "é ✓", True),
    ("", "\n", True),
    ("1_0 2", "10 2.0", True),
    (NINES + " 1", OTHER + " 1.0", True),
    ("True", "1", False),
]
PRIME = [
    # expected, printed, verdict of the harness
    ("1 2\n3", "1 2\n\n3", True),
    ("1 2\n3", " 1 2 \n3 ", True),
    ("1 2\n3", "1 2 \n\n3", False),
    ("1  2", "1 2", False),
    ("0.3", "0.30000000000000004", True),
    ("0.1 0.2", "0.10000000000000001 0.2", False),
    ("0.3\n0.5", "0.3000001\n0.5", True),
    ("1000000", "1000001", False),
    ("1000000", "1000001.0", True),
    ("-1000000", "-1000001", True),
    ("1000000\n0.5", "1000001\n0.5", True),
    ("YES\n0.3", "YES\n0.30000000000000004", False),
    ("a\nb", "b\na", False),
    ("1", "1.0", True),
    ("01", "1", False),
    ("inf", "inf ", True),
    ("inf\n1", "inf\n1.0", True),
    ("nan\n1", "nan\n1.0", False),
    ("1\n2", "1\r\n2\r\n", True),
    ("1\n2", "1\r2", True),
    ("YES", "yes", False),
    ("٣", "3", False),
    ("²", "2", False),
    ("", "\n", True),
]
LIVECODEBENCH = [
    # expected, printed, verdict of the harness
    ("1.0", "1", True),
    ("1e2", "100", True),
    ("0.3", "0.30000000000000004", False),
    ("1 2.50", "1 2.5", True),
    ("YES 1", "YES 1.0", False),
    ("a  b", "a b", False),
    ("1  2", "1 2", True),
    ("1\n\n2", "1\n2", False),
    ("1\n2", "1\r\n2", True),
    ("1\n2", "1\r2", False),
    ("nan", "NaN", False),
    ("inf", "Infinity", True),
    ("inf 1", "Infinity 1.0", True),
    ("1_000", "1000", True),
    (NINES, OTHER, False),
    ("-0", "0", True),
    ("[1, 2]", "[1,2]", False),
    ("٣", "3", True),
    ("sNaN 1", "sNaN 1.0", False),
    ("", "\n", True),
    ("é", "é ", True),
]

JUDGES: dict[str, Any] = {
    "code_contests": (same_words, CODE_CONTESTS),
    "taco": (printed.stripped, TACO),
    "apps": (printed.loose_lines, APPS),
    "prime": (printed.close_lines, PRIME),
    "livecodebench": (printed.decimal_lines, LIVECODEBENCH),
}
OTHERWISE = {
    # Words and lines as sets: such a harness passes wrong answers.
    ("taco", "1\n2", "2\n1"): False,
    ("apps", "a b", "b a"): False,
    ("apps", "1\n2", "2\n1"): False,
    # No program can print what that harness wants.
    ("taco", "10\r\n20", "10\n20"): True,
    # It takes off blanks, or empty lines, and not both.
    ("prime", "1 2\n3", "1 2 \n\n3"): True,
}
"""Verdicts that are not the harness's."""
ROWS = [(name, *row) for name, (_, table) in JUDGES.items() for row in table]


@pytest.mark.parametrize(("name", "expected", "output", "harness"), ROWS)
def test_the_verdict_is_the_harness_s(name: str, expected: str, output: str, harness: bool) -> None:
    judge = JUDGES[name][0]
    wanted = OTHERWISE.get((name, expected, output), harness)
    assert (judge(ProgramCase("", expected), output.encode()) is True) is wanted
    assert pickle.loads(pickle.dumps(judge)) is judge


def test_the_verdicts_that_are_others_are_in_the_tables() -> None:
    harness = {row[:3]: row[3] for row in ROWS}
    assert all(harness[row] is not verdict for row, verdict in OTHERWISE.items())
