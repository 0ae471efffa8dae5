"""What ordinary programs change of themselves, their threads and their children: limits, priorities, processors."""

from __future__ import annotations

PYTHON = {
    "limits of itself, by 0": "resource.prlimit(0, resource.RLIMIT_CPU, (60, 60)); resource.setrlimit(4, (0, 0))",
    "limits of itself": "resource.prlimit(os.getpid(), resource.RLIMIT_CPU, (60, 60))",
    "limits of its thread": "resource.prlimit(thread(), resource.RLIMIT_CPU, (60, 60))",
    "limits of its child": "resource.prlimit(child.pid, resource.RLIMIT_CPU, (50, 50))",
    "a look at limits": "assert resource.prlimit(child.pid, resource.RLIMIT_CPU) == resource.getrlimit(resource.RLIMIT_CPU)",
    "niceness": "os.nice(1); os.setpriority(os.PRIO_PROCESS, 0, 15)",
    "priority of itself": "os.setpriority(os.PRIO_PROCESS, os.getpid(), 15); assert os.getpriority(os.PRIO_PROCESS, 0) == 15",
    "priority of its thread": "os.setpriority(os.PRIO_PROCESS, thread(), 15)",
    "priority of its child": "os.setpriority(os.PRIO_PROCESS, child.pid, 15)",
    "processors of itself, by 0": "os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "processors of itself": "os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))",
    "processors of its thread": "os.sched_setaffinity(thread(), os.sched_getaffinity(0))",
    "processors of its child": "os.sched_setaffinity(child.pid, os.sched_getaffinity(child.pid))",
    "scheduling of itself, by 0": "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    "scheduling of itself": "os.sched_setscheduler(os.getpid(), os.SCHED_BATCH, os.sched_param(0))",
    "parameters of itself": "os.sched_setparam(os.getpid(), os.sched_param(0))",
    "scheduling of its thread": "os.sched_setscheduler(thread(), os.SCHED_BATCH, os.sched_param(0))",
    "threads that set their own": """
def work():
    own = threading.get_native_id()
    os.sched_setaffinity(own, os.sched_getaffinity(own))
    os.setpriority(os.PRIO_PROCESS, own, 12)
    done.append(own)
done = []
threads = [threading.Thread(target=work) for _ in range(16)]
[each.start() for each in threads], [each.join() for each in threads]
assert len(done) == 16
""",
    "a number that nobody has": """
try: resource.prlimit(4000000, resource.RLIMIT_CPU, (1, 1))
except ProcessLookupError: pass
""",
    "handlers of signals meanwhile": """
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for _ in range(200): os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))
signal.setitimer(signal.ITIMER_REAL, 0)
""",
}
PYTHON_PRELUDE = """
import os, resource, signal, subprocess, threading
child = subprocess.Popen(["sleep", "60"])
ends = threading.Event()
def thread():
    started = threading.Thread(target=ends.wait)
    started.start()
    return started.native_id
try:
"""


def program(source: str) -> str:
    """A program that says nothing if it may."""
    return f"{PYTHON_PRELUDE}    exec({source!r})\nfinally:\n    ends.set()\n    child.kill()\n    child.wait()\n"


SHELL = {
    "nice": "test $(nice -n 5 nice) -gt $(nice)",
    "renice": "renice -n 15 $$ && renice -n 16 -p $$",
    "taskset": "taskset -p $(taskset -p $$ | sed 's/.* //') $$ && taskset $(taskset -p $$ | sed 's/.* //') true",
    "ionice": "ionice -c 3 true && ionice -c 3 -p $$",
    "chrt": "chrt -b 0 true && chrt -b -p 0 $$ && chrt -i 0 true",
    "prlimit": "prlimit --nofile=100:100 true && prlimit --pid $$ --core=0:0 && prlimit --pid $$",
    "bash": "ulimit -n 100; ulimit -t 100; (ulimit -u 100; ulimit -v 100000000; true)",
}

POSIX_THREADS = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>
#define TRY(call) do { int number = (call); if (number) { printf("%s: %d\n", #call, number); return 1; } } while (0)
static pthread_barrier_t barrier;
static void *wait_twice(void *_) { pthread_barrier_wait(&barrier); pthread_barrier_wait(&barrier); return _; }
int main(void)
{
    cpu_set_t processors;
    pthread_t thread;
    pthread_attr_t attributes;
    struct sched_param zero = {0};
    pthread_barrier_init(&barrier, NULL, 2);
    TRY(sched_getaffinity(0, sizeof processors, &processors));
    TRY(pthread_attr_init(&attributes));
    TRY(pthread_attr_setaffinity_np(&attributes, sizeof processors, &processors));
    TRY(pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED));
    TRY(pthread_create(&thread, &attributes, wait_twice, NULL));
    pthread_barrier_wait(&barrier);
    TRY(pthread_setaffinity_np(pthread_self(), sizeof processors, &processors));
    TRY(pthread_setaffinity_np(thread, sizeof processors, &processors));
    TRY(pthread_setschedparam(pthread_self(), SCHED_BATCH, &zero));
    TRY(pthread_setschedparam(thread, SCHED_BATCH, &zero));
    TRY(pthread_setschedprio(thread, 0));
    TRY(sched_setscheduler(getpid(), SCHED_OTHER, &zero));
    pthread_barrier_wait(&barrier);
    TRY(pthread_join(thread, NULL));
    return 0;
}
"""
OPENMP = r"""
#include <omp.h>
#include <stdio.h>
int main(void)
{
    int sum = 0;
    #pragma omp parallel for reduction(+:sum) num_threads(4)
    for (int i = 0; i < 1000; i++)
        sum += i;
    printf("%d of %d, bound: %d\n", sum, omp_get_max_threads(), omp_get_proc_bind());
    return sum != 499500;
}
"""
C = {
    "threads of POSIX": (POSIX_THREADS, "gcc -pthread program.c -o program && ./program"),
    "OpenMP": (OPENMP, "gcc -fopenmp program.c -o program && OMP_PROC_BIND=true ./program && OMP_PLACES=cores ./program"),
}
