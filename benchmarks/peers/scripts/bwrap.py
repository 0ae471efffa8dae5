"""bwrap: all namespaces, the machine's files read only. Each command is a sandbox, and nothing is kept."""

import os
import subprocess

BWRAP = [os.environ["BENCHMARK_BWRAP"], "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev"]


def create():
    return None


def run(nothing, argv):
    done = subprocess.run([*BWRAP, *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    return done.returncode, done.stdout


def stop(nothing):
    pass
