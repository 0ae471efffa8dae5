"""What the model made: patterns, directories, and changes of a repository, beside what git makes of them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato

LIST = """
import json, os, stat
found = {}
for top, folders, names in os.walk('.'):
    folders[:] = [name for name in folders if name not in ('.git', '__pycache__')]
    for name in names:
        path = os.path.join(top, name)[2:]
        if name not in ('look.py', 'aviato_solution.py'):
            text = os.readlink(path) if os.path.islink(path) else open(path, 'rb').read().hex()
            found[path] = [text, oct(os.lstat(path).st_mode & 0o111)]
print(json.dumps(found, sort_keys=True))
"""
"""A grader that tells what lies beside it."""


@pytest.fixture(scope="module")
def session(server: Any) -> Iterator[aviato.Session]:
    with aviato.Session(aviato.SandboxDefaults(base_url=server.url)) as made:
        yield made


@pytest.fixture
def sandbox(session: aviato.Session) -> aviato.Sandbox:
    return session.sandbox()


def write(sandbox: aviato.Sandbox, **texts: bytes) -> None:
    for path, text in texts.items():
        sandbox.write_file(path, text).result()


def grade(sandbox: aviato.Sandbox, files: dict[str, bytes] | None = None, **options: Any) -> aviato.GradeResult:
    given = {"mode": "in_process", "timeout_seconds": 20, **options}
    return sandbox.grade({"look.py": LIST.encode(), **(files or {})}, ["python3", "look.py"], **given).result(55)


def beside(result: aviato.GradeResult) -> dict[str, str]:
    """Path → content."""
    import json

    assert result.passed, (result.message, result.exec_result.stderr)
    return {path: bytes.fromhex(text).decode() for path, (text, _) in json.loads(result.exec_result.stdout).items()}


TREE = {
    "solution.py": b"1",
    "src/a.py": b"2",
    "src/b.txt": b"3",
    "src/deep/er/c.py": b"4",
    "src/with space ä.py": b"5",
    "src/.hidden.py": b"6",
    "src/conftest.py": b"7",
    "src/json.py": b"8",
    "src/__pycache__/a.cpython-311.pyc": b"9",
    "src/a.pyc": b"10",
    "src/.git/hooks/x.py": b"11",
    "src/[x].py": b"12",
    "other/d.py": b"13",
    "pyproject.toml": b"14",
    "src/look.py": b"15",
}
PATTERNS: dict[str, tuple[list[str], set[str], set[str]]] = {
    "all below": (
        ["src/**/*.py"],
        {"src/a.py", "src/deep/er/c.py", "src/with space ä.py", "src/.hidden.py", "src/[x].py"},
        {"src/conftest.py", "src/json.py"},
    ),
    "one level": (["src/*.txt"], {"src/b.txt"}, set()),
    "a question mark": (["src/?.*"], {"src/a.py", "src/b.txt"}, {"src/a.pyc"}),
    "a class": (["*/[cd].py"], {"other/d.py"}, set()),
    "a name with brackets": (["src/[x].py"], {"src/[x].py"}, set()),
    "a directory": (
        ["src/"],
        {"src/a.py", "src/b.txt", "src/deep/er/c.py", "src/with space ä.py", "src/.hidden.py", "src/[x].py"},
        {"src/conftest.py", "src/json.py", "src/a.pyc"},
    ),
    "a directory of everything": (["/workspace/other/"], {"other/d.py"}, set()),
    "several that overlap": (["src/a.py", "src/a*", "**/d.py"], {"src/a.py", "other/d.py"}, {"src/a.pyc"}),
    "from the top": (["*"], {"solution.py"}, {"pyproject.toml"}),
}


@pytest.fixture(scope="module")
def tree(session: aviato.Session) -> aviato.Sandbox:
    made = session.sandbox()
    write(made, **TREE)
    return made


@pytest.mark.parametrize("kind", PATTERNS)
def test_patterns_and_directories(kind: str, tree: aviato.Sandbox) -> None:
    paths, found, left_out = PATTERNS[kind]
    result = grade(tree, result_paths=paths)
    assert beside(result) == {path: TREE[path].decode() for path in found}
    assert set(result.left_out) == left_out
    if kind == "all below":
        more = grade(tree, result_paths=paths, allow_startup_files=True)
        assert set(beside(more)) == found | left_out and not more.left_out


def test_in_separate_a_pattern_gives_names_to_call(session: aviato.Session, sandbox: aviato.Sandbox) -> None:
    write(sandbox, **{"pkg/__init__.py": b"", "pkg/inner.py": b"def f(): return 3\n", "pkg/x.so": b"", "data/n.json": b"4"})
    test = b"import json\nfrom pkg.inner import f\nassert f() == json.load(open('data/n.json')) - 1\n"
    result = sandbox.grade(
        {"check.py": test}, ["python3", "check.py"], result_paths=["pkg/**", "data/"], timeout_seconds=20
    ).result(50)
    assert result.passed, result.exec_result.stderr
    assert result.left_out == ("pkg/x.so",)
    test = b"from pkg.inner import LIMIT\nassert LIMIT == 3\n"
    with pytest.raises(aviato.AviatoValidationError, match="value of LIMIT"):
        sandbox.grade({"check.py": test}, ["python3", "check.py"], result_paths=["pkg/**"]).result(50)


def test_a_graders_file_is_never_the_policys(sandbox: aviato.Sandbox) -> None:
    write(sandbox, **{"look.py": b"raise SystemExit(0)", "help.py": b"x"})
    assert beside(grade(sandbox, {"help.py": b"mine"}, result_paths=["*.py"])) == {"help.py": "mine"}


@pytest.mark.deep
def test_what_is_none(sandbox: aviato.Sandbox) -> None:
    make = "mkdir -p src empty many; ln -s /etc/passwd src/link.py; mkfifo src/pipe.py; ln -s /etc etc"
    make += "; cd many; seq 10001 | xargs touch"
    sandbox.exec(["sh", "-c", make], check=True).result()
    refused = {
        "src/link*": ("src/link.py", "not_a_regular_file"),
        "src/p*": ("src/pipe.py", "not_a_regular_file"),
        "empty/": ("empty/**", "no_such_file"),
        "*.no": ("*.no", "no_such_file"),
        "gone/": ("gone", "no_such_file"),
        "etc/": ("etc", "not_a_directory"),
        "many/": ("many/", "too_large"),
    }
    for path, (named, reason) in refused.items():
        with pytest.raises(aviato.SandboxFileError) as caught:
            sandbox.grade({}, ["true"], result_paths=[path]).result(50)
        assert caught.value.reason == reason and str(caught.value.filepath).startswith(named), (path, caught.value)
        assert not caught.value.is_infrastructure
    sandbox.exec(["sh", "-c", "truncate -s 200M src/a; truncate -s 100M src/b"], check=True).result()
    with pytest.raises(aviato.SandboxFileError, match="256 MiB"):
        sandbox.grade({}, ["true"], result_paths=["src/[ab]*"]).result(50)


def test_names_that_are_no_text(sandbox: aviato.Sandbox) -> None:
    sandbox.exec(
        ["python3", "-c", "import os; os.mkdir('d'); open(b'd/\\xff.py', 'w'); open('d/a\\n\\x1b.py', 'w')"], check=True
    ).result()
    with pytest.raises(aviato.SandboxFileError) as caught:
        sandbox.grade({}, ["true"], result_paths=["d/"]).result(50)
    assert not caught.value.is_infrastructure
    assert set(beside(grade(sandbox, result_paths=["d/a*"]))) == {"d/a\n\x1b.py"}


def test_arguments_that_cannot_be_meant() -> None:
    sandbox = aviato.Sandbox()
    for wrong in (
        {"result_paths": ["/"]},
        {"result_paths": ["/**"]},
        {"result_paths": ["/etc/*"]},
        {"result_paths": ["../*"]},
        {"result_changes": "/etc"},
        {"result_changes": "/"},
        {"base_commit": "abc"},
        {"base_files": {}},
        {"result_changes": "repo", "base_commit": "--upload-pack=x"},
        {"result_changes": "repo", "base_commit": 3},
    ):
        with pytest.raises(aviato.AviatoValidationError):
            sandbox.grade({}, ["true"], **wrong)  # type: ignore[arg-type]


# -- changes of a repository


def git(folder: Path, *arguments: str, given: bytes | None = None) -> bytes:
    who = [
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.invalid",
        "-c",
        "core.autocrlf=false",
        "-c",
        "init.defaultBranch=main",
    ]
    return subprocess.run(["git", *who, "-C", folder, *arguments], check=True, capture_output=True, input=given).stdout


REPOSITORY = {
    "pkg/__init__.py": b"",
    "pkg/core.py": b"def f():\n    return 1\n",
    "pkg/json.py": b"x = 1\n",
    "pkg/old.py": b"y = 1\n",
    "pkg/gone.py": b"z = 1\n",
    "run.sh": b"#!/bin/sh\n",
    "crlf.txt": b"a\r\nb\r\n",
    "with space/\xc3\xa4 b.txt".encode("latin-1").decode(): b"1\n",
    "image.bin": bytes(range(256)),
    ".gitignore": b"build/\n*.log\n",
    "conftest.py": b"",
}
WORK = """
cd repo
printf 'def f():\\n    return 2\\n' > pkg/core.py
printf 'x = 2\\n' > pkg/json.py
mv pkg/old.py pkg/new.py
rm pkg/gone.py
chmod +x run.sh
printf 'a\\r\\nc\\r\\n' > crlf.txt
printf '2\\n' > 'with space/ä b.txt'
printf 'new\\n' > 'with space/☃.txt'
printf '\\000\\377\\n\\000' > image.bin
mkdir -p a/b build; printf 'deep' > a/b/c; printf 'built' > build/x; printf 'log' > a.log
printf 'import os; os._exit(0)' > conftest.py
printf 'import os; os._exit(0)' > sitecustomize.py
printf 'x' > json.py
"""
"""All kinds of changes at once."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, bytes]]:
    """A repository, its commit, and all of its files as they are put into a sandbox."""
    folder = tmp_path_factory.mktemp("origin") / "repo"
    for path, content in REPOSITORY.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    git(folder.parent, "init", "-q", "repo")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    commit = git(folder, "rev-parse", "HEAD").decode().strip()
    files = {
        f"repo/{path.relative_to(folder)}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "hooks" not in path.parts
    }
    return folder, commit, files


def by_git(folder: Path, commit: str, worked: Path, target: Path) -> None:
    """What `git diff` of the work, applied to a fresh checkout, gives: the reference."""
    git(worked, "add", "-A")
    patch = git(worked, "diff", "--binary", "--cached", commit)
    git(folder.parent, "clone", "-q", str(folder), str(target))
    git(target, "apply", "--whitespace=nowarn", "-", given=patch)


def tree_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode & 0o111)
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


def began(session: aviato.Session, files: dict[str, bytes]) -> aviato.Sandbox:
    sandbox = session.sandbox()
    for path, content in files.items():
        sandbox.write_file(path, content).result()
    return sandbox


def inside(result: aviato.GradeResult) -> dict[str, tuple[bytes, int]]:
    import json

    assert result.passed, (result.message, result.exec_result.stderr)
    found = json.loads(result.exec_result.stdout)
    return {
        path[len("repo/") :]: (bytes.fromhex(text), int(mode, 8))
        for path, (text, mode) in found.items()
        if path.startswith("repo/")
    }


def test_a_patch_is_a_result(session: aviato.Session, repository: tuple[Path, str, dict[str, bytes]], tmp_path: Path) -> None:
    folder, commit, files = repository
    git(tmp_path, "clone", "-q", str(folder), "repo")
    subprocess.run(["sh", "-c", WORK], cwd=tmp_path, check=True)
    by_git(folder, commit, tmp_path / "repo", tmp_path / "patched")
    expected = tree_of(tmp_path / "patched")
    for path in ("conftest.py", "sitecustomize.py", "json.py"):
        expected.pop(path)
    sandbox = began(session, files)
    sandbox.exec(["sh", "-c", WORK], check=True).result()
    result = grade(sandbox, result_changes="repo", base_commit=commit, base_files=files)
    found = inside(result)
    assert found.pop("conftest.py") == (b"", 0)  # As it was.
    assert found == expected
    assert set(result.left_out) == {"repo/conftest.py", "repo/sitecustomize.py", "repo/json.py"}
    more = inside(grade(sandbox, result_changes="repo", base_commit=commit, base_files=files, allow_startup_files=True))
    assert more == tree_of(tmp_path / "patched")


def test_without_a_commit_all_that_differs_is_a_change(
    session: aviato.Session, repository: tuple[Path, str, dict[str, bytes]]
) -> None:
    _, _, files = repository
    sandbox = began(session, files)
    sandbox.exec(["sh", "-c", WORK], check=True).result()
    found = inside(grade(sandbox, result_changes="/workspace/repo", base_files=files))
    assert found["build/x"] == (b"built", 0) and found["a.log"] == (b"log", 0) and "pkg/gone.py" not in found
    assert found["pkg/core.py"][0].endswith(b"2\n") and found["run.sh"][1] == 0o111


ATTACKS = {
    "a filter": "git config filter.x.clean 'cat /dev/null'; echo '* filter=x' > .git/info/attributes",
    "a textconv": "git config diff.x.textconv true; git config diff.external true; echo '* diff=x' > .git/info/attributes",
    "a hook": "mkdir -p .git/hooks; printf '#!/bin/sh\\ntouch ran' > .git/hooks/post-checkout; chmod +x .git/hooks/*",
    "a monitor": "git config core.fsmonitor 'touch /workspace/ran'; git config core.hooksPath /workspace",
    "an index that says that nothing changed": "git update-index --assume-unchanged pkg/core.py",
    "a commit of its own": "git -c user.name=x -c user.email=x commit -qam x; git tag -f $(git rev-parse HEAD~1)",
    "no repository any more": "rm -rf .git",
    "an ignore list": "echo '*' > .gitignore",
    "a program of its own": "mkdir -p /root/bin; printf '#!/bin/sh\\nexit 0' > /usr/bin/git || true",
}


@pytest.mark.parametrize("way", ATTACKS)
def test_the_policys_git_has_no_say(way: str, session: aviato.Session, repository: tuple[Path, str, dict[str, bytes]]) -> None:
    _, commit, files = repository
    sandbox = began(session, files)
    work = f"cd repo; printf 'def f():\\n    return 2\\n' > pkg/core.py; rm pkg/gone.py; echo > new.txt\n{ATTACKS[way]}"
    sandbox.exec(["sh", "-c", work]).result()
    test = b"import sys\nsys.path.insert(0, 'repo')\nfrom pkg.core import f\nassert f() == 2\n"
    result = sandbox.grade(
        {"look.py": test + LIST.encode()},
        ["python3", "look.py"],
        result_changes="repo",
        base_commit=commit,
        base_files=files,
        mode="in_process",
        timeout_seconds=20,
    ).result(50)
    assert not [each for each in sandbox.list_files(".").result() if each.path.endswith("/ran")]
    found = inside(result)
    changed = {path for path in found.keys() | REPOSITORY.keys() if found.get(path, (None,))[0] != REPOSITORY.get(path)}
    assert changed == {"pkg/core.py", "pkg/gone.py", "new.txt"} | ({".gitignore"} if way == "an ignore list" else set())


def test_links_that_a_policy_made_are_refused(session: aviato.Session, repository: tuple[Path, str, dict[str, bytes]]) -> None:
    _, commit, files = repository
    for work in ("ln -s /etc/passwd link", "rm pkg/core.py; ln -s /etc/passwd pkg/core.py", "mkfifo pipe"):
        sandbox = began(session, files)
        sandbox.exec(["sh", "-c", f"cd repo; {work}"], check=True).result()
        with pytest.raises(aviato.SandboxFileError) as caught:
            grade(sandbox, result_changes="repo", base_commit=commit, base_files=files)
        assert caught.value.reason == "not_a_regular_file" and not caught.value.is_infrastructure
    sandbox = began(session, files)
    sandbox.exec(["sh", "-c", "cd repo; mkdir build; ln -s /etc build/x"], check=True).result()
    assert "build/x" not in inside(grade(sandbox, result_changes="repo", base_commit=commit, base_files=files))


def test_a_directory_in_the_place_of_a_file_and_a_file_in_that_of_a_directory(session: aviato.Session) -> None:
    files = {"repo/a": b"1", "repo/b/c": b"2"}
    sandbox = began(session, files)
    sandbox.exec(["sh", "-c", "cd repo; rm a; mkdir a; echo -n 3 > a/x; rm -r b; echo -n 4 > b"], check=True).result()
    assert inside(grade(sandbox, result_changes="repo", base_files=files)) == {"a/x": (b"3", 0), "b": (b"4", 0)}


def test_a_base_that_is_not_there_is_no_verdict(
    session: aviato.Session, repository: tuple[Path, str, dict[str, bytes]]
) -> None:
    _, _, files = repository
    sandbox = began(session, files)
    with pytest.raises(aviato.SandboxExecutionError) as caught:
        grade(sandbox, result_changes="repo", base_commit="0" * 40, base_files=files)
    assert caught.value.reason == "grader_failed" and caught.value.is_infrastructure and "base_commit" in str(caught.value)


def test_changes_in_separate(session: aviato.Session, repository: tuple[Path, str, dict[str, bytes]]) -> None:
    _, commit, files = repository
    sandbox = began(session, files)
    sandbox.exec(["sh", "-c", WORK], check=True).result()
    test = (
        "from aviato_solution import run\nassert 'return 2' not in open('repo/pkg/core.py').read()\n"
        "code = 'from pkg.core import f; print(f())'\n"
        "assert run(['sh', '-c', 'cd repo; python3 -c \"%s\"' % code]) == (0, '2\\n', '')\n"
    )
    result = sandbox.grade(
        {"check.py": test.encode()},
        ["python3", "check.py"],
        result_changes="repo",
        base_commit=commit,
        base_files=files,
        timeout_seconds=20,
    ).result(50)
    assert result.passed, result.exec_result.stderr


def test_a_file_that_hides_what_the_grader_imports_is_left_out(session: aviato.Session) -> None:
    """Else a policy could make a grader ask its own stand-in what only the real module can answer, and have no verdict."""
    sandbox = session.sandbox(mounted_files=[{"mount_path": "/opt/installed/tables.py", "file_content": "LIMIT = 3\n"}])
    write(
        sandbox,
        **{"tables.py": b"LIMIT = 4\n", "solution.py": b"def f(): return 4\n", "pkg/tables.py": b"", "src/tables.py": b""},
    )
    test = b"import tables\nfrom solution import f\nassert f() == tables.LIMIT\n"
    for mode in ("separate", "in_process"):
        result = sandbox.grade(
            {"check.py": test},
            ["python3", "check.py"],
            result_paths=["**/*.py"],
            mode=mode,  # type: ignore[arg-type]
            env={"PYTHONPATH": "/opt/installed"},
            timeout_seconds=20,
        ).result(50)
        assert not result.passed and set(result.left_out) == {"tables.py", "src/tables.py"}, (mode, result)
    write(sandbox, **{"solution.py": b"def f(): return 3\n"})
    result = sandbox.grade(
        {"check.py": test},
        ["python3", "check.py"],
        result_paths=["*.py"],
        env={"PYTHONPATH": "/opt/installed"},
        timeout_seconds=20,
    ).result(50)
    assert result.passed, result.exec_result.stderr
