"""A program is a process: what a shell says of `python main.py < input`, and the verdict here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from aviato.languages import RECIPES
from aviato.rl import CaseStatus, Outcome, ProgramCase, Task, Verdict


@dataclass(frozen=True)
class Row:
    """A program, what it reads, and what it has to print; whether it does, with 0 as its end."""

    code: str
    expected: str = "ok"
    stdin: str = ""
    passes: bool = True


PROGRAMS = {
    "print": Row("print('ok')"),
    "another answer": Row("print('no')", passes=False),
    "reads": Row("print(int(input()) + int(input()))", "5", "2\n3\n"),
    "reads all": Row("import sys\nprint(sum(map(int, sys.stdin.read().split())))", "6", "1 2\n3"),
    "reads lines": Row("import sys\nfor line in sys.stdin: print(line.strip()[::-1])", "cba\nfed", "abc\ndef"),
    "reads by buffer": Row("import sys\nprint(sys.stdin.buffer.readline().decode().strip())", "x", "x\n"),
    "opens 0": Row("print(open(0).read().strip())", "x", "x\n"),
    "opens /dev/stdin": Row("print(open('/dev/stdin').read().strip())", "x", "x\n"),
    "reads too much": Row("input()", "", "", passes=False),
    "reads nothing of it": Row("print('ok')", "ok", "a\n" * 50_000),
    "exit() at the end": Row("print('ok')\nexit()"),
    "quit() at the end": Row("print('ok')\nquit()"),
    "sys.exit()": Row("import sys\nprint('ok')\nsys.exit()"),
    "sys.exit(main()) of None": Row("import sys\ndef main(): print('ok')\nsys.exit(main())"),
    "sys.exit(0)": Row("import sys\nprint('ok')\nsys.exit(0)"),
    "os._exit(0) after a flush": Row("import os, sys\nprint('ok', flush=True)\nos._exit(0)"),
    "os._exit(0) without a flush": Row("import os, sys\nprint('ok')\nos._exit(0)", passes=False),
    "raise SystemExit": Row("print('ok')\nraise SystemExit"),
    "sys.exit(1)": Row("import sys\nprint('ok')\nsys.exit(1)", passes=False),
    "sys.exit of a text": Row("import sys\nprint('ok')\nsys.exit('bad')", passes=False),
    "an exception after the answer": Row("print('ok')\n1 / 0", passes=False),
    "a main block": Row("def main(): print('ok')\nif __name__ == '__main__': main()"),
    "threads that were not joined": Row(
        "import threading, time\ndef f():\n    time.sleep(0.2)\n    print('ok')\nthreading.Thread(target=f).start()"
    ),
    "a daemon thread": Row(
            "import threading, time\ndef f():\n    time.sleep(5)\n    print('no')\n"
            "threading.Thread(target=f, daemon=True).start()\nprint('ok')"
    ),
    "a big stack and recursion": Row(
            "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 27)\n"
            "def g(n): return 0 if n == 0 else 1 + g(n - 1)\n"
        "def f(): print(g(50_000))\nt = threading.Thread(target=f); t.start(); t.join()",
        "50000",
    ),
    "output at exit": Row("import atexit\natexit.register(print, 'ok')"),
    "output of a finalizer": Row("import weakref\nclass A: ...\na = A()\nweakref.finalize(a, print, 'ok')"),
    "multiprocessing by fork": Row(
            "import multiprocessing as m\ndef sq(n): return n * n\nif __name__ == '__main__':\n"
            "    with m.get_context('fork').Pool(2) as p: print(p.map(sq, [1, 2]))",
        "[1, 4]",
    ),
    "multiprocessing by spawn": Row(
            "import multiprocessing as m\ndef sq(n): return n * n\nif __name__ == '__main__':\n"
            "    with m.get_context('spawn').Pool(1) as p: print(p.map(sq, [1, 2]))",
        "[1, 4]",
    ),
    "fork and wait": Row("import os\nif os.fork() == 0:\n    print('ok', flush=True)\n    os._exit(0)\nos.wait()"),
    "a subprocess prints": Row("import subprocess\nsubprocess.run(['echo', 'ok'])"),
    "os.system prints": Row("import os\nos.system('echo ok')"),
    "exec of another program": Row("import os\nos.execvp('echo', ['echo', 'ok'])"),
    "stdout by descriptor": Row("import os\nos.write(1, b'ok\\n')"),
    "stdout replaced": Row("import sys, io\nsys.stdout = io.TextIOWrapper(open(1, 'wb', 0), write_through=True)\nprint('ok')"),
    "print to stderr": Row("import sys\nprint('ok', file=sys.stderr)", passes=False),
    "stderr beside the answer": Row("import sys\nprint('noise', file=sys.stderr)\nprint('ok')"),
    "a warning": Row("import warnings\nwarnings.warn('x')\nprint('ok')"),
    "200,000 characters": Row("print('x' * 200_000)", "x" * 200_000),
    "200,000 characters, of which the last is another": Row("print('x' * 199_999 + 'y')", "x" * 200_000, passes=False),
    "more than is expected": Row("print('x' * 200_000)", "x" * 65_536, passes=False),
    "less than is expected": Row("print('x' * 65_536)", "x" * 200_000, passes=False),
    "300,000,000 characters beside a short answer": Row(
        "import sys\nfor _ in range(300): sys.stdout.write('x' * 10**6)", "ok", passes=False
    ),
    "12,000,000 characters": Row("print('x' * 12_000_000)", "x" * 12_000_000),
    "unicode": Row("print('é✓')", "é✓"),
    "utf-8 in and out": Row("print(input()[::-1])", "✓é", "é✓\n"),
    "bytes that are no text": Row("import sys\nsys.stdout.buffer.write(b'\\xff\\xfe')", "\ufffd\ufffd", passes=False),
    "trailing blanks": Row("print('ok  \\t')\nprint()\nprint()", "ok"),
    "CRLF": Row("print('a\\r\\nb\\r')", "a\nb"),
    "leading blanks": Row("print('  ok')", "ok", passes=False),
    "a blank line in the middle": Row("print('a\\n\\nb')", "a\nb", passes=False),
    "case": Row("print('OK')", "ok", passes=False),
    "nothing": Row("pass", ""),
    "nothing where something is expected": Row("pass", "ok", passes=False),
    "a syntax error": Row("print('ok'", passes=False),
    "a BOM": Row("\ufeffprint('ok')"),
    "a cookie": Row("# coding: utf-8\nprint('ok')"),
    "a lone surrogate in the code": Row("print('ok')  # \ud800", passes=False),
    "a signal kills it": Row("import os, signal\nprint('ok', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)", passes=False),
    "a segmentation fault": Row("import ctypes\nprint('ok', flush=True)\nctypes.string_at(0)", passes=False),
    "a file of its own": Row("open('x', 'w').write('ok')\nprint(open('x').read())"),
    "argv": Row("import sys\nprint(sys.argv)", "['main.py']"),
        "__file__ and its directory": Row("import os, sys\n"
        "print(os.path.basename(__file__), sys.path[0] == os.getcwd())", "main.py True"),
    "no terminal": Row("import sys\nprint(sys.stdin.isatty(), sys.stdout.isatty())", "False False"),
    "hash seed": Row("print(len({str(n) for n in range(99)}))", "99"),
    "no code that is none": Row("# only a comment", "", passes=True),
}  # fmt: skip


def bare(row: Row, folder: Path) -> bool:
    """Whether a shell would say so."""
    (folder / "main.py").write_bytes(row.code.encode("utf-8", "surrogatepass"))
    command, plain = [sys.executable, "main.py"], {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    done = subprocess.run(command, cwd=folder, env=plain, input=row.stdin.encode(), capture_output=True, timeout=250)
    lines = [[line.rstrip() for line in text.rstrip().split(b"\n")] for text in (done.stdout, row.expected.encode())]
    return done.returncode == 0 and lines[0] == lines[1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_verdict_is_a_shells(name: str, outcome: Callable[..., Outcome], tmp_path: Path) -> None:
    row = PROGRAMS[name]
    assert bare(row, tmp_path) is row.passes, "the table is wrong about a plain Python"
    found = outcome(Task(code=row.code, stdin=row.stdin, expected_output=row.expected))
    assert found.verdict is (Verdict.PASSED if row.passes else Verdict.FAILED), found
    assert (found.grading_mode, len(found.cases)) == ("separate", 1)


ENDS = {
    "print('x')": 1,
    "exit(0)": 1,
    "import sys; sys.exit(3)": 0,
    "1 / 0": 0,
    "import os; os._exit(0)": 1,
    "raise SystemExit": 1,
}


def test_code_alone_passes_by_its_returncode(outcomes: Callable[..., list[Outcome]]) -> None:
    found = outcomes([Task(code=code) for code in ENDS])
    assert [one.reward() for one in found] == list(ENDS.values())
    assert {one.grading_mode for one in found} == {"command"} and found[2].message == "runs: returncode 3"
    assert found[0].result is not None and found[0].result.stdout == "x\n"


def test_many_cases_of_one_program(outcome: Callable[..., Outcome]) -> None:
    code = "n = int(input())\nif n == 3: 1 / 0\nwhile n == 4: pass\nif n == 5: print('x' * 10**7)\nprint(n * n)"
    cases = [ProgramCase(f"{n}\n", str(n * n), timeout_seconds=1.0 if n == 4 else None) for n in range(8)]
    found = outcome(Task(code=code, tests=[*cases, ProgramCase("9\n", "80", name="wrong")]))
    assert [case.reason for case in found.cases] == [
        *("passed", "passed", "passed", "returncode", "timed_out", "wrong_answer", "passed", "passed", "wrong_answer")
    ]
    assert [str(case.status) for case in found.cases[3:6]] == ["failed", "timed_out", "failed"]
    assert "ZeroDivisionError" in found.cases[3].message and "10000004 bytes" in found.cases[5].message
    assert (found.cases[8].name, found.cases[8].message) == ("wrong", "printed '81', expected '80'")
    assert found.verdict is Verdict.FAILED and found.pass_rate == 5 / 9


def test_the_rest_is_left_out_where_only_all_count(outcome: Callable[..., Outcome]) -> None:
    tasks = Task(
        code="n = int(input())\nwhile n == 1: pass\nprint(n)",
        tests=[ProgramCase(f"{n}", str(n)) for n in range(3)],
        case_timeout_seconds=0.5,
        stop_at_first_failure=True,
    )
    found = outcome(tasks)
    assert [case.status for case in found.cases] == [CaseStatus.PASSED, CaseStatus.TIMED_OUT, CaseStatus.NOT_RUN]
    assert found.verdict is Verdict.TIMED_OUT


def test_an_item_that_takes_too_long(outcome: Callable[..., Outcome]) -> None:
    task = Task(code="n = int(input())\nwhile n == 1: pass\nprint(n)", tests=[ProgramCase(str(n), str(n)) for n in range(3)])
    found = outcome(task, timeout_seconds=1.5)
    assert [str(case.status) for case in found.cases] == ["passed", "timed_out", "not_run"]
    assert (found.verdict, found.message) == (Verdict.TIMED_OUT, "ran longer than 1.5 s")


def test_what_is_expected_never_stands_in_the_sandbox(outcome: Callable[..., Outcome]) -> None:
    look = (
        "import os, glob\nfound = []\nsecret = 'a-secret-' + 'answer'\n"
        "for path in [*glob.glob('/proc/[0-9]*/cmdline'), *glob.glob('/proc/[0-9]*/environ'), *glob"
        ".glob('**/*', recursive=True)]:\n"
        "    try: text = open(path, 'rb').read()\n    except OSError: continue\n"
        "    if secret.encode() in text: found.append(path)\nprint(found or 'nowhere')"
    )
    found = outcome(Task(code=look, tests=[ProgramCase("", "nowhere"), ProgramCase("", "a-secret-answer")]))
    assert [case.passed for case in found.cases] == [True, False]


def test_what_a_case_leaves_running_is_gone_before_the_next(outcome: Callable[..., Outcome]) -> None:
    code = (
        "import os, sys\nif input() == 'leave':\n    if os.fork() == 0:\n        os.setsid()\n"
        "        import time; time.sleep(60)\n"
        "else:\n"
        "    others = [p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())]\n"
        "    print(others)"
    )
    found = outcome(Task(code=code, tests=[ProgramCase("leave", ""), ProgramCase("look", "[]")]))
    assert found.passed, found.cases


def test_files_arguments_and_returncodes(outcome: Callable[..., Outcome]) -> None:
    code = "import sys\nprint(open(sys.argv[1]).read(), open('all.txt').read())\nsys.exit(len(sys.argv))"
    cases = [
        ProgramCase(expected_stdout="one all", files={"in/a.txt": b"one"}, args=["in/a.txt"], returncode=2),
        ProgramCase(expected_stdout="two all", files={"in/a.txt": b"two"}, args=["in/a.txt", "x"], returncode=None),
        ProgramCase(expected_stdout="two all", args=["in/a.txt"]),
    ]
    found = outcome(Task(code=code, tests=cases, files={"all.txt": b"all"}))
    assert [case.reason for case in found.cases] == ["passed", "passed", "returncode"]


def test_memory_of_a_case(outcome: Callable[..., Outcome]) -> None:
    code = "n = int(input())\nkept = bytearray(b'x') * (n << 20)\nprint(len(kept))"
    cases = [ProgramCase(str(n), str(n << 20), memory_limit_bytes=128 << 20) for n in (1, 400, 2)]
    found = outcome(Task(code=code, tests=cases))
    assert [str(case.status) for case in found.cases] == ["passed", "out_of_memory", "passed"]
    assert found.verdict is Verdict.OUT_OF_MEMORY


LANGUAGES = {
    "python": ("print(int(input()) * 2)", "print(int(input()) * 3)"),
    "c": ('#include <stdio.h>\nint main() { int n; scanf("%d", &n); printf("%d", n * 2); }', "int main() { return 0; }"),
    "c++": ("#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n * 2; }", "int main() { return 1; }"),
    "bash": ("read n; echo $((n * 2))", "read n; echo $n"),
    "javascript": (
        "const n = parseInt(require('fs').readFileSync(0, 'utf8')); console.log(n * 2)",
        "console.log(process.argv.length)",
    ),
    "java": (
        "import java.util.*;\n"
        "public class Main { public static void main(String[] a) {\n"
        "System.out.println(2 * new Scanner(System.in).nextInt()); } }",
        "public class Main { public static void main(String[] a) { } }",
    ),
    "go": (
        'package main\nimport "fmt"\nfunc main() { var n int; fmt.Scan(&n); fmt.Println(n * 2) }',
        "package main\nfunc main() { }",
    ),
    "rust": (
        "use std::io;\n"
        "fn main() { let mut s = String::new(); io::stdin().read_line(&mut s).unwrap();\n"
        'println!("{}", s.trim().parse::<i32>().unwrap() * 2); }',
        "fn main() { }",
    ),
}


COMPILERS = {"c": "gcc", "c++": "g++", "javascript": "node", "java": "javac", "go": "go", "rust": "rustc"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_languages(language: str, outcomes: Callable[..., list[Outcome]]) -> None:
    right, wrong = LANGUAGES[language]
    cases = [ProgramCase("21\n", "42"), ProgramCase("4\n", "8")]
    found = outcomes([Task(code=code, language=language, tests=cases, timeout_seconds=60) for code in (right, wrong, "(((")])
    if shutil.which(COMPILERS.get(language, "sh"), path="/usr/local/bin:/usr/bin:/bin") is None:
        # Its tools are not there: that is said, and whatever the code is there is no verdict.
        assert found[0].error is not None and found[0].error.reason == "grader_failed", found[0]
        assert all(one.is_infrastructure for one in found[1:]) or language in ("bash", "javascript", "python")
        pytest.skip(f"{language} is not there: {found[0].message}")
    assert [one.verdict for one in found] == [Verdict.PASSED, Verdict.FAILED, Verdict.FAILED]
    assert found[2].reward() == 0.0


@pytest.mark.parametrize("memory_limit_bytes", [None, 256 << 20])
def test_an_interpreter_that_is_missing_is_nobodys_failure(
    memory_limit_bytes: int | None, outcomes: Callable[..., list[Outcome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(RECIPES["perl"], run=("no-such-perl", "main.pl"))
    cases = [ProgramCase("", "works", memory_limit_bytes=memory_limit_bytes)] * 2
    says_so = "echo 'exec: bash: not found' >&2; exit 127"
    with monkeypatch.context() as patched:
        patched.setitem(RECIPES, "perl", recipe)
        missing, claims = outcomes(
            [Task(code=recipe.trial, language="perl", tests=cases), Task(code=says_so, language="bash", tests=cases)]
        )
    assert missing.is_infrastructure and "the sandbox's image has no no-such-perl" in missing.message, missing
    assert "use an image with it" in missing.message and missing.reward() is None
    assert claims.verdict is Verdict.FAILED and claims.reward() == 0.0, "code that says so has failed"


def test_code_that_does_not_compile(outcome: Callable[..., Outcome]) -> None:
    found = outcome(Task(code="int main() { return x; }", language="cpp", tests=[ProgramCase("", "1"), ProgramCase("", "2")]))
    assert [case.reason for case in found.cases] == ["not_compiled"] * 2 and found.cases[0].status is CaseStatus.ERROR
    assert found.verdict is Verdict.FAILED and "does not compile" in found.message and "‘x’ was not declared" in found.message
