"""The benchmarks: each is a module with `SIZES` and `measure`, run by `aviato bench` and by the scripts in `benchmarks/`.

Nothing else imports this package. What it needs beyond aviato itself is the extra `bench`, and each part says what it does
without.
"""

BENCHMARKS = {
    "latency": "a sandbox, a command, an import, the first result of all",
    "throughput": "a batch: a fresh sandbox each, a program, its output",
    "streams": "stdout, lines, waiting for many commands",
    "files": "files and trees in and out",
}
"""Name → what it measures. The benchmark `x` is the module `aviato.bench.x`."""
