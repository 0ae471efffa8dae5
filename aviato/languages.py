"""How code of each language is compiled and run."""

from __future__ import annotations

from dataclasses import dataclass

TRIAL = "works"
DEEP = ("c", "cpp", "rust")
"""Languages whose programs have a stack that grows, and reserve no address space that they never use."""
SPARE_KILOBYTES = 1 << 20
"""Of address space beside a limit of memory, for what threads and libraries reserve."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One language.

    Attributes:
        file: name of the code's file, in the sandbox's directory.
        run: the command.
        compile: the command before it; None for a language that is not compiled.
        trial: code that prints `TRIAL`: what fails that is broken or not there, whatever a model wrote.
    """

    file: str
    run: tuple[str, ...]
    trial: str
    compile: tuple[str, ...] | None = None


def recipes(stem: str = "main") -> dict[str, Recipe]:
    """Each language by the name that SandboxFusion has for it (C has none there).

    Args:
        stem: of the code's file, but for Java, whose files are named after what is in them.
    """
    return {
        "python": Recipe(file=f"{stem}.py", run=("python3", f"{stem}.py"), trial="print('works')"),
        "bash": Recipe(file=f"{stem}.sh", run=("bash", f"{stem}.sh"), trial="echo works"),
        "nodejs": Recipe(file=f"{stem}.js", run=("node", f"{stem}.js"), trial="console.log('works')"),
        "perl": Recipe(file=f"{stem}.pl", run=("perl", f"{stem}.pl"), trial="print 'works';"),
        "c": Recipe(
            file=f"{stem}.c",
            compile=("gcc", "-std=gnu17", "-O2", "-pthread", "-o", stem, f"{stem}.c", "-lm"),
            run=(f"./{stem}",),
            trial='#include <stdio.h>\nint main(void) { printf("works"); }',
        ),
        "cpp": Recipe(
            file=f"{stem}.cpp",
            compile=("g++", "-std=c++17", "-O2", "-pthread", "-o", stem, f"{stem}.cpp"),
            run=(f"./{stem}",),
            trial='#include <iostream>\nint main() { std::cout << "works"; }',
        ),
        "java": Recipe(
            file="Main.java",
            compile=("javac", "-encoding", "UTF-8", "-d", ".", "Main.java"),
            run=("java", "-cp", ".", "Main"),
            trial='class Main { public static void main(String[] a) { System.out.print("works"); } }',
        ),
        "go": Recipe(
            file=f"{stem}.go",
            compile=("go", "build", "-o", stem, f"{stem}.go"),
            run=(f"./{stem}",),
            trial='package main\nimport "fmt"\nfunc main() { fmt.Print("works") }',
        ),
        "rust": Recipe(
            file=f"{stem}.rs",
            compile=("rustc", "--edition", "2021", "-O", "-o", stem, f"{stem}.rs"),
            run=(f"./{stem}",),
            trial='fn main() { print!("works"); }',
        ),
    }


RECIPES = recipes()

ALIASES = {
    "c++": "cpp",
    "cc": "cpp",
    "cxx": "cpp",
    "g++": "cpp",
    **{f"{name}{year}": "cpp" for name in ("cpp", "c++") for year in ("11", "14", "17")},
    "c99": "c",
    "c11": "c",
    "c17": "c",
    "gcc": "c",
    "js": "nodejs",
    "javascript": "nodejs",
    "node": "nodejs",
    "py": "python",
    "py3": "python",
    "python3": "python",
    "sh": "bash",
    "shell": "bash",
    "golang": "go",
    "rs": "rust",
    "pl": "perl",
}
"""Other names that people give them, in lower case."""


def limited(command: tuple[str, ...], memory_limit_bytes: int | None, *, deep: bool = False) -> list[str]:
    """A command under a limit of private writable memory, which holds for each of its processes; None is no limit.

    Not of address space: Node and Java reserve far more of that than they ever use.

    Args:
        command: what runs.
        memory_limit_bytes: the limit.
        deep: the stack may be as large as the sandbox lets it be, as contests have it; for programs of `DEEP`.
    """
    if memory_limit_bytes is None:
        return list(command)
    kilobytes = -(-memory_limit_bytes // 1024)
    if not deep:
        return ["/bin/sh", "-c", 'ulimit -d "$0" && exec "$@"', str(kilobytes), *command]
    # Pages of the stack are no private memory to the kernel, so that an endless recursion is ended by address space.
    script = 'ulimit -S -s "$(ulimit -H -s)"; ulimit -v "$1"; ulimit -d "$0" && shift && exec "$@"'
    return ["/bin/sh", "-c", script, str(kilobytes), str(2 * kilobytes + SPARE_KILOBYTES), *command]
