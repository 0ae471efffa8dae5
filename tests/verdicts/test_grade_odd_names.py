"""Names and places of files with which a policy could make git fail: its result is what git makes of them, or its failure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import aviato
from tests.verdicts.test_grade_results import began, git, grade, inside

FILES = {"pkg/core.py": b"def f():\n    return 1\n", ".gitignore": b"*.log\n", "sub/inner.py": b"1\n"}


@pytest.fixture(scope="module")
def session(server: Any) -> Iterator[aviato.Session]:
    with aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as made:
        yield made


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    """Its commit, and all of its files: with a link, and with a submodule that is there."""
    folder = tmp_path_factory.mktemp("origin") / "repo"
    for path, content in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    git(folder, "init", "-q", "sub")
    git(folder / "sub", "add", "-A")
    git(folder / "sub", "commit", "-q", "-m", "inner")
    git(folder.parent, "init", "-q", "repo")
    (folder / "link").symlink_to("pkg")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    files = {
        f"repo/{path.relative_to(folder)}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and "hooks" not in path.parts and "link" not in path.parts
    }
    return git(folder, "rev-parse", "HEAD").decode().strip(), files


def at(name: str) -> tuple[str, set[str]]:
    """Makes a file of that name, which is to be found."""
    return f"open({name!r}, 'w').close()", {name}


WORK = {
    # What a policy does, in Python → names of the files that the grader has then beside those that were there.
    "magic": at(":(icase)x.py"),
    "magic from the top": ("os.mkdir(':')\nopen(':/x.py', 'w').close()", {":/x.py"}),
    "magic that leaves out": at(":!x.py"),
    "magic of no kind": at(":(nosuch)x.py"),
    "two colons": at("::x.py"),
    "a pattern": at("[!x]*?.py"),
    "a backslash": at("a\\x.py"),
    "a quote": at("\"a'.py"),
    "a dash": at("--stdin"),
    "a line end": at("a\nb.py"),
    "a blank at the end": at("a "),
    "deep": ("os.makedirs('d/' * 60)\nopen('d/' * 60 + 'x', 'w').close()", {"d/" * 60 + "x"}),
    "ignored": ("open('a.log', 'w').close()", set()),
    "in a submodule": ("open('sub/new.py', 'w').close()", set()),
    "a submodule's own": ("open('sub/inner.py', 'w').write('2')", set()),
    "deep in a submodule": ("os.makedirs('sub/a/b')\nopen('sub/a/b/new.py', 'w').close()", set()),
    "a repository of its own": (
        "os.makedirs('own')\nsubprocess.run(['git', 'init', '-q', 'own'])\nopen('own/x', 'w').close()",
        {"own/x"},
    ),
}


@pytest.mark.parametrize("kind", WORK)
def test_a_name_is_a_name(kind: str, session: aviato.Session, repository: tuple[str, dict[str, bytes]]) -> None:
    commit, files = repository
    work, expected = WORK[kind]
    sandbox = began(session, files)
    sandbox.exec(["git", "-C", "repo", "checkout", "-q", "-f", commit], check=True).result()
    sandbox.exec(["python3", "-c", f"import os, subprocess\nos.chdir('repo')\n{work}"], check=True).result()
    found = inside(grade(sandbox, result_changes="repo", base_commit=commit, base_files=files))
    assert {path: found[path][0] for path in FILES} == FILES
    assert set(found) - {*FILES, "link/core.py", "link"} == expected


REFUSED = {
    "no text": "open(b'\\xff.py', 'w').close()",
    "no text in a directory": "os.makedirs(b'\\xff/a')\nopen(b'\\xff/a/x', 'w').close()",
    "behind a link that was there": "os.remove('link')\nos.mkdir('link')\nopen('link/x', 'w').close()",
    "in the place of a link": "os.remove('link')\nopen('link', 'w').close()",
    "another link": "os.remove('link')\nos.symlink('/etc', 'link')",
    "a socket": "import socket\nsocket.socket(socket.AF_UNIX).bind('s')",
    "more files than there may be": "for n in range(10_050): open(f'f{n}', 'w').close()",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_result_is_the_policys_failure(
    kind: str, session: aviato.Session, repository: tuple[str, dict[str, bytes]]
) -> None:
    commit, files = repository
    sandbox = began(session, files)
    sandbox.exec(["git", "-C", "repo", "checkout", "-q", "-f", commit], check=True).result()
    sandbox.exec(["python3", "-c", f"import os\nos.chdir('repo')\n{REFUSED[kind]}"], check=True).result()
    with pytest.raises(aviato.SandboxFileError) as caught:
        grade(sandbox, result_changes="repo", base_commit=commit, base_files=files)
    assert not caught.value.is_infrastructure
