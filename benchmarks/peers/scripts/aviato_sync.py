"""aviato from blocking code: a session on a server that runs."""

from pathlib import Path

import aviato

session = aviato.Session()


def create(image=None):
    return session.sandbox(container_image=image)


def snapshot(sandbox):
    return sandbox.snapshot(expires_after_seconds=600).result().snapshot_id


def fork(sandbox, count):
    return sandbox.fork(count)


def run(sandbox, argv):
    result = sandbox.exec(argv, max_output_bytes=1 << 30).result()
    return result.returncode, result.stdout_bytes


def write(sandbox, path):
    sandbox.write_file("payload", Path(path).read_bytes()).result()


def read(sandbox):
    return sandbox.read_file("payload").result()


def stop(sandbox):
    sandbox.stop().result()


def close():
    session.close().result()
