"""How code of each language is compiled and run."""

from __future__ import annotations

from dataclasses import dataclass

TRIAL = "works"


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


RECIPES = {
    "python": Recipe(file="run_code.py", run=("python3", "run_code.py"), trial="print('works')"),
    "bash": Recipe(file="run_code.sh", run=("bash", "run_code.sh"), trial="echo works"),
    "nodejs": Recipe(file="run_code.js", run=("node", "run_code.js"), trial="console.log('works')"),
    "perl": Recipe(file="run_code.pl", run=("perl", "run_code.pl"), trial="print 'works';"),
    "cpp": Recipe(
        file="run_code.cpp",
        compile=("g++", "-std=c++17", "-O2", "-pthread", "-o", "run_code", "run_code.cpp"),
        run=("./run_code",),
        trial='#include <iostream>\nint main() { std::cout << "works"; }',
    ),
    "java": Recipe(
        file="Main.java",
        compile=("javac", "-encoding", "UTF-8", "-d", ".", "Main.java"),
        run=("java", "-cp", ".", "Main"),
        trial='class Main { public static void main(String[] a) { System.out.print("works"); } }',
    ),
}
"""By the names that SandboxFusion has for them."""


def limited(command: tuple[str, ...], memory_limit_megabytes: int) -> list[str]:
    """A command under a limit of private writable memory, which holds for each of its processes; 0 and less is no limit.

    Not of address space: Node and Java reserve far more of that than they ever use.
    """
    if memory_limit_megabytes <= 0:
        return list(command)
    return ["/bin/sh", "-c", 'ulimit -d "$0" && exec "$@"', str(memory_limit_megabytes * 1024), *command]
