"""Docker: the SDK on the local engine; a container that sleeps, and `exec_run` in it."""

import io
import os
import tarfile

import docker

client = docker.from_env()
IMAGE = os.environ.get("DOCKER_BENCHMARK_IMAGE", "python:3.11-slim-bookworm")
PYTHON = "python3"


def create():
    options = {"network_mode": "none", "init": True, "detach": True, "auto_remove": True}
    return client.containers.run(IMAGE, ["sleep", "infinity"], **options)


def run(container, argv):
    return container.exec_run(argv)


def write(container, path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(path, "payload")
    container.put_archive("/tmp", archive.getvalue())


def read(container):
    chunks, _ = container.get_archive("/tmp/payload")
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
        return tar.extractfile("payload").read()


def stop(container):
    container.kill()
