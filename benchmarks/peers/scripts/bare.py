"""No sandbox: a subprocess, and files in a directory."""

import os
import shutil
import subprocess
import tempfile


def create():
    return tempfile.mkdtemp(prefix="bare-")


def run(directory, argv):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=directory)
    return done.returncode, done.stdout


def write(directory, path):
    shutil.copyfile(path, os.path.join(directory, "payload"))


def read(directory):
    with open(os.path.join(directory, "payload"), "rb") as file:
        return file.read()


def stop(directory):
    shutil.rmtree(directory)
