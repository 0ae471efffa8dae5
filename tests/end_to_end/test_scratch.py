"""`FROM scratch`: an image that begins with nothing, as a sandbox and as what goes out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from aviato import AsyncClient, Image, SandboxImageError, Session

pytestmark = [pytest.mark.usefixtures("served"), pytest.mark.anyio]
MOUNTED = {".aviato", ".aviato/own", "dev", "etc", "proc", "root", "run", "sys", "tmp", "workspace"}
"""Where a sandbox has what is its own: a build leaves empty directories there."""
BUSYBOX = Path("/bin/busybox")
TEXT = """FROM scratch AS none
FROM none
ENV A=b
COPY busybox /bin/
COPY --chown=5:6 f /d/
WORKDIR /w
ENTRYPOINT ["/bin/busybox"]
CMD ["ls"]
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A directory with a static program and a Dockerfile of it."""
    if not BUSYBOX.exists():
        pytest.skip("no /bin/busybox: apt-get install busybox-static")
    shutil.copy(BUSYBOX, tmp_path / "busybox")
    (tmp_path / "f").write_text("f\n")
    (tmp_path / "Dockerfile").write_text(TEXT)
    return tmp_path / "Dockerfile"


def test_a_sandbox_of_one_program(session: Session, image: Path) -> None:
    built = Image.from_dockerfile(image)
    info = built.build().result()
    assert (info.entrypoint, info.command, info.environment) == (("/bin/busybox",), ("ls",), {"A": "b"})
    with session.sandbox(container_image=built) as sandbox:
        shown = sandbox.exec(["busybox", "sh", "-c", "echo $A; pwd; ls /bin /d; cat /d/f; ls -ld / | cut -c1-10"]).result()
        assert shown.stdout == "b\n/w\n/bin:\nbusybox\n\n/d:\nf\nf\ndrwxr-xr-x\n"
        assert sandbox.exec(["sh"]).result().returncode == 127


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("RUN echo x", "Dockerfile:9: RUN echo x: it ended with returncode 127: /bin/sh: No such file or directory"),
        ('RUN ["/none"]', "Dockerfile:9: RUN .*/none: No such file or directory"),
        ("COPY --chown=who f /d/", "Dockerfile:9: COPY .*has no /etc/passwd: give numbers"),
        ("COPY --from=scratch f /d/", "Dockerfile:9: COPY .*/f"),
        ('RUN ["busybox", "touch", "/x"]\nSHELL ["/bin/busybox", "sh", "-c"]\nRUN echo y >/y', None),
    ],
)
def test_what_runs_in_it(image: Path, run: str, message: str | None) -> None:
    image.write_text(f"{TEXT}{run}\n")
    if message is None:
        assert Image.from_dockerfile(image).build().result().status == "here"
        return
    with pytest.raises(SandboxImageError, match=message):
        Image.from_dockerfile(image).build().result()


async def test_it_goes_out(image: Path) -> None:
    for program in ("umoci", "skopeo"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program}: apt-get install {program}")
    await Image.from_dockerfile(image).build(name="scratches/one:1")
    out, unpacked = image.parent / "out", image.parent / "unpacked"
    async with AsyncClient() as client:
        await client.export_image("scratches/one:1", out)
        assert (await client.inspect_image("scratch")).size_bytes == 0
    tag = json.loads((out / "index.json").read_text())["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"]
    subprocess.run(["skopeo", "inspect", f"oci:{out}:{tag}"], check=True, capture_output=True)
    rootless = [] if os.geteuid() == 0 else ["--rootless"]
    subprocess.run(["umoci", "unpack", *rootless, "--image", f"{out}:{tag}", unpacked], check=True, capture_output=True)
    found = {str(path.relative_to(unpacked / "rootfs")) for path in (unpacked / "rootfs").rglob("*")}
    assert {"bin", "bin/busybox", "d", "d/f", "w"} == found - {"etc/hosts", "etc/hostname", *MOUNTED}
    assert not any(any((unpacked / "rootfs" / name).iterdir()) for name in MOUNTED - {".aviato", "etc"} if name in found)


def test_nothing_at_all(session: Session, image: Path) -> None:
    image.write_text("FROM scratch\n")
    assert Image.from_dockerfile(image).build().result().layers == 1
    with session.sandbox(container_image="scratch") as sandbox:
        sandbox.write_file("/f", b"f").result()
        assert sandbox.read_file("/f").result() == b"f"
    with pytest.raises(SandboxImageError, match="no name for an image"):
        Image.from_("host").run("true").build(name="scratch").result()
