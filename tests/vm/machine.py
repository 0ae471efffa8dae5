"""Starts the virtual machine, and waits for its end."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.vm import kernel

HERE = Path(__file__).parent
QEMU = "qemu-system-x86_64"
SCRATCH_BYTES = 8 << 30
PATH = "/usr/local/bin:/usr/bin:/bin"


def missing() -> str | None:
    """What is not there, in words."""
    if shutil.which(QEMU) is None:
        return "no qemu: apt-get install --no-install-recommends qemu-system-x86"
    if shutil.which("busybox") is None:
        return "no busybox: apt-get install busybox-static"
    try:
        kernel.image()
    except FileNotFoundError as error:
        return str(error)
    return None


def run(
    command: list[str],
    *,
    directory: str | Path,
    environment: dict[str, str] | None = None,
    user: str | None = None,
    timeout_seconds: float = 600,
    processors: int = 2,
    memory_mib: int = 3072,
    kernel_arguments: str = "",
    systemd: bool = False,
) -> int:
    """Run a command in a new virtual machine; what it writes comes on stdout.

    Args:
        command: as there is no shell around it.
        directory: that it starts in.
        environment: all of it, but for PATH and HOME.
        user: who runs it, in a control group that is the user's own; by default root.
        timeout_seconds: until the machine is switched off.
        processors: of the machine.
        memory_mib: of the machine.
        kernel_arguments: more of them.
        systemd: have it start the machine. The command is then a service, or a scope of the user's that was delegated.

    Returns:
        What the command returned; 124 if it was too late, 125 if the machine did not get that far.
    """
    with tempfile.TemporaryDirectory(prefix="aviato-vm-") as name:
        job = Path(name)
        shutil.copy(HERE / "inside.sh", job)
        (job / "settings").write_text(f"DELEGATED={shlex.quote(user or '')}\n")
        (job / "command").write_text(_script(command, str(directory), environment or {}, user, systemd))
        if systemd:
            shutil.copy(HERE / "command.service", job)
        busybox = Path(shutil.which("busybox") or "")
        (job / "initrd").write_bytes(kernel.first_file_system((HERE / "init.sh").read_bytes(), busybox))
        with (job / "scratch").open("wb") as file:
            file.truncate(SCRATCH_BYTES)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-F", str(job / "scratch")], check=True, timeout=250)
        argv = [QEMU, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"]
        argv += [*_processor(), "-smp", str(processors), "-m", str(memory_mib)]
        argv += ["-kernel", str(kernel.image()), "-initrd", str(job / "initrd")]
        argv += ["-append", f"console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off no5lvl {kernel_arguments}"]
        argv += ["-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"]
        argv += ["-virtfs", f"local,path={job},mount_tag=job,security_model=none"]
        argv += ["-drive", f"file={job / 'scratch'},format=raw,if=virtio,cache=unsafe"]
        sys.stdout.flush()
        machine = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        try:
            machine.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            machine.kill()
            machine.wait()
        status = job / "status"
        return int(status.read_text()) if status.exists() else 125


def fast() -> bool:
    """Whether the processor runs it. There is a /dev/kvm without that, which is for kernels that know it."""
    with open("/proc/cpuinfo") as file:
        flags = next((line.split() for line in file if line.startswith("flags")), [])
    return os.access("/dev/kvm", os.R_OK | os.W_OK) and bool({"vmx", "svm"}.intersection(flags))


def _processor() -> list[str]:
    return ["-accel", "kvm", "-cpu", "host"] if fast() else ["-accel", "tcg", "-cpu", "max"]


def _script(command: list[str], directory: str, environment: dict[str, str], user: str | None, systemd: bool) -> str:
    home = "/tmp/home"
    variables = [f"{name}={value}" for name, value in {"PATH": PATH, "HOME": home, **environment}.items()]
    argv = ["env", "-i", *variables, *command]
    # The rest is an overlay already, on which sandboxes could have no layer of their own.
    lines = [f"install -d -o {shlex.quote(user or 'root')} {home}", f"cd {shlex.quote(directory)}"]
    if user and systemd:
        runtime = f"/run/user/{pwd.getpwnam(user).pw_uid}"
        lines += [f"loginctl enable-linger {user}", f"until [ -S {runtime}/bus ]; do sleep 0.2; done"]
        argv = ["systemd-run", "--user", "--scope", "--quiet", "-p", "Delegate=yes", *argv]
        argv = ["env", f"XDG_RUNTIME_DIR={runtime}", f"DBUS_SESSION_BUS_ADDRESS=unix:path={runtime}/bus", *argv]
    if user:
        argv = ["runuser", "-u", user, "--", *argv]
    return "\n".join([*lines, f"exec {shlex.join(argv)}", ""])
