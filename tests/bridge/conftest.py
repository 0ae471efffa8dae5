"""Programs of their own: signals, forks and exits are tried in real processes, by the lines that they print."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

PRELUDE = """
import asyncio, contextlib, os, signal, sys, threading, time
from aviato.bridge.loop import loop_thread, register_exit, running_loop_thread
from aviato.bridge.operation import OperationRef
from aviato.exceptions import *
import warnings
# Python 3.12 and later warn whoever forks beside threads; that it works all the same is what is tried here.
warnings.filterwarnings("ignore", "This process", DeprecationWarning)

def say(*what):
    os.write(1, (" ".join(map(str, what)) + "\\n").encode())

def start(coroutine, **options):
    return OperationRef.start(coroutine, name="work", **options)
"""


class Program:
    """A Python program under way."""

    def __init__(self, code, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        )
        self._limit = threading.Timer(20, self.process.kill)
        self._limit.start()

    def line(self):
        """The next line, and nothing beyond it: what a buffer held, `communicate` would not find."""
        read = b""
        while not read.endswith(b"\n") and (piece := os.read(self.process.stdout.fileno(), 1)):
            read += piece
        return read.decode().rstrip("\n")

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def end(self):
        """Wait for it; returns (lines not read yet, what it wrote on stderr, returncode)."""
        out, err = self.process.communicate()
        self._limit.cancel()
        return out.splitlines(), err, self.process.returncode


@pytest.fixture
def program():
    """Start a program; at the end none is left."""
    programs = []

    def start(code, **environment):
        programs.append(Program(code, **environment))
        return programs[-1]

    yield start
    for started in programs:
        started.process.kill()
        started.end()


@pytest.fixture
def lines(program):
    """Run a program to its end; it must succeed and write nothing on stderr. Returns its lines."""

    def run(code, **environment):
        out, err, returncode = program(code, **environment).end()
        assert (err, returncode) == ("", 0)
        return out

    return run
