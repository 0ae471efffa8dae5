"""What a user asks of a server, measured: each benchmark is a module with `SIZES` and `measure`, run by `aviato bench`.

Nothing else imports this package. What it needs beyond aviato itself is the extra `bench`, and each part says what it does
without.
"""

BENCHMARKS = {
    "memory": "what 1,000 live sandboxes hold",
    "latency": "a sandbox, a command, an import, the first result of all",
    "episodes": "a sandbox and its first operation, of every kind, and a command beside a process",
    "throughput": "a batch: a fresh sandbox each, a program, its output",
    "concurrency": "1 to 1,000 sandboxes at once, from threads, a loop, several processes",
    "scaling": "what one more sandbox costs as there are more of them",
    "streams": "stdout, lines, waiting for many commands",
    "files": "files and trees in and out",
}
"""Name → what it measures. The benchmark `x` is the module `aviato.bench.x`. They run in this order: memory is first, since a
server that has done the work of others holds more."""
