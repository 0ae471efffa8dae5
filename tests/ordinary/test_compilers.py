"""Compilers, what they make, and what builds with them."""

from __future__ import annotations

from tests.ordinary.table import Row, table

GCC, GPP, CLANG, GO, RUST, CARGO = ("gcc",), ("g++",), ("clang",), ("go",), ("rustc",), ("cargo",)
FAULTS = {
    "beyond a block": ("int *p = malloc(40); p[n + 10] = 1; free(p); return 0;", "address", "heap-buffer-overflow"),
    "after it was freed": ("int *p = malloc(40); free(p); return p[n];", "address", "heap-use-after-free"),
    "freed twice": ("int *p = malloc(40); free(p); free(p + n); return 0;", "address", "attempting double-free"),
    "beyond a frame": ("int p[4]; for (int i = 0; i <= 4 + n; i++) p[i] = i; return p[2];", "address", "stack-buffer-overflow"),
    "a sum that is too large": ("int m = 2147483647; return (m + 1 + n) & 1;", "undefined", "signed integer overflow"),
    "a shift that is too far": ("return (1 << (40 + n)) & 1;", "undefined", "shift exponent 40 is too large"),
}
FAULTY = "cat > a.c <<'E'\n#include <stdlib.h>\nint main(int n, char **v) { n -= 1; %s }\nE\n%s -g -w -fsanitize=%s a.c -o a"


def fault(compiler: str, body: str, which: str, said: str) -> Row:
    """A program whose fault a sanitizer finds: it says so, and ends by it unless it may go on."""
    command = FAULTY % (body, compiler, which)
    return Row(
        f"{compiler}, {said}",
        f"{command}; ./a > said 2>&1 && echo 0 || echo failed; grep -m 1 -o '{said}' said",
        f"(0|failed)\\s+{said}",
        (compiler,),
        bare=True,
    )


def source(name: str, text: str, then: str) -> str:
    """A file with this text, and what is done with it."""
    return f"cat > {name} <<'E'\n{text}\nE\n{then}"


LEAK = """
#include <stdlib.h>
void *kept; int main(void) { kept = malloc(7); kept = 0; return 0; }
"""
RACE = """
#include <pthread.h>
int sum;
void *add(void *p) { for (int i = 0; i < 1000; i++) sum++; return p; }
int main(void) { pthread_t a, b; pthread_create(&a, 0, add, 0); pthread_create(&b, 0, add, 0);
  pthread_join(a, 0); pthread_join(b, 0); return 0; }
"""
CPP = """
#include <iostream>
#include <thread>
#include <vector>
#include <atomic>
#include <stdexcept>
int main() { std::atomic<int> sum{0}; std::vector<std::thread> all;
  for (int i = 0; i < 8; i++) all.emplace_back([&, i] { sum += i; });
  for (auto &one : all) one.join();
  try { throw std::runtime_error("thrown"); } catch (const std::exception &e) {
    std::cout << sum << " " << e.what() << std::endl; } }
"""
CMAKE = """
cat > CMakeLists.txt <<'E'
cmake_minimum_required(VERSION 3.10)
project(own C)
find_package(Threads REQUIRED)
add_library(own SHARED own.c)
add_executable(use use.c)
target_link_libraries(use own Threads::Threads)
enable_testing()
add_test(NAME use COMMAND use)
install(TARGETS own use)
E
echo 'int own(void) { return 42; }' > own.c
printf '#include <stdio.h>\\nint own(void);\\nint main(void) { printf("%%d\\\\n", own()); return 0; }\\n' > use.c
"""
AUTOTOOLS = """
cat > configure.ac <<'E'
AC_INIT([own], [1.0])
AM_INIT_AUTOMAKE([foreign])
AC_PROG_CC
AC_CHECK_HEADERS([pthread.h])
AC_CONFIG_FILES([Makefile])
AC_OUTPUT
E
printf 'bin_PROGRAMS = own\\nown_SOURCES = own.c\\n' > Makefile.am
printf '#include <stdio.h>\\nint main(void) { puts("from automake"); return 0; }\\n' > own.c
autoreconf -i > /dev/null 2>&1; ./configure --prefix=$PWD/out > /dev/null; make -s install > /dev/null; out/bin/own
"""
GO_SERVER = """
package main
import ("fmt"; "io"; "net/http"; "net/http/httptest"; "sync")
func main() {
  s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hi") }))
  defer s.Close()
  var all sync.WaitGroup
  for i := 0; i < 20; i++ { all.Add(1); go func() { defer all.Done(); http.Get(s.URL) }() }
  all.Wait(); r, _ := http.Get(s.URL); b, _ := io.ReadAll(r.Body); fmt.Println(string(b))
}
"""
GO_MODULE = """
mkdir -p own/sum; cd own; printf 'module own.example/own\\n\\ngo 1.19\\n' > go.mod
printf 'package sum\\n\\nfunc Of(a, b int) int { return a + b }\\n' > sum/sum.go
printf 'package sum\\n\\nimport "testing"\\n\\nfunc TestOf(t *testing.T) { if Of(1, 2) != 3 { t.Fail() } }\\n' > sum/sum_test.go
printf 'package main\\n\\nimport ("fmt"; "own.example/own/sum")\\n\\nfunc main() { fmt.Println(sum.Of(40, 2)) }\\n' > main.go
"""
CRATE = """
cargo new -q --vcs none own; cd own
cat >> src/main.rs <<'E'
#[cfg(test)] mod tests { #[test] fn adds() { assert_eq!(1 + 1, 2); } }
E
"""
THREADS_OF_RUST = """
use std::thread;
fn main() { let all: Vec<_> = (0..8).map(|n| thread::spawn(move || n * 2)).collect();
  println!("{}", all.into_iter().map(|one| one.join().unwrap()).sum::<i32>()); }
"""
PLUGIN = """
printf '#include <Python.h>\\nstatic PyObject *f(PyObject *s, PyObject *a) { return PyLong_FromLong(42); }\\n' > own.c
printf 'static PyMethodDef m[] = {{"f", f, METH_NOARGS, 0}, {0}};\\n' >> own.c
printf 'static struct PyModuleDef d = {PyModuleDef_HEAD_INIT, "own", 0, -1, m};\\n' >> own.c
printf 'PyMODINIT_FUNC PyInit_own(void) { return PyModule_Create(&d); }\\n' >> own.c
P=/usr/bin/python3; gcc -shared -fPIC $($P-config --includes) own.c -o own.so; $P -c 'import own; print(own.f())'
"""

ROWS = [
    *(fault("gcc", *each) for each in FAULTS.values()),
    *(fault("clang", *each) for each in list(FAULTS.values())[::2]),
    *(
        Row(
            f"{compiler}, leaks by {which}",
            source(
                "a.c",
                LEAK,
                f"{compiler} -g -fsanitize={which} a.c -o a; ./a 2> said || echo failed; grep -o '7 byte.*' said | tail -1",
            ),
            r"failed\s+7 byte\(s\) leaked in 1 allocation\(s\)\.",
            (compiler,),
            bare=True,
            differs={"landlock": None},
            guide="Without namespaces",
        )
        for compiler in ("gcc", "clang")
        for which in ("address", "leak")
    ),
    Row(
        "gcc, threads that race",
        source("a.c", RACE, "gcc -g -fsanitize=thread a.c -o a; ./a > said 2>&1 || true; grep -m 1 -o 'data race' said"),
        "data race",
        GCC,
        bare=True,
    ),
    Row(
        "clang, threads that race",
        source("a.c", RACE, "clang -g -fsanitize=thread a.c -o a; ./a > said 2>&1 || true; grep -m 1 -o 'data race' said"),
        "data race",
        CLANG,
        bare=True,
    ),
    Row(
        "clang, memory that was never set",
        "printf 'int main(int n, char **v) { int a[4]; a[n] = 1; return a[2] ? 3 : 4; }' > a.c;"
        " clang -g -w -fsanitize=memory a.c -o a; ./a > said 2>&1 || true; grep -m 1 -o 'use-of-uninitialized-value' said",
        "use-of-uninitialized-value",
        CLANG,
        bare=True,
    ),
    Row(
        "C++, threads and exceptions",
        source("a.cc", CPP, "g++ -std=c++17 -O2 -pthread a.cc -o a && ./a"),
        "28 thrown",
        GPP,
        bare=True,
    ),
    Row(
        "what ran how often",
        "printf 'int main(void) { return 0; }' > a.c; gcc --coverage a.c -o a; ./a; gcov -n a-a.gcda a.c "
        "2>&1 | grep -m 1 -o 100.00%",
        "100.00%",
        ("gcc", "gcov"),
        bare=True,
    ),
    Row(
        "a profile by gprof",
        "printf 'int main(void) { return 0; }' > a.c; gcc -pg a.c -o a; ./a; ls gmon.out; gprof a | head -1",
        "gmon.out\\s+Flat profile:",
        ("gcc", "gprof"),
        bare=True,
    ),
    Row(
        "optimised as a whole, statically linked",
        "printf '#include <stdio.h>\\nint main(void) { puts(\"static\"); }' > a.c; gcc -O2 -flto -static a.c "
        "-o a; ./a; file a | grep -c static",
        "static\\s+1",
        ("gcc", "file"),
        bare=True,
    ),
    Row("an extension of Python's", PLUGIN, "42", ("gcc", "python3-config"), bare=True),
    Row(
        "Fortran",
        source("a.f90", "print *, sum([1, 2, 3])\nend", "gfortran a.f90 -o a && ./a"),
        "6",
        ("gfortran",),
        bare=True,
    ),
    Row(
        "make with jobs",
        "printf 'all: a b\\na b:\\n\\t@echo made $@\\n' > Makefile; make -s -j 4 | sort",
        "made a\nmade b",
        ("make",),
        bare=True,
    ),
    Row(
        "cmake, ctest and an installation",
        CMAKE
        + "cmake -S . -B out > /dev/null; cmake --build out -j 2 > /dev/null; (cd out && ctest | grep -c '100% tests passed');"
        " cmake --install out > /dev/null; ldconfig; use",
        "1\\s+42",
        ("cmake", "gcc"),
        differs={"landlock": None},
        guide="Without namespaces",
    ),
    Row(
        "cmake with ninja, a prefix of its own",
        CMAKE + "cmake -G Ninja -S . -B out -DCMAKE_INSTALL_PREFIX=$PWD/there > /dev/null; cmake --build out > /dev/null;"
        " cmake --install out > /dev/null; LD_LIBRARY_PATH=there/lib there/bin/use",
        "42",
        ("cmake", "ninja", "gcc"),
        bare=True,
    ),
    Row("autoconf and automake", AUTOTOOLS, "from automake", ("autoreconf", "automake", "gcc"), bare=True),
    Row(
        "a lexer and a parser",
        "printf '%%%%\\n[0-9]+ printf(\"number\");\\n%%%%\\nint yywrap(void) { return 1; } int main(void) { yylex(); }' > a.l;"
        " flex a.l; gcc lex.yy.c -o a; echo 42 | ./a",
        "number",
        ("flex", "gcc"),
        bare=True,
    ),
    Row("libraries by pkg-config", "pkg-config --libs openssl", "-lssl -lcrypto", ("pkg-config",), bare=True),
    Row(
        "go run",
        source("a.go", 'package main\nimport "fmt"\nfunc main() { fmt.Println(6 * 7) }', "go run a.go"),
        "42",
        GO,
        bare=True,
        timeout_seconds=400,
    ),
    Row(
        "go build and go test",
        GO_MODULE + "go vet ./...; go test ./sum | cut -f1; go build -o own . && ./own",
        "ok\\s+42",
        GO,
        bare=True,
        timeout_seconds=400,
    ),
    Row(
        "go, a server and many clients",
        source("a.go", GO_SERVER, "go run a.go"),
        "hi",
        GO,
        bare=True,
        differs={"landlock": None},
        guide="Without namespaces",
        timeout_seconds=400,
    ),
    Row(
        "go with C",
        source(
            "a.go",
            'package main\n// int own(void) { return 42; }\nimport "C"\nimport "fmt"\nfunc main() { fmt.Println(C.own()) }',
            "go run a.go",
        ),
        "42",
        ("go", "gcc"),
        bare=True,
        timeout_seconds=400,
    ),
    Row(
        "go install",
        GO_MODULE + "go install . && $(go env GOPATH)/bin/own && go env GOPATH | grep -c go",
        "42\\s+1",
        GO,
        bare=True,
        timeout_seconds=400,
    ),
    Row("rustc, threads", source("a.rs", THREADS_OF_RUST, "rustc -O a.rs && ./a"), "56", RUST, bare=True),
    Row(
        "cargo build, run and test",
        CRATE + "cargo run -q --offline; cargo test -q --offline | grep -o 'test result: ok'",
        "Hello, world!\\s+test result: ok",
        CARGO,
        bare=True,
    ),
    Row(
        "cargo with a dependency by path, released",
        CRATE + "cargo new -q --vcs none --lib dep; printf '[dependencies]\\ndep = { path = \"dep\" }\\n' >> Cargo.toml;"
        " sed -i 's/println.*/println!(\"{}\", dep::add(40, 2));/' src/main.rs;"
        " sed -i '/\\[dependencies\\]/{x;s/^/x/;/^xx/{x;d};x}' Cargo.toml; cargo build -q --offline "
        "--release; target/release/own",
        "42",
        CARGO,
        bare=True,
    ),
    Row(
        "cargo install",
        CRATE + "cargo install -q --offline --path . && PATH=$PATH:$HOME/.cargo/bin own",
        "Hello, world!",
        CARGO,
        bare=True,
    ),
]

test_a_command = table(ROWS, always=12)
