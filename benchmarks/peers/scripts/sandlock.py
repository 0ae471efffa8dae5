"""sandlock: its Python SDK. A `Sandbox` is a policy that runs commands; files inside are the machine's, by path."""

from sandlock import Sandbox


def create():
    return Sandbox(fs_readable=["/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev"])


def run(sandbox, argv):
    result = sandbox.run(argv)
    return result.exit_code, result.stdout


def stop(sandbox):
    pass
