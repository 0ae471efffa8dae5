"""podman: its program; a container that sleeps, and `podman exec` in it."""

import shutil
import subprocess

PODMAN = ["podman", *(["--runtime", "runc"] if shutil.which("runc") else [])]
CREATE = ["run", "-d", "--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]


def said(*words):
    return subprocess.run([*PODMAN, *words], stdin=-3, stdout=-1, check=True, text=True).stdout.strip()


def load(layout, archive):
    said("load", "-q", "-i", archive)
    return "localhost/aviato-bench:1"


def create(image):
    return said(*CREATE, image, "/bin/sleep", "1000000")


def run(container, argv):
    done = subprocess.run([*PODMAN, "exec", container, *argv], stdin=-3, stdout=-1)
    return done.returncode, done.stdout


def snapshot(container):
    return said("commit", "-q", container)


def drop(image):
    said("rmi", image)


def stop(container):
    said("rm", "-f", "-t", "0", container)
