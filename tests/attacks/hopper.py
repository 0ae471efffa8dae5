"""A process that has gone before anybody can look at it: whatever runs of it is the child of one that has just ended."""

from __future__ import annotations

import shutil
from typing import Any

HOPPER = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#define PLACES 512
#define SHARED (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND)
static char stacks[PLACES][16384] __attribute__((aligned(16)));
static long count, file, end;
static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec;
}
static int hop(void *place) {
    long next = ((long)place + 1) % PLACES;
    if (++count % 256 == 0) {
        char text[32];
        pwrite(file, text, snprintf(text, sizeof text, "%20ld", count), 0);
        if (now() > end) syscall(SYS_exit_group, 0);
    }
    /* It shares all that it has with its child, which makes it quick; there may be too many dead ones for the moment. */
    while (clone(hop, stacks[next] + sizeof stacks[next], SHARED | SIGCHLD, (void *)next) < 0);
    syscall(SYS_exit_group, 0);
    return 0;
}
int main(void) {
    file = open("/tmp/lives", O_RDWR | O_CREAT, 0600);
    end = now() + 20;
    if (fork()) return 0;
    setsid();
    for (int fd = 0; fd < 3; fd++) close(fd);
    hop(0);
}
"""


def without_gcc(backend: Any) -> str | None:
    """Why it cannot be made here."""
    return None if shutil.which("gcc") else "the machine has no gcc"


async def compile_hopper(box: Any) -> None:
    """As `/tmp/hopper`: it writes to `/tmp/lives` while it lives, 20 seconds at most. Its first process ends at once."""
    result = await box.run("gcc", "-w", "-O2", "-x", "c", "-", "-o", "/tmp/hopper", stdin=HOPPER.encode())
    assert result.returncode == 0, result.stderr
