"""Fences against markdown-it, which passes the tests of CommonMark."""

from __future__ import annotations

import re

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from aviato.rl.reading.commonmark import CommonMark
from aviato.rl.reading.habits import Completion

# The fence behind a line that is a tag would be HTML, and a definition of a link no paragraph: neither is read here.
ORACLE = MarkdownIt("commonmark").disable(["html_block", "reference"])

PIECES = st.sampled_from(
    [
        "a",
        "b ",
        "```",
        "~~~",
        "````",
        "```py",
        "~~~ x `y`",
        "> ",
        ">",
        "- ",
        "* ",
        "+ ",
        "1. ",
        "2) ",
        "10. ",
        "  ",
        "    ",
        " ",
        "\t",
        "\n",
        "\n",
        "\n",
        "\n\n",
        "---",
        "***",
        "# h",
        "=",
        "===",
        "-",
        "x y",
        "\n  ",
        "\n> ",
        "\n- ",
    ]
)
# The oracle counts the columns of a tab behind several marks of quotes otherwise than the specification, and lets a quote go on
# by a mark that is indented by four columns, which is code.
STRANGE = re.compile(r"    >|\t(.|\n)*>|>(.|\n)*\t")
DOCUMENTS = st.lists(PIECES, max_size=25).map("".join).filter(lambda text: not STRANGE.search(text))


def expected(text: str) -> list[tuple[str, str]]:
    # Without a line end it drops blanks from a last line that has nothing else.
    tokens = ORACLE.parse(text.removesuffix("\n") + "\n")
    return [(token.info.strip(), token.content.removesuffix("\n")) for token in tokens if token.type == "fence"]


@settings(max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(DOCUMENTS)
@example("- ```\na")
@example("> ```\n> a\n\nb")
@example("-\n\n  ```\n  a")
@example("a\n2. ```\n   b")
@example("- a\n      ```\n      b")
@example(">```\n> a")
@example("> a\n```\nb\n```")
def test_fences_are_those_of_commonmark(text: str) -> None:
    assert [(fence.info, fence.text) for fence in CommonMark(text).read()] == expected(text)


WORDS = st.text(alphabet="abc ", min_size=1, max_size=12)
CODE = st.lists(st.sampled_from(["x = 1", "def f():", "    return 1", "", "\tpass", "# a", "> a", "- a", "1. a"]), max_size=5)


@st.composite
def well_formed(draw: st.DrawFn, depth: int = 2) -> list[str]:
    """Lines of a document whose fences are all closed, in lists and quotes."""
    kind = draw(st.sampled_from(["words", "fence", "list", "quote", "two"] if depth else ["words", "fence"]))
    if kind == "words":
        return [draw(WORDS).strip() or "a", ""]
    if kind == "fence":
        mark = draw(st.sampled_from("`~")) * draw(st.integers(3, 5))
        return [mark + draw(st.sampled_from(["", "python", "bash", "py x"])), *draw(CODE), mark, ""]
    if kind == "two":
        return draw(well_formed(depth - 1)) + draw(well_formed(depth - 1))
    lines = draw(well_formed(depth - 1))
    if kind == "quote":
        return [*(f"> {line}" for line in lines), ""]
    marker = draw(st.sampled_from(["- ", "* ", "1. ", "10)  "]))
    return [marker + lines[0], *(" " * len(marker) + line if line else "" for line in lines[1:]), ""]


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(well_formed(3))
@example(["a", "", "```", "```", "", "- ```", "  ```", "", ""])
def test_habits_change_nothing_that_is_well_formed(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert [(fence.info, fence.text) for fence in Completion(text, "python").read()] == expected(text)
