"""kern: the program that `pip install kern-sandbox` brings; a box that sleeps, and `kern exec` in it."""

import subprocess
import sys
import uuid
from pathlib import Path

KERN = Path(sys.executable).with_name("kern")
QUIET = {"stdin": -3, "stdout": -3, "check": True}


def load(layout, archive):
    subprocess.run([KERN, "load", "-i", archive], **QUIET)
    return "localhost/aviato-bench:1"


def create(image):
    name = f"benchmark-{uuid.uuid4()}"
    subprocess.run([KERN, "box", name, "--image", image, "--pull", "never", "-d", "--", "/bin/sleep", "1000000"], **QUIET)
    return name


def run(name, argv):
    done = subprocess.run([KERN, "exec", name, "--", *argv], stdin=-3, stdout=-1)
    return done.returncode, done.stdout


def snapshot(name):
    image = f"localhost/{uuid.uuid4()}:1"
    subprocess.run([KERN, "commit", name, image], **QUIET)
    return image


def drop(image):
    subprocess.run([KERN, "rmi", image], **QUIET)


def stop(name):
    subprocess.run([KERN, "stop", name], **QUIET)
