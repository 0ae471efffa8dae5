"""SWE-ReX: a local deployment; `execute` is its way to run a command without a shell session, and its fastest."""

import asyncio
import threading
from pathlib import Path

from swerex.deployment.local import LocalDeployment
from swerex.runtime.abstract import Command, ReadFileRequest, WriteFileRequest

here = threading.local()


def wait(coroutine):  # its runtime blocks the loop while a command runs: one loop for each thread lets many run at once
    if not hasattr(here, "runner"):
        here.runner = asyncio.Runner()
    return here.runner.run(coroutine)


def create():
    deployment = LocalDeployment()
    wait(deployment.start())
    return deployment


def run(deployment, argv):
    response = wait(deployment.runtime.execute(Command(command=argv)))
    return response.exit_code, response.stdout


def write(deployment, path):
    wait(deployment.runtime.write_file(WriteFileRequest(path="/tmp/swe-rex-payload", content=Path(path).read_text())))


def read(deployment):
    return wait(deployment.runtime.read_file(ReadFileRequest(path="/tmp/swe-rex-payload"))).content.encode()


def stop(deployment):
    wait(deployment.stop())
