"""The kernel of the virtual machine: Debian's package, unpacked into a folder; and its first file system, with modules."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

PACKAGE = "linux-image-amd64"
WANTED = ("virtio_pci", "virtio_blk", "9pnet_virtio", "9p", "overlay", "ext4", "crc32c_generic")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aviato-tests" / "kernel"


def fetch() -> Path:
    """Have the package's newest version unpacked; nothing is installed.

    Raises:
        OSError, subprocess.CalledProcessError: it cannot be had.
    """
    shown = subprocess.run(["apt-cache", "depends", PACKAGE], check=True, capture_output=True, text=True, timeout=250)
    found = re.search(r"Depends: (linux-image-\S+)", shown.stdout)
    if found is None:
        raise FileNotFoundError(f"apt does not know {PACKAGE}")
    CACHE.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", "-q", found[1]], check=True, cwd=CACHE, capture_output=True, timeout=300)
    for package in CACHE.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package.name, "."], check=True, cwd=CACHE, timeout=120)
        package.unlink()
    return image()


def image() -> Path:
    """The kernel that was fetched.

    Raises:
        FileNotFoundError: none was.
    """
    images = sorted(CACHE.glob("boot/vmlinuz-*"))
    if not images:
        raise FileNotFoundError("no kernel: python -m tests.vm --fetch")
    return images[-1]


def first_file_system(init: bytes, busybox: Path) -> bytes:
    """An archive that the kernel unpacks and starts `/init` of."""
    version = image().name.removeprefix("vmlinuz-")
    files = {path.stem: path for path in (CACHE / "lib/modules" / version).rglob("*.ko")}
    archive = _Archive()
    for name in ("dev", "proc", "sys", "lower", "scratch", "root", "modules"):
        archive.add(name, 0o40755, b"")
    archive.add("busybox", 0o100755, busybox.read_bytes())
    archive.add("init", 0o100755, init)
    for number, path in enumerate(_in_order(files)):
        archive.add(f"modules/{number:02}-{path.name}", 0o100644, path.read_bytes())
    return archive.close()


def _in_order(files: dict[str, Path]) -> list[Path]:
    """The wanted modules, each after those that it depends on."""
    done: list[Path] = []

    def need(name: str) -> None:
        path = files.get(name) or files.get(name.replace("_", "-"))
        if path is None or path in done:
            return  # Built in.
        depends = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes())
        for other in depends[1].decode().split(",") if depends else ():
            if other:
                need(other)
        done.append(path)

    for name in WANTED:
        need(name)
    return done


class _Archive:
    """In the kernel's format, `newc` of cpio."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, name: str, mode: int, content: bytes) -> None:
        encoded = name.encode() + b"\0"
        fields = (len(self._parts) + 1, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
        self._parts += [_padded(head), _padded(content)]

    def close(self) -> bytes:
        self.add("TRAILER!!!", 0, b"")
        return b"".join(self._parts)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
