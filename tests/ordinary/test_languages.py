"""Interpreters, and what installs things for them."""

from __future__ import annotations

from tests.ordinary.table import Row, table

NO_ROOT = "Without namespaces"
NODE, NPM, PERL, RUBY, PHP = ("node",), ("npm",), ("perl",), ("ruby",), ("php",)

NPM_PROJECT = """
mkdir dep app
printf '{"name":"dep-x","version":"1.0.0","main":"index.js"}' > dep/package.json; echo 'module.exports = 42' > dep/index.js
(cd dep && npm pack --silent > /dev/null); cd app
printf '{"name":"app-x","version":"1.0.0","scripts":{"start":"node main.js","test":"node --test"}}' > package.json
echo 'console.log(require("dep-x"))' > main.js
npm install --offline --no-audit --no-fund --silent ../dep/dep-x-1.0.0.tgz
"""
NODE_TEST = 'printf \'require("node:test")("sum", () => require("node:assert").equal(1 + 1, 2))\' > a.test.js; '
NODE_WORKERS = """
const { Worker, isMainThread, parentPort } = require("worker_threads");
if (isMainThread) { let sum = 0, left = 4;
  for (let i = 0; i < 4; i++) new Worker(__filename).on("message", n => { sum += n; if (!--left) console.log(sum); });
} else parentPort.postMessage(10);
"""
NODE_CLUSTER = """
const cluster = require("cluster"), http = require("http");
if (cluster.isPrimary) { cluster.fork(); cluster.on("listening", (w, a) => http.get({ port: a.port, host: "127.0.0.1" }, r => {
  r.on("data", d => console.log(String(d))); r.on("end", () => w.kill()); }));
} else http.createServer((q, r) => r.end("of a worker")).listen(0, "127.0.0.1");
"""
NODE_WATCH = """
const fs = require("fs"); const w = fs.watch(".", (kind, name) => { console.log(name); w.close(); process.exit(0); });
setTimeout(() => fs.writeFileSync("own.txt", "x"), 50);
"""
PERL_SERVER = """
use IO::Socket::INET; my $s = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or die $!;
if (my $pid = fork) { my $c = $s->accept; print $c "hi\\n"; close $c; waitpid $pid, 0; }
else { my $c = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $s->sockport) or die $!; print scalar <$c>; exit 0; }
"""
PERL_DIST = """
mkdir -p own/lib; cd own; printf 'package Own; sub f { 42 } 1;\\n' > lib/Own.pm
printf 'use ExtUtils::MakeMaker; WriteMakefile(NAME => "Own", VERSION => 1);\\n' > Makefile.PL
perl Makefile.PL INSTALL_BASE=$PWD/out > /dev/null 2>&1; make -s install > /dev/null 2>&1
perl -Iout/lib/perl5 -MOwn -e 'print Own::f()'
"""
GEM = """
mkdir -p own/lib; cd own; echo 'module Own; def self.f; 42; end; end' > lib/own.rb
printf 'Gem::Specification.new { |s| s.name = "own-x"; s.version = "1.0"; s.summary = "x"' > own.gemspec
printf '; s.authors = ["a"]; s.files = ["lib/own.rb"] }' >> own.gemspec
gem build -q own.gemspec > /dev/null 2>&1; gem install -q --local --no-document own-x-1.0.gem > /dev/null
ruby -e 'require "own"; puts Own.f'
"""
PYTHON_PROJECT = """
mkdir -p src/own_x; echo 'def main(): print("from a project")' > src/own_x/__init__.py
cat > pyproject.toml <<'E'
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "own-x"
version = "1.0"
[project.scripts]
own-x = "own_x:main"
E
"""
TESTS = """
printf 'def f():\\n    ">>> f()\\\\n42"\\n    return 42\\n' > a.py
printf 'import unittest\\nclass T(unittest.TestCase):\\n    def test(self): self.assertEqual(1, 1)\\n' > test_b.py
"""
PROCESSES = """
import concurrent.futures as f, multiprocessing as m
if __name__ == "__main__":
    with f.ProcessPoolExecutor(4) as pool: print(sum(pool.map(abs, range(-9, 1))))
    with m.Manager() as manager:
        d = manager.dict(); p = m.Process(target=d.update, args=({"a": 1},)); p.start(); p.join(); print(dict(d))
    from multiprocessing import shared_memory
    s = shared_memory.SharedMemory(create=True, size=1 << 20); s.buf[0] = 7; print(s.buf[0]); s.close(); s.unlink()
"""
MODULES = (
    "python3 -c 'import curses, readline, sqlite3, ssl, lzma, bz2, ctypes, dbm, zoneinfo; "
    "print(ssl.OPENSSL_VERSION.split()[0])'"
)

ROWS = [
    Row(
        "npm, a project with a dependency",
        NPM_PROJECT + "npm start --silent; npm ls --silent | grep -c dep-x",
        "42\\s+1",
        NPM,
        bare=True,
    ),
    Row(
        "npm ci",
        NPM_PROJECT + "rm -r node_modules; npm ci --offline --silent --no-audit; npm run --silent start",
        "42",
        NPM,
        bare=True,
    ),
    Row("npx", NPM_PROJECT + "npx --offline -c 'echo $npm_lifecycle_event from npx'", "npx from npx", NPM, bare=True),
    Row("node's tests", NODE_TEST + "node --test | grep -c '^# pass 1\\|ℹ pass 1'", "1", NODE, bare=True),
    Row("node, threads", f"cat > a.js <<'E'{NODE_WORKERS}E\nnode a.js", "40", NODE, bare=True),
    Row(
        "node, a cluster",
        f"cat > a.js <<'E'{NODE_CLUSTER}E\nnode a.js",
        "of a worker",
        NODE,
        bare=True,
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row("node, a file is watched", f"cat > a.js <<'E'{NODE_WATCH}E\nnode a.js", "(own.txt|a.js)", NODE, bare=True),
    Row(
        "node, programs of its own",
        'node -e \'require("child_process").execFile("echo", ["hi"], (e, o) => console.log(o.trim()))\'',
        "hi",
        NODE,
        bare=True,
    ),
    Row(
        "node, modules and the top's await",
        "echo 'console.log(await Promise.resolve(42))' > a.mjs; node a.mjs",
        "42",
        NODE,
        bare=True,
    ),
    Row(
        "node, WebAssembly and large heaps",
        "node --max-old-space-size=256 -e 'console.log(typeof WebAssembly.compile, process.memoryUsage().rss > 0)'",
        "function true",
        NODE,
        bare=True,
    ),
    Row(
        "Perl, a server",
        f"cat > a.pl <<'E'{PERL_SERVER}E\nperl a.pl",
        "hi",
        PERL,
        bare=True,
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row("Perl, a distribution", PERL_DIST, "42", ("perl", "make"), bare=True),
    Row(
        "Perl, threads and files",
        "perl -MFile::Temp=tempfile -MPOSIX=:sys_wait_h -e 'my ($h, $n) = tempfile(); print $h 1; close $h; print -s $n'",
        "1",
        PERL,
        bare=True,
    ),
    Row(
        "Ruby",
        "ruby -rjson -rsecurerandom -e 'puts JSON.generate(a: [1, 2].sum); SecureRandom.hex'",
        '{"a":3}',
        RUBY,
        bare=True,
    ),
    Row(
        "Ruby, threads and processes",
        "ruby -e 'puts 4.times.map { |i| Thread.new { i } }.sum(&:value); puts `echo hi`; fork { exit 3 }; "
        "Process.wait; puts $?.exitstatus'",
        "6\\s+hi\\s+3",
        RUBY,
        bare=True,
    ),
    Row("gem build and gem install", GEM, "42", ("gem",), differs={"landlock": None}, guide=NO_ROOT),
    Row(
        "PHP",
        'php -r \'echo json_encode(["a" => array_sum([1, 2])]), PHP_EOL, strtoupper("x");\'',
        '{"a":3}\\s+X',
        PHP,
        bare=True,
    ),
    Row(
        "PHP's own server",
        "echo '<?php echo \"from php\";' > index.php; php -S 127.0.0.1:18123 > log 2>&1 & for i in $(seq "
        "100); do curl -sf http://127.0.0.1:18123/ && break; sleep 0.1; done; kill $!",
        "from php",
        ("php", "curl"),
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row("Lua", "lua -e 'print(string.format(\"%d\", 6 * 7), os.time() > 0)'", "42\\s+true", ("lua",), bare=True),
    Row(
        "R",
        "Rscript --vanilla -e 'cat(sum(1:10), mean(c(1, 3)), coef(lm(y ~ x, data.frame(x = 1:3, y = 2 * (1:3))))[[2]])'",
        "55 2 2",
        ("Rscript",),
        bare=True,
    ),
    Row(
        "R, processes",
        "Rscript --vanilla -e 'cat(sum(unlist(parallel::mclapply(1:4, function(i) i^2, mc.cores = 2))))'",
        "30",
        ("Rscript",),
        bare=True,
    ),
    Row(
        "awk, sed, bc and jq",
        "echo '{\"a\": [1, 2, 3]}' | jq -c '.a | map(. * 2)'; echo '2 ^ 64' | bc; seq 3 | awk '{ s += $1 } "
        "END { print s }'; echo abc | sed -E 's/(a)(b)/\\2\\1/'",
        r"\[2,4,6\]\s+18446744073709551616\s+6\s+bac",
        ("jq", "bc"),
        bare=True,
    ),
    Row(
        "Python, processes and shared memory",
        f"cat > a.py <<'E'{PROCESSES}E\npython3 a.py",
        "45\\s+{'a': 1}\\s+7",
        bare=True,
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row("Python's larger modules", MODULES, "OpenSSL", bare=True),
    Row(
        "python -m venv",
        "python3 -m venv own; own/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'; "
        "own/bin/pip --version | cut -c1-3",
        "True\\s+pip",
        bare=True,
    ),
    Row(
        "a virtual environment and a project in it",
        PYTHON_PROJECT + "python3 -m venv --system-site-packages own; own/bin/pip install -q --no-build-isolation --no-index "
        "-e . 2>said || cat said; own/bin/own-x",
        "from a project|.*setuptools.*",
        bare=False,
    ),
    Row(
        "a server of Python's, asked by curl",
        "python3 -m http.server -b 127.0.0.1 18124 2>/dev/null & for i in $(seq 100); do curl -sf "
        "http://127.0.0.1:18124/ | grep -o 'Directory listing' | head -1 | grep . && break; sleep 0.1; done; "
        "kill $!",
        "Directory listing",
        ("curl",),
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row(
        "unittest and doctest",
        TESTS + "python3 -m doctest -v a.py | grep -m 1 -o '1 passed'; python3 -m unittest -q 2>&1 | tail -1",
        "1 passed\\s+OK",
        bare=True,
    ),
    Row(
        "a profile and a trace of Python's",
        "python3 -m cProfile -s cumtime -m this | grep -c 'function calls'; python3 -X "
        "tracemalloc=3 -c 'import tracemalloc; print(tracemalloc.is_tracing())'",
        "1\\s+True",
        bare=True,
    ),
]

test_a_command = table(ROWS, always=10)
