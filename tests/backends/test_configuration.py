"""What of a machine's /etc sandboxes see: a table of what lies there, with what becomes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from aviato.server.backends.local import configuration, hardware

pytestmark = pytest.mark.anyio

HARMLESS = {
    "maven/settings.xml": "<settings>\n<!-- <password>example1</password> -->\n<offline>true</offline></settings>",
    "maven/m2.conf": "load ${maven.home}/lib/*.jar",
    "java-17-openjdk/security/java.security": "# keystore.password=changeit\nkeystore.type=pkcs12\nssl.TrustManager=PKIX",
    "java-17-openjdk/management/jmxremote.access": "monitorRole   readonly",
    "ssl/openssl.cnf": "[insta]\nsecret = pass:insta # example\nchallengePassword = A challenge password\n",
    "ssl/certs/ca.pem": "-----BEGIN CERTIFICATE-----\nMIIC\n-----END CERTIFICATE-----\n",
    "services": "ssh 22/tcp\ntacacs 49/tcp # Login Host Protocol (TACACS)\nkpasswd 464/tcp\n",
    "profile.d/locale.sh": "export LANG=C\nPASSWORD_STORE=none\n",
    "fonts/fonts.conf": '<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd"><dir>/usr/share/fonts</dir>',
    "nginx/mime.types": "types { text/html html; }",
    "php/8.2/cli/php.ini": "mysqli.default_pw =\n; session.save_path = x\n",
}
SECRET = {
    "a password in XML": ("maven/settings.xml", "<server><id>x</id><password>hunter22</password></server>"),
    "an address with a password": ("profile.d/proxy.sh", "export https_proxy=http://me:hunter22@proxy:3128\n"),
    "an address with a token": ("profile.d/index.sh", "export PIP_INDEX_URL='https://glpat123@example.org/simple'\n"),
    "a token of a variable": ("profile.d/hub.sh", 'export HF_TOKEN="hf_abcdefgh"\n'),
    "a key of a variable": ("profile.d/cloud.sh", "AWS_SECRET_ACCESS_KEY=abcdefghijkl; export AWS_SECRET_ACCESS_KEY\n"),
    **{
        f"what {name} is set to": ("profile.d/names.sh", f"export MY_{name.upper()}=abcdefgh\n")
        for name in ("passwd", "passphrase", "auth", "authtoken", "apikey", "api_key", "accesskey", "access_key")
    },
    "a password of JSON": ("php/8.2/cli/app.json", '{"password": "hunter22"}'),
    "a password of Java": (
        "java-17-openjdk/net.properties",
        "http.proxyUser=me\nhttp.proxyPassword=x\njavax.password = hunter22\n",
    ),
    "a private key": ("ssl/certs/both.pem", "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n"),
    "a key by its name": ("java-17-openjdk/server.key", "x"),
    "a store of keys": ("java-17-openjdk/keys.p12", "x"),
    "passwords by their name": ("java-17-openjdk/management/jmxremote.password", "monitorRole x"),
    "a directory of keys": ("ssl/certs/private/a.pem", "x"),
    "a backup of the users": ("skel/passwd-", "x"),
    "the token of a registry": ("nodejs/npmrc", "registry=https://example.org"),
}


def put(etc: Path, name: str, content: str, mode: int = 0o644) -> Path:
    path = etc / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)
    return path


def seen(etc: Path, usr: Path | str = "/nonexistent") -> set[str]:
    """The files that are shared, by the names that they have below /etc."""
    found = configuration.find(str(etc), str(usr))
    paths = [one for name, _ in found.names for one, _ in configuration.files_of(f"{etc}/{name}")]
    return {os.path.relpath(path, etc) for path in paths if not os.path.isdir(path)}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_no_secret_is_seen(tmp_path, name):
    put(tmp_path, name, HARMLESS[name])
    assert seen(tmp_path) == {name} and configuration.find(str(tmp_path), "/nonexistent").left_out == ()


@pytest.mark.parametrize("kind", SECRET)
def test_a_secret_is_left_out_alone_and_said_to_be(tmp_path, kind):
    name, content = SECRET[kind]
    beside = f"{os.path.dirname(name).removesuffix('/private')}/beside.txt"
    put(tmp_path, name, content)
    put(tmp_path, beside, "x")
    assert seen(tmp_path) == {beside}
    ((left_out, why),) = configuration.find(str(tmp_path), "/nonexistent").left_out
    assert name.startswith(left_out) and why
    assert "hunter22" not in why


def test_what_not_everybody_may_read_or_is_no_file_is_left_out(tmp_path):
    put(tmp_path, "maven/closed.xml", "x", 0o640)
    put(tmp_path, "maven/open.xml", "x")
    put(tmp_path, "skel/closed/x", "x")
    (tmp_path / "skel" / "closed").chmod(0o750)
    os.mkfifo(tmp_path / "maven" / "pipe")
    put(tmp_path, "maven/large", "x" * (configuration.MOST_BYTES + 1))
    assert seen(tmp_path) == {"maven/open.xml"}
    found = dict(configuration.find(str(tmp_path), "/nonexistent").left_out)
    assert set(found) == {"maven/closed.xml", "skel/closed", "maven/pipe", "maven/large"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_what_is_another_users_is_left_out(tmp_path):
    os.chown(put(tmp_path, "maven/theirs.xml", "x"), 12345, 12345)
    assert seen(tmp_path) == set()


def test_links_of_usr_say_what_else_is_needed(tmp_path):
    etc, usr = tmp_path / "etc", tmp_path / "usr"
    for name in ("odd/program.conf", "odd/other.conf", "tree/a", "tree/b/c", "hosts", "machine-id", "far/x"):
        put(etc, name, "x")
    links = {"lib/odd/conf": "odd/program.conf", "share/tree": "tree", "lib/h": "hosts", "lib/m": "machine-id"}
    for name, target in links.items():
        (usr / name).parent.mkdir(parents=True, exist_ok=True)
        (usr / name).symlink_to(etc / target)
    (usr / "lib" / "relative").symlink_to("../../etc/odd/program.conf")
    (usr / "share" / "doc").mkdir()
    (usr / "share" / "doc" / "far").symlink_to(etc / "far")
    assert seen(etc, usr) == {"odd/program.conf", "tree/a", "tree/b/c"}
    assert [name for name, _ in configuration.find(str(etc), str(usr)).left_out] == ["machine-id"]


def test_a_link_out_of_etc_is_not_followed(tmp_path):
    etc = tmp_path / "etc"
    put(tmp_path, "home/maven/settings.xml", "of the machine")
    put(etc, "static/fonts/fonts.conf", "x")
    (etc / "maven").symlink_to("../home/maven")
    (etc / "fonts").symlink_to("static/fonts")
    put(etc, "skel/plain", "x")
    (etc / "skel" / "out").symlink_to("/root/.netrc")
    found = configuration.find(str(etc), "/nonexistent")
    assert dict(found.names) == {"fonts": True, "skel": True}
    assert [name for name, _ in found.left_out] == ["maven"] and "leads to" in found.left_out[0][1]


async def test_no_secret_of_this_machine_is_inside(backend, boxes):
    """Whatever is closed to others here, and whatever tells which machine it is, no sandbox has a file of its content."""
    look = "find /etc -type f | sort; cat /etc/machine-id /etc/hostname; hostname"
    async with boxes.make_box(backend) as box:
        inside = (await box.sh(look)).stdout.split()
        own = (await box.sh("cat /etc/shadow /etc/gshadow")).stdout.splitlines()
    for name in ("machine-id", "hostname", "sudoers", "passwd-", "environment", "pip.conf", "npmrc"):
        assert f"/etc/{name}" not in inside
    # Its users are its own, and none of them has a password.
    assert all(line.split(":")[1] in ("*", "!", "!*") for line in own)
    assert os.uname().nodename not in inside
    closed = [
        path for path in inside if path.startswith("/etc/") and os.path.exists(path) and not os.stat(path).st_mode & 0o004
    ]
    assert set(closed) <= {"/etc/shadow", "/etc/gshadow"}


@pytest.mark.skipif(shutil.which("javac") is None, reason="no javac on this machine")
async def test_without_layers_programs_find_it_too(backend, boxes, monkeypatch):
    monkeypatch.setattr(backend, "_layered", False)
    expected = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True).stdout
    async with boxes.make_box(backend) as box:
        result = await box.run("javac", "-version")
        assert (result.returncode, result.stdout) == (0, expected), result.stderr
        assert (await box.sh("ls -d /etc/java-*; echo x > /etc/mine; cat /etc/mine")).stdout.endswith("x\n")


async def test_of_sys_processors_and_pages_are_there_and_nothing_else(backend, boxes):
    look = "cat /sys/devices/system/cpu/online /sys/devices/system/node/online /sys/kernel/mm/transparent_hugepage/enabled"
    expected = subprocess.run(["sh", "-c", look], capture_output=True, text=True, check=True).stdout
    async with boxes.make_box(backend) as box:
        assert (await box.sh(look)).stdout == expected
        found = (await box.sh("find /sys -type f")).stdout.split()
        assert found and all(path.startswith(("/sys/devices/system/", "/sys/kernel/mm/")) for path in found)
        assert not any(name in path for path in found for name in ("ppin", "uevent", "dmi", "serial", "/microcode"))
        await box.sh("echo 0 > /sys/devices/system/cpu/online")
    async with boxes.make_box(backend) as box:
        assert (await box.sh(look)).stdout == expected
    assert subprocess.run(["sh", "-c", look], capture_output=True, text=True, check=True).stdout == expected


def test_a_large_machine_has_the_directories_of_some_processors(tmp_path):
    for number in range(100):
        topology = tmp_path / f"devices/system/cpu/cpu{number}/topology"
        topology.mkdir(parents=True)
        (topology / "core_id").write_text(f"{number}\n")
        (topology / "ppin").write_text("0x1234\n")
    (tmp_path / "devices/system/cpu/possible").write_text("0-99\n")
    paths = [path for path, _ in hardware.find(str(tmp_path))]
    assert len(paths) == hardware.MOST_PROCESSORS + 1 and not any("ppin" in path for path in paths)
    made = hardware.directories(hardware.find(str(tmp_path)))
    assert made == sorted(made) and "/sys/devices" in made and "/sys" not in made
