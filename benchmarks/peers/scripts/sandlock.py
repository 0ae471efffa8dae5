"""sandlock: its Python SDK. A `Sandbox` is a policy that runs commands; files inside are the machine's, by path."""

from sandlock import Sandbox, pull_image


def create(image=None):
    if image is not None:
        return Sandbox(image=pull_image(image))
    return Sandbox(fs_readable=["/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev"])


def run(sandbox, argv):
    result = sandbox.run(argv)
    return result.exit_code, result.stdout


def stop(sandbox):
    pass
