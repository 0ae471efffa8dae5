"""Dockerfiles that are built: what each instruction leaves, what is kept, and what goes wrong."""

from __future__ import annotations

import io
import logging
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
import aviato.building.build as building
from aviato import AviatoValidationError, Image, SandboxImageError, Session
from aviato.building.build import BUILDING, CACHED
from tests.images.programs import tools
from tests.images.whole_images import ARCHITECTURE, make_layout, tar_of

pytestmark = pytest.mark.usefixtures("served")
TREE = "find /out -type f -printf '%p %m ' -exec cat {} ';' -o -type l -printf '%p -> %l\\n'"
Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def _told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="aviato")


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """Files to copy."""
    top = tmp_path / "context"
    (top / "dir" / "sub").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "dir/x", "dir/sub/y", "dir/.z", "with space", "br[0].md"):
        (top / name).write_text(f"{name}\n")
        (top / name).chmod(0o644)
    (top / "run.sh").write_text("run\n")
    (top / "run.sh").chmod(0o755)
    (top / "link").symlink_to("a.txt")
    (top / "dir" / "away").symlink_to("/etc/none")
    (top / "dirlink").symlink_to("dir")
    return top


@pytest.fixture
def write(context: Path) -> Write:
    """Put a Dockerfile there."""

    def put(text: str, **files: str) -> Path:
        for name, content in files.items():
            (context / name).write_text(content)
        path = context.parent / "Dockerfile"
        path.write_text(text)
        return path

    return put


def said(session: Session, image: Image, command: str) -> str:
    with session.sandbox(container_image=image) as sandbox:
        return str(sandbox.exec(["sh", "-c", command], check=True).result().stdout)


def lines(caplog: pytest.LogCaptureFixture, begin: str) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    return [one.rpartition(": ")[2] for one in found if one.startswith(begin)]


A, B = "a.txt 644 a.txt", "b.txt 644 b.txt"
DIR = ["x 644 dir/x", "sub/y 644 dir/sub/y", ".z 644 dir/.z", "away -> /etc/none"]
COPIES = {
    "a file into a directory": ("COPY a.txt /out/", [A]),
    "a file by another name": ("COPY a.txt /out/new", ["new 644 a.txt"]),
    "a file into a directory that is there": ("RUN mkdir -p /out/e\nCOPY a.txt /out/e", ["e/a.txt 644 a.txt"]),
    "a file in place of another": ("COPY a.txt /out/n\nCOPY b.txt /out/n", ["n 644 b.txt"]),
    "several": ("COPY a.txt b.txt /out/", [A, B]),
    "several into a directory that is there": ("WORKDIR /out\nCOPY a.txt b.txt .", [A, B]),
    "a directory's content": ("COPY dir /out", DIR),
    "a directory's content, with slashes": ("COPY ./dir/ /out/", DIR),
    "a directory's content and a file": ("COPY dir a.txt /out/", [*DIR, A]),
    "a directory over another": ("RUN mkdir /out && echo k >/out/k\nCOPY dir /out", [*DIR, "k 644 k"]),
    "wild": ("COPY *.txt /out/", [A, B]),
    "wild, of directories": ("COPY di? /out/", DIR),
    "wild, within": ("COPY d*/s[a-u]b/? /out/", ["y 644 dir/sub/y"]),
    "wild, of none": ("COPY none* a.txt /out/", [A]),
    "not wild": ("COPY br[[]0].md /out/", ["br[0].md 644 br[0].md"]),
    "blanks": ('COPY ["with space", "/out/"]', ["with space 644 with space"]),
    "blanks in quotes": ('COPY "with space" "/out/a b"', ["a b 644 with space"]),
    "a link": ("COPY link /out/", ["link 644 a.txt"]),
    "a link to a directory": ("COPY dirlink /out/", DIR),
    "from above": ("COPY ../../a.txt /b.txt /out/", [A, B]),
    "to where commands start": ("WORKDIR /out/w\nCOPY a.txt .\nCOPY b.txt ../c", [f"w/{A}", "c 644 b.txt"]),
    "below where commands start": ("WORKDIR /out/w\nCOPY b.txt r/", [f"w/r/{B}"]),
    "without a directory": ("COPY a.txt out/", [A]),
    "modes": ("COPY run.sh /out/\nCOPY --chmod=0600 run.sh /out/s", ["run.sh 755 run", "s 600 run"]),
    "variables": ('ARG N=a\nENV D=/out\nCOPY $N.txt "${D}/${N:+n}"', ["n 644 a.txt"]),
    "texts": ("ENV V=v\nCOPY <<A <<'B' /out/\n$V\\$V\nA\n$V\nB", ["A 644 v$V", "B 644 $V"]),
    "a text by its name": ("COPY <<EOF /out/f\nt\nEOF", ["f 644 t"]),
    "ADD of files": ("ADD a.txt dir /out/", [A, *DIR]),
    "through a link": ("RUN mkdir -p /out/d && ln -s d /out/l\nCOPY a.txt /out/l/", [f"d/{A}", "l -> d"]),
    "to a link": ("RUN mkdir -p /out/d && ln -s d /out/l\nCOPY b.txt /out/l", [f"d/{B}", "l -> d"]),
}  # fmt: skip


def test_copies(session: Session, context: Path, write: Write) -> None:
    # One after the other in one file: each build of its own would take several sandboxes more.
    texts = [text.replace("out", f"out{number}") for number, (text, _) in enumerate(COPIES.values())]
    image = Image.from_dockerfile(write("\nWORKDIR /\n".join(["FROM host", *texts])), context=context)
    found = said(session, image, TREE.replace("/out", "/out*")).splitlines()
    for number, (name, (_, expected)) in enumerate(COPIES.items()):
        top = f"/out{number}/"
        assert sorted(one.removeprefix(top) for one in found if one.startswith(top)) == sorted(expected), name


@pytest.mark.parametrize("text", ["COPY a.txt /out/", "ADD a.txt /out/", "COPY di? a.txt /out/"])
def test_files_that_change_while_they_are_copied(
    session: Session, context: Path, write: Write, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    image = Image.from_dockerfile(write(f"FROM host\nRUN echo {context} >/srv/which\n{text}\n"), context=context)
    make = building._Builder._make
    (context / "a.txt").write_text("planned")

    async def changed(self: Any, part: Any, *arguments: Any) -> None:
        # What the steps are called is known by now.
        (context / "a.txt").write_text("changed")
        await make(self, part, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(building._Builder, "_make", changed)
        with pytest.raises(SandboxImageError, match=f"Dockerfile:3: {text[:3]}.*was changed while it was built") as caught:
            image.build().result()
    assert caught.value.reason == "build_failed"
    (context / "a.txt").write_text("planned")
    assert said(session, image, "cat /out/a.txt") == "planned"


def test_what_programs_expect_in_run(session: Session, context: Path, write: Write) -> None:
    text = """
FROM host
RUN mkdir -p /var/run/sshd && install -d -m 2775 -o daemon -g daemon /run/db && ln -s /run/db /run/link
COPY a.txt /run/deep/er
COPY a.txt /var/run/
"""
    image = Image.from_dockerfile(write(text), context=context)
    look = "cd /run; find . -mindepth 1 -printf '%p %y %m %u\\n' | sort; cat deep/er a.txt; touch db/x"
    owner = "daemon" if "65535" in session.sandbox().exec(["cat", "/proc/self/uid_map"]).result().stdout else "root"
    expected = ["./a.txt f 644 root", f"./db d 2775 {owner}", "./deep d 755 root", "./deep/er f 644 root", "./link l 777 root"]
    content = (context / "a.txt").read_text()
    assert said(session, image, look) == "\n".join([*expected, "./sshd d 755 root", content + content])
    assert said(session, Image.from_("host").copy(context / "a.txt", "/run/a"), "cat /run/a") == content


def test_owners(session: Session, context: Path, write: Write) -> None:
    if "65535" not in session.sandbox().exec(["cat", "/proc/self/uid_map"]).result().stdout:
        pytest.skip("the sandboxes of this server have one user")
    text = "FROM host\nUSER daemon\nCOPY --chown=5:6 dir /out\nCOPY --chown=daemon a.txt /out/\nCOPY b.txt /out/\n"
    image = Image.from_dockerfile(write(f"{text}COPY --chown=7 run.sh /out/"), context=context)
    found = said(session, image, "find /out -printf '%P %U:%G\\n' | sort; id -u").splitlines()
    dirs = [f"{name} 5:6" for name in ("", ".z", "away", "sub", "sub/y", "x")]
    assert found == [*sorted([*dirs, "a.txt 1:1", "b.txt 0:0", "run.sh 7:7"]), "1"]


def test_what_copies_of_a_stage_keep(session: Session, context: Path, write: Write) -> None:
    if "65535" not in session.sandbox().exec(["cat", "/proc/self/uid_map"]).result().stdout:
        pytest.skip("the sandboxes of this server have one user")
    text = """
FROM host AS one
RUN mkdir -p /srv/d/e && echo 1 >/srv/d/f && ln /srv/d/f /srv/d/e/same && ln -s f /srv/d/l && touch /srv/d/set /srv/d/of && \\
    chown -h 5:6 /srv/d/f /srv/d/l && chown 7:8 /srv/d/e /srv/d/set && chmod 4750 /srv/d/set && chmod 2711 /srv/d/e && \\
    chown 9:9 /srv/d && chmod 700 /srv/d && ln -s d/set /srv/link
FROM host
RUN mkdir -p /out/there/e && chmod 755 /out/there
COPY --from=one /srv/d /out/new/x
COPY --from=one /srv/d/ /out/there
COPY --from=one /srv/link /srv/d/f /out/
COPY --from=one --chown=1:2 --chmod=640 /srv/link /out/given
COPY --from=one --chown=daemon:3 /srv/d /out/all
COPY --from=host /usr/bin/env /srv/
"""
    image = Image.from_dockerfile(write(text), context=context)
    found = said(
        session,
        image,
        "find /out -printf '%P %y %m %U:%G %n\\n' | sort; readlink /out/new/x/l; cat /out/f; stat -c %u /srv/env",
    )
    tree = [
        "d 755 0:0",
        "/e d 2711 7:8",
        "/e/same f 644 5:6 2",
        "/f f 644 5:6 2",
        "/l l 777 5:6 1",
        "/of f 644 0:0 1",
        "/set f 4750 7:8 1",
    ]
    given = [
        "d 755 1:3",
        "/e d 2711 1:3",
        "/e/same f 644 1:3 2",
        "/f f 644 1:3 2",
        "/l l 777 1:3 1",
        "/of f 644 1:3 1",
        "/set f 4750 1:3 1",
    ]
    expected = [f"{top} {line}" if line[0] == "d" else f"{top}{line}" for top in ("new/x", "there") for line in tree]
    expected += [f"all {line}" if line[0] == "d" else f"all{line}" for line in given]
    expected += ["link f 4750 7:8 1", "f f 644 5:6 1", "given f 640 1:2 1", "new d 755 0:0"]
    lines = [line if " d " not in line else line.rpartition(" ")[0] for line in found.splitlines()]
    assert sorted(lines) == sorted([*expected, " d 755 0:0", "f", "1", "0"])


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_archives(session: Session, context: Path, write: Write, mode: str) -> None:
    with tarfile.open(context / "archive", mode) as packed:
        for name, link in (("d/f", None), ("d/hard", "d/f"), ("d/soft", "f")):
            member = tarfile.TarInfo(name)
            member.mode = 0o640
            if link is not None:
                member.type, member.linkname = (tarfile.LNKTYPE if "hard" in name else tarfile.SYMTYPE), link
            member.size = 2 if link is None else 0
            member.uid, member.gid = 5, 6
            packed.addfile(member, io.BytesIO(b"f\n"))
    image = Image.from_dockerfile(write("FROM host\nADD archive /out\nCOPY archive /srv/archive"), context=context)
    *found, owners = said(session, image, f"{TREE}; test -f /srv/archive; stat -c %h:%u:%g /out/d/hard").splitlines()
    assert sorted(found) == ["/out/d/f 640 f", "/out/d/hard 640 f", "/out/d/soft -> f"]
    assert owners in ("2:5:6", "2:0:0")


def test_an_archive_that_leads_out(context: Path, write: Write) -> None:
    with tarfile.open(context / "archive", "w") as packed:
        packed.addfile(tarfile.TarInfo("../../etc/x"))
    with pytest.raises(SandboxImageError, match=r"Dockerfile:2: ADD.*\.\."):
        Image.from_dockerfile(write("FROM host\nADD archive /out"), context=context).build().result()


@pytest.mark.parametrize("source", ["out", "out/secret", "o*/secret", "o*/*", "deep/out2/secret"])
def test_nothing_outside_is_copied(context: Path, write: Write, source: str) -> None:
    secret = context.parent / "secrets"
    secret.mkdir()
    (secret / "secret").write_text("secret")
    (context / "out").symlink_to("../secrets")
    (context / "deep").mkdir()
    (context / "deep" / "out2").symlink_to(secret)
    image = Image.from_dockerfile(write(f"FROM host\nCOPY {source} /out/"), context=context)
    with pytest.raises(SandboxImageError, match=r"Dockerfile:2: .*leads out of"):
        image.build().result()


def test_a_working_directory_is_its_users(session: Session, write: Write) -> None:
    """As BuildKit makes it, with what is missing above it; one that is there stays as it is."""
    if "65535" not in session.sandbox().exec(["cat", "/proc/self/uid_map"]).result().stdout:
        pytest.skip("the sandboxes of this server have one user")
    text = """FROM host
WORKDIR /srv/roots
USER 1234:56
WORKDIR /srv/a/b
RUN touch mine
WORKDIR /srv/roots
WORKDIR below
USER daemon
WORKDIR /srv/daemons
USER root
WORKDIR /srv/z
"""
    image = Image.from_dockerfile(write(text))
    found = said(session, image, "cd /srv; stat -c '%u:%g %a %n' a a/b a/b/mine roots roots/below daemons z")
    theirs = ["1234:56 755 a", "1234:56 755 a/b", "1234:56 644 a/b/mine"]
    assert found.splitlines() == [*theirs, "0:0 755 roots", "1234:56 755 roots/below", "1:1 755 daemons", "0:0 755 z"]
    with pytest.raises(SandboxImageError, match=r"Dockerfile:3: .*nobody-here"):
        Image.from_dockerfile(write("FROM host\nUSER nobody-here\nWORKDIR /srv/a")).build().result()


def test_what_is_ignored(session: Session, context: Path, write: Write) -> None:
    text = "FROM host\nCOPY . /out"
    path = write(text, **{".dockerignore": "*.txt\n!b.txt\ndir\n!dir/sub\n**/*space\n.dockerignore\nbr*\n[lr]*\n"})
    found = said(session, Image.from_dockerfile(path, context=context), TREE).replace("/out/", "").splitlines()
    assert sorted(found) == ["b.txt 644 b.txt", "dir/sub/y 644 dir/sub/y", "dirlink -> dir"]
    (path.parent / "Dockerfile.dockerignore").write_text("**\n!a.txt")
    assert said(session, Image.from_dockerfile(path, context=context), TREE) == "/out/a.txt 644 a.txt\n"
    path.write_text("FROM host\nCOPY b.txt /out")
    with pytest.raises(SandboxImageError, match="dockerignore"):
        Image.from_dockerfile(path, context=context).build().result()


def test_variables_and_settings(session: Session, write: Write) -> None:
    path = write("""ARG OUTER=outer
ARG TARGETOS
FROM host
ARG PLAIN=plain GIVEN=default QUOTED="a b"
ARG OUTER
ARG TARGETOS
ARG UNSET
ENV KEPT=first ARGUED=$PLAIN-$GIVEN
ENV KEPT=second OLD=$KEPT PLAIN=env DOLLAR=\\$KEPT PATH=/srv/bin:$PATH
ARG PLAIN=again
RUN echo "$PLAIN|$GIVEN|$QUOTED|$OUTER|$TARGETOS|${UNSET-unset}|$KEPT|$OLD|$ARGUED|$DOLLAR" >/srv/said; pwd >/srv/where
WORKDIR /srv/w
WORKDIR $KEPT
RUN pwd >>/srv/where
SHELL ["/bin/bash", "-c"]
RUN [[ a == a ]] && echo "$BASH" >/srv/shell
RUN ["sh", "-c", "echo $0 >>/srv/shell", "$KEPT"]
RUN --mount=type=cache,target=/root/.cache --network=none <<EOF
#!/usr/bin/env python3
print('it is', "python", file=open("/srv/script", "w"))
EOF
EXPOSE 80
VOLUME ["/v"]
HEALTHCHECK --interval=5s CMD true
STOPSIGNAL SIGINT
LABEL one=1 "two.three"="$KEPT x"
ENTRYPOINT ["/srv/run", "$KEPT"]
CMD echo $KEPT
""")
    image = Image.from_dockerfile(path, build_args={"GIVEN": "given"})
    found = image.build(name="dockerfiles/settings:1").result()
    assert "docker.io/dockerfiles/settings:1" in found.names
    assert found.environment == {
        "KEPT": "second",
        "ARGUED": "plain-given",
        "OLD": "first",
        "PLAIN": "env",
        "DOLLAR": "$KEPT",
        "PATH": f"/srv/bin:{found.environment['PATH'].partition(':')[2]}",
    }
    assert (found.working_dir, found.entrypoint) == ("/srv/w/second", ("/srv/run", "$KEPT"))
    assert found.command == ("/bin/bash", "-c", "echo $KEPT") and found.labels == {"one": "1", "two.three": "second x"}
    assert said(session, image, "cat /srv/said /srv/where /srv/shell /srv/script; pwd; python3 -c ''; echo $GIVEN") == (
        "env|given|a b|outer|linux|unset|second|first|plain-given|$KEPT\n/\n/srv/w/second\n/bin/bash\n$KEPT\nit is python\n"
        "/srv/w/second\n\n"
    )
    assert found.shell == ("/bin/bash", "-c")
    text = 'FROM dockerfiles/settings:1\nENV KEPT=$KEPT-more\nRUN [[ a == a ]] && echo $KEPT >said\nENTRYPOINT ["/e"]\nCMD x'
    assert Image.from_dockerfile(write(text)).build().result().command == ("/bin/bash", "-c", "x")
    below = write(text.removesuffix("\nCMD x"))
    found = (built := Image.from_dockerfile(below)).build().result()
    assert (found.command, found.entrypoint, found.environment["KEPT"]) == ((), ("/e",), "second-more")
    assert said(session, built, "cat /srv/w/second/said") == "second-more\n"


def test_what_the_image_below_says(session: Session, context: Path, write: Write) -> None:
    config = {
        "Env": ["PATH=/bin", "A=b"],
        "WorkingDir": "/w",
        "Entrypoint": ["/e"],
        "Cmd": ["c"],
        "Labels": {"l": "m", "n": "o"},
        "Shell": ["/bin/sh", "-uc"],
    }
    layout = make_layout(context.parent / "image", [tar_of(tools("sh", "cat", "ls"))], config)
    text = f"FROM oci:{layout}\nENV PATH=/x:$PATH C=$A$A\nLABEL n=$A\nARG A=no\nWORKDIR deep\nCOPY a.txt .\nRUN echo $A >said"
    image = Image.from_dockerfile(write(text), context=context)
    found = image.build().result()
    assert found.environment == {"PATH": "/x:/bin", "A": "b", "C": "bb"} and found.labels == {"l": "m", "n": "b"}
    assert (found.working_dir, found.entrypoint, found.command) == ("/w/deep", ("/e",), ("c",))
    assert found.shell == ("/bin/sh", "-uc")
    with pytest.raises(SandboxImageError, match=r"nothing.*not set"):
        Image.from_dockerfile(write(f"{text}\nRUN echo $nothing"), context=context).build().result()
    assert said(session, image, "pwd; cat a.txt said; ls") == "/w/deep\na.txt\nb\na.txt\nsaid\n"
    for more, command in (('ENTRYPOINT ["f"]', ()), ('CMD ["d"]\nENTRYPOINT ["f"]', ("d",)), ('ENTRYPOINT ["f"]\nCMD []', ())):
        found = Image.from_dockerfile(write(f"{text}\n{more}"), context=context).build().result()
        assert (found.entrypoint, found.command) == (("f",), command)


def test_stages(session: Session, context: Path, write: Write, caplog: pytest.LogCaptureFixture) -> None:
    layout = make_layout(context.parent / "image", [tar_of({"img/f": (0o750, 0, 0, b"i\n")})], {})
    text = f"""
FROM host AS Base
RUN mkdir -p /srv/d/e && echo 1 >/srv/d/one && chmod 766 /srv/d/one && ln -s /srv/none /srv/d/away && ln -s d /srv/link
FROM base AS unneeded
RUN exit 1
FROM base
RUN echo 2 >/srv/d/e/two; mkfifo /srv/d/fifo
FROM host AS final
COPY --from=base /srv/d/one /srv/no* /out/
COPY --from=2 /srv/link/ /out/all/
COPY --from=oci:{layout} --chmod=604 img/* /out/
COPY --from=BASE srv/d/one /out/renamed
FROM final AS after
RUN exit 1
"""
    image = Image.from_dockerfile(write(text), context=context, target="final")
    found = said(session, image, TREE).replace("/out/", "").splitlines()
    assert sorted(found) == sorted(
        ["one 766 1", "all/one 766 1", "all/e/two 644 2", "all/away -> /srv/none", "f 604 i", "renamed 766 1"]
    )
    assert len(lines(caplog, BUILDING)) == 6
    caplog.clear()
    image.build().result()
    assert lines(caplog, BUILDING) == [] and len(lines(caplog, CACHED)) == 4
    assert Image.from_dockerfile(write(text), context=context, target=3) == image
    with pytest.raises(AviatoValidationError, match="no stage 'other'; there is base, unneeded, 2, final"):
        Image.from_dockerfile(write(text), target="other")
    with pytest.raises(SandboxImageError, match="Dockerfile:5: RUN exit 1: it ended with returncode 1"):
        Image.from_dockerfile(write(text), target="UNNEEDED").build().result()


def test_one_place_is_enough(make_server: Any, context: Path, write: Write) -> None:
    path = write(
        "FROM host AS one\nCOPY a.txt /srv/\nFROM host\nCOPY --from=one /srv/a.txt /srv/\nCOPY --from=one /srv/a.txt /"
    )
    url = make_server(max_sandboxes=1).url
    assert Image.from_dockerfile(path, context=context).build(base_url=url).result(60).status == "here"


def test_of_a_python_of_the_machine(session: Session, write: Write) -> None:
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    image = Image.from_dockerfile(write(f"FROM python:{minor}\nENV PATH=/srv:$PATH\nRUN python --version >/srv/v"))
    built, here = said(session, image, "cat /srv/v; python --version").splitlines()
    assert built == here and here.startswith(f"Python {minor}.")


def test_what_is_made_anew(context: Path, write: Write, caplog: pytest.LogCaptureFixture) -> None:
    text = f"FROM host\nARG A\nRUN echo {context} >/srv/w\nCOPY a.txt /srv/\nENV B={{}}\nRUN true\nCOPY dir /srv/d\nCMD x"

    def made(path: Path, **given: str) -> int:
        caplog.clear()
        Image.from_dockerfile(path, context=context, build_args=given).build().result()
        return len(lines(caplog, BUILDING))

    path = write(text.format(1))
    assert made(path) == 5 and made(path) == 0
    os.utime(context / "a.txt", (1, 1))
    (context / "b.txt").write_text("of no copy")
    assert made(path) == 0
    (context / "dir" / "sub" / "y").write_text("changed")
    assert made(path) == 2
    (context / "dir" / "x").chmod(0o755)
    assert made(path) == 2
    assert made(write(text.format(2))) == 3
    (context / "a.txt").write_text("changed")
    assert made(path) == 4
    assert made(path, A="1") == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RUN true\nRUN echo why >&2; exit 3", "Dockerfile:3: RUN echo why >&2; exit 3: it ended with returncode 3: why"),
        ("COPY none /out", "Dockerfile:2: COPY none /out: .*no such file"),
        ("COPY a.txt b.txt /out", "Dockerfile:2: COPY .*'/out' is the name of one file, and there are 2"),
        ("COPY --from=host /none /out", "Dockerfile:2: COPY .*/none"),
        ("WORKDIR $NONE", "Dockerfile:2: WORKDIR: .*empty"),
        ("ARG A=\nUSER ${A:?who}", "Dockerfile:3: USER: .*who"),
        ("COPY --chown=nobody-here a.txt /out/", "Dockerfile:2: COPY .*chown"),
    ],
)
def test_what_fails(context: Path, write: Write, text: str, message: str) -> None:
    image = Image.from_dockerfile(write(f"FROM host\n{text}"), context=context)
    with pytest.raises(SandboxImageError, match=message) as caught:
        image.build().result()
    assert caught.value.reason == "build_failed" and caught.value.is_infrastructure


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM host AS scratch", "Dockerfile:1: scratch is the image of no files"),
        ("FROM $NONE", "Dockerfile:1: FROM .*empty"),
        ("FROM --platform=linux/none host", "Dockerfile:1: .*linux/none"),
        ("FROM host\nCOPY --from=1 a b", "Dockerfile:2: .*no stage 1"),
        ("FROM host\nNOP", "Dockerfile:2: there is no instruction NOP"),
    ],
)
def test_what_is_refused_at_the_call(write: Write, text: str, message: str) -> None:
    with pytest.raises(AviatoValidationError, match=message):
        Image.from_dockerfile(write(text))


def test_the_call(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    text = f"ARG B=host\nFROM --platform=linux/{ARCHITECTURE} $B\nFROM --platform=$BUILDPLATFORM ${{B}}\nRUN a"
    path = write(text)
    monkeypatch.chdir(path.parent)
    image = Image.from_dockerfile()
    assert image == Image.from_dockerfile(path, context=tmp_path) and image.run("b").base == "host" and hash(image)
    assert Image.from_dockerfile(build_args={"B": "other:1", "C": "1"}).base == "other:1"
    assert "Dockerfile has no ARG C" in caplog.text
    with pytest.raises(FileNotFoundError):
        Image.from_dockerfile("none")
    with pytest.raises(AviatoValidationError, match="no directory"):
        Image.from_dockerfile(context=path)
    with pytest.raises(TypeError, match="build_args"):
        Image.from_dockerfile(build_args={"A": 1})  # type: ignore[dict-item]
    path.write_bytes(b"FROM host\n\xff")
    with pytest.raises(AviatoValidationError, match=r"Dockerfile:2: .*UTF-8"):
        Image.from_dockerfile()


def test_names_are_names() -> None:
    image = Image.from_("host").run("true")
    for wrong in ("sha256:" + "0" * 64, "a b", "oci:/x"):
        with pytest.raises((AviatoValidationError, SandboxImageError)):
            image.build(name=wrong).result()
    assert "docker.io/library/dockerfiles-true:latest" in image.build(name="dockerfiles-true").result().names
    assert aviato.Sandbox.run("true", container_image="dockerfiles-true").stop().result() is None
