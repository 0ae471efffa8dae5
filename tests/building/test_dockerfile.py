"""Dockerfiles as text: what each line says, and which are refused, by their line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviato import AviatoValidationError
from aviato.building.dockerfile import KINDS, Instruction, parse
from aviato.building.dockerfile_stage import Commands, DockerfileStage
from aviato.building.dockerfile_words import WordError, expand, split
from aviato.building.from_dockerfile import source_of
from aviato.building.steps import Run

VARIABLES = {"x": "value", "empty": "", "_a1": "under"}


def only(text: str) -> Instruction:
    """The one instruction behind `FROM`."""
    [instruction] = parse(f"FROM a\n{text}").stages[0].instructions
    return instruction


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$x ${x} $x.y ${x}y", "value value value.y valuey"),
        ("$none|${none}|$xy", "||"),
        ("$_a1-$", "under-$"),
        (r"\$x \${x} a\b \\$x", r"$x ${x} ab \value"),
        ("'$x' \"$x\" 'a\"b' \"a'b\"", "$x value a\"b a'b"),
        (r'"a\"b\$x\c"', r'a"b$x\c'),
        ("${x:-d}|${empty:-d}|${none:-d}|${none:-}", "value|d|d|"),
        ("${x-d}|${empty-d}|${none-d}", "value||d"),
        ("${x:+d}|${empty:+d}|${none:+d}", "d||"),
        ("${x+d}|${empty+d}|${none+d}", "d|d|"),
        ("${none:-${x}/${none:-$_a1}}", "value/under"),
        ("${x:?no}|${empty?no}", "value|"),
    ],
)
def test_variables(text: str, value: str) -> None:
    assert expand(text, VARIABLES) == value


def test_variables_with_another_escape() -> None:
    assert expand(r"`$x C:\d", VARIABLES, "`") == r"$x C:\d"
    assert expand("'$x' \"a\" \\$x \\n", VARIABLES, quotes=False) == "'value' \"a\" $x \\n"


@pytest.mark.parametrize("text", ["${x", "${", "${}", "${x!y}", "'a", '"a', "${none:?why}", "${x:", "${x:}", "${-a}", "${x#y}"])
def test_variables_that_are_none(text: str) -> None:
    with pytest.raises(WordError):
        expand(text, VARIABLES)


def test_words() -> None:
    assert split("a  'b c' \"d e\" f\\ g h='i j'") == ["a", "'b c'", '"d e"', "f\\ g", "h='i j'"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("RUN a \\\n  b", "a   b"),
        ("RUN a \\  \n b", "a  b"),
        ("RUN a \\\n# comment\n  # another\n\n b", "a  b"),
        ("  run a", "a"),
        ("RUN a # no comment", "a # no comment"),
        ("RUN echo \\\\\nRUN b", None),
        ("\r\nRUN a \\\r\n b\r\n", "a  b"),
        ("RUN\ta\\", "a"),
    ],
)
def test_lines(text: str, said: str | None) -> None:
    found = parse(f"FROM a\n{text}").stages[0].instructions
    assert [one.text for one in found] == ([said] if said else ["echo \\\\", "b"])


def test_directives() -> None:
    file = parse("# syntax=docker/dockerfile:1\n# escape=`\nFROM a\nRUN b `\n c\\\nRUN d")
    assert [one.text for one in file.stages[0].instructions] == ["b  c\\", "d"]
    assert parse("# a comment\n# escape=`\nFROM a\nRUN b \\\n c").stages[0].instructions[0].text == "b  c"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('RUN ["a", "b c"]', ("a", "b c")),
        ("RUN ['a']", None),
        ("RUN [ -f x ] && y", None),
        ("CMD []", ()),
        ('CMD ["a", 1]', None),
        ('COPY ["a b", "/c"]', ("a b", "/c")),
        ("ENTRYPOINT a b", None),
    ],
)
def test_lists(text: str, words: tuple[str, ...] | None) -> None:
    assert only(text).words == words


def test_texts_within_the_file() -> None:
    one = only("COPY <<A.txt <<-'B' /d/\na $x\n\nA.txt\n\tb\n\t\tB c\n\tB")
    assert [(text.name, text.content, text.expanded) for text in one.heredocs] == [
        ("A.txt", "a $x\n\n", True),
        ("B", "b\nB c\n", False),
    ]
    assert [text.content for text in only("RUN <<EOF cat >x\n# not a comment \\\nRUN y\nEOF").heredocs] == [
        "# not a comment \\\nRUN y\n"
    ]
    for none in ("RUN echo $((1<<2))", "RUN cat <<<word", 'RUN echo "<<EOF"', "RUN echo it's <<EOF"):
        assert not only(none).heredocs


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("ENV a=b c='d e' f=\"g h\" i=j\\ k", [("a", "b"), ("c", "'d e'"), ("f", '"g h"'), ("i", "j\\ k")]),
        ("ENV a b c", [("a", "b c")]),
        ("ENV a=", [("a", "")]),
        ('LABEL "a.b"=c', [('"a.b"', "c")]),
    ],
)
def test_names_with_values(text: str, pairs: list[tuple[str, str]]) -> None:
    assert only(text).pairs() == pairs


def test_stages() -> None:
    file = parse("ARG A=b\nARG C\nFROM --platform=x $A AS One\nRUN a\nfrom b as two\nFROM one\nRUN b")
    assert [one.text for one in file.arguments] == ["A=b", "C"]
    assert [(stage.base, stage.name, len(stage.instructions)) for stage in file.stages] == [
        ("$A", "one", 1),
        ("b", "two", 0),
        ("one", None, 1),
    ]


REFUSED = [
    ("FROM a\n\nRUNN b", 3, "RUNN; did you mean RUN"),
    ("FROM a\nRUN b \\\n c\nONBUILD RUN b", 4, "ONBUILD"),
    ("RUN a", 1, "before the first FROM"),
    ("", 1, "no FROM"),
    ("# escape=x\nFROM a", 1, "escape"),
    ("# escape=`\n# escape=`\nFROM a", 2, "twice"),
    ("FROM", 1, "FROM"),
    ("FROM a b", 1, "FROM"),
    ("FROM a AS 1x", 1, "1x"),
    ("FROM a AS x\nFROM b AS X", 2, "twice"),
    ("FROM ${a", 1, "no }"),
    ("FROM a\nRUN", 2, "RUN"),
    ("FROM a\nRUN []", 2, "empty"),
    ("FROM a\nRUN --mount=type=secret,id=x b", 2, "type=secret"),
    ("FROM a\nRUN --mount=type=ssh b", 2, "type=ssh"),
    ("FROM a\nRUN --mount=target=/x b", 2, "type=bind"),
    ("FROM a\nRUN --network=host b", 2, "--network=host"),
    ("FROM a\nRUN --security=insecure b", 2, "--security"),
    ("FROM a\nCOPY --parents a b", 2, "--parents"),
    ("FROM a\nCOPY --chmod=u+x a b", 2, "--chmod=u+x"),
    ("FROM a\nCOPY a", 2, "destination"),
    ("FROM a\nCOPY <<EOF /x\na", 2, "EOF"),
    ("FROM a\nCOPY --from=b <<EOF /x\nEOF", 2, "--from"),
    ("FROM a\nCOPY https://example.org/x /", 2, "ADD"),
    ("FROM a\nADD git@example.org:a/b /", 2, "git"),
    ("FROM a\nADD https://example.org/a.git#main /", 2, "git"),
    ("FROM a\nADD --checksum=x a /", 2, "--checksum"),
    ("FROM a\nCOPY --checksum=sha256:0 a /", 2, "--checksum"),
    ("FROM a\nENV a", 2, "no value"),
    ("FROM a\nENV a=b c", 2, "without a value"),
    ("FROM a\nENV a='b", 2, "no end"),
    ("FROM a\nARG 1=2", 2, "'1'"),
    ("FROM a\nSHELL sh", 2, "JSON"),
    ("FROM a\nWORKDIR ${x%y}", 2, "not supported"),
    ("FROM a\nRUN \0", 2, "character"),
    ('FROM a\nRUN ["\\ud800"]', 2, "character"),
    ("FROM a\n{}", 2, "no instruction"),
]


@pytest.mark.parametrize(("text", "line", "said"), REFUSED)
def test_refused(text: str, line: int, said: str) -> None:
    with pytest.raises(AviatoValidationError) as caught:
        parse(text, "Dockerfile.x")
    assert str(caught.value).startswith(f"Dockerfile.x:{line}: ") and said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RUN <<EOF\na\nb\nEOF", ("/bin/sh", "-c", "a\nb\n")),
        ("RUN python3 <<EOF\nb\nEOF", ("/bin/sh", "-c", "python3 <<EOF\nb\nEOF\n")),
        ("RUN cat <<-'A' <<B >x\n\ta\n\tA\nb\nB", ("/bin/sh", "-c", "cat <<-'A' <<B >x\na\nA\nb\nB\n")),
        ('SHELL ["/bin/bash", "-ec"]\nRUN a', ("/bin/bash", "-ec", "a")),
        ('RUN ["a", "$b"]', ("a", "$b")),
    ],
)
def test_commands(text: str, words: tuple[str, ...]) -> None:
    stage = DockerfileStage("Dockerfile", parse(f"FROM a\n{text}").stages[0].instructions, "/")
    [*_, step], _ = stage.steps(Commands())
    assert isinstance(step, Run) and step.words == words


def test_arguments_of_a_stage_are_those_of_what_begins_with_it(tmp_path: Path) -> None:
    """As Docker's documentation has it of build variables; a stage that begins with something else has none of them."""
    text = """ARG OUTER=outer
FROM a AS below
ARG OUTER
ARG OWN=below GIVEN=below CHANGED=below
RUN one
FROM a AS other
RUN two
FROM below
ARG CHANGED=above GIVEN OUTER
ENV D=$OWN
RUN three
"""
    (tmp_path / "Dockerfile").write_text(text)
    said = {}
    for target in ("below", "other", "2"):
        source = source_of(str(tmp_path / "Dockerfile"), None, target, {"GIVEN": "given"})
        commands, steps = Commands(), []
        for stage in source.steps:
            assert isinstance(stage, DockerfileStage)
            found, commands = stage.steps(commands)
            steps += found
        last = steps[-1]
        assert isinstance(last, Run)
        said[target] = dict(last.environment), dict(commands.environment)
    assert said["below"] == ({"OUTER": "outer", "OWN": "below", "GIVEN": "given", "CHANGED": "below"}, {})
    assert said["other"] == ({}, {})
    assert said["2"] == ({"OUTER": "outer", "OWN": "below", "GIVEN": "given", "CHANGED": "above"}, {"D": "below"})


MARKS = ["\n", " ", "\\\n", "<<EOF", "EOF", '["a", "b"]', "$x", "${", "}", ":-", *"'\"=a#`\0", "# escape=`\n", "FROM a\n"]
FLAGS = ["--from=a", "--mount=type=cache", "AS b", "/d/"]
pieces = st.sampled_from([*KINDS, *MARKS, *FLAGS])


@given(st.text() | st.lists(pieces | st.text(max_size=3)).map("".join) | st.lists(pieces).map(" ".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        file = parse(text)
        for stage in file.stages:
            if not any(one.flag("from") is not None for one in stage.instructions):
                DockerfileStage("Dockerfile", stage.instructions, "/").steps(Commands())
    except AviatoValidationError as error:
        assert str(error).startswith("Dockerfile:")
    else:
        assert file.stages
