"""What a sandbox is made with: variables, secrets, files, a directory, users."""

from __future__ import annotations

import pytest

import aviato
from aviato.promises.declared import keeps, needs
from aviato.promises.serving import SECRET, Server
from aviato.server.backends.capabilities import Capability


def test_its_variables(session: aviato.Session) -> None:
    """`environment_variables` are those of every command, the main one too; what a call says wins."""
    given = {"OWN": "é = 'x'\nsecond line", "OTHER": "1"}
    sandbox = session.sandbox(
        command="sh", args=["-c", 'printf "%s" "$OWN" > main; exec sleep 60'], environment_variables=given
    )
    look = ["sh", "-c", 'printf "%s|%s" "$OWN" "$OTHER"']
    assert sandbox.exec(look, env={"OTHER": "2"}).result().stdout == f"{given['OWN']}|2"
    assert sandbox.exec(["sh", "-c", "while ! [ -s main ]; do sleep 0.02; done; cat main"]).result().stdout == given["OWN"]


def test_what_is_always_set(sandbox: aviato.Sandbox) -> None:
    """PATH and HOME are set, and nothing of the server's own environment is."""
    done = sandbox.exec(["env"]).result().stdout.splitlines()
    variables = dict(line.partition("=")[::2] for line in done if "=" in line)
    assert variables["PATH"] and variables["HOME"]
    assert not [name for name in variables if name.startswith("AVIATO_")]


def test_a_secret(session: aviato.Session, server: Server) -> None:
    """A secret is a variable of the sandbox's commands, the main one too, and stands in nothing that is told of it."""
    if not server.is_own:
        pytest.skip("the server that is asked has no secret of the suite's")
    name, value = SECRET
    secret = aviato.Secret(store="env", name=name, env_var="TOKEN")
    sandbox = session.sandbox(
        secrets=[secret], command="sh", args=["-c", 'printf "%s" "$TOKEN" > main; exec sleep 60'], tags=["has-a-secret"]
    )
    assert sandbox.exec(["sh", "-c", 'printf "%s" "$TOKEN"']).result().stdout == value
    assert sandbox.exec(["sh", "-c", "while ! [ -s main ]; do sleep 0.02; done; cat main"]).result().stdout == value
    assert value not in repr(sandbox) and value not in server.log()
    other = session.sandbox(secrets=[secret])
    other.reset().result()
    assert other.exec(["sh", "-c", 'printf "%s" "$TOKEN"']).result().stdout == value
    assert "x" not in session.sandbox().exec(["sh", "-c", 'printf "%s" "${TOKEN+x}"']).result().stdout
    with pytest.raises(aviato.AviatoValidationError):
        session.sandbox(secrets=[aviato.Secret(store="env", name="NO_SUCH_NAME")]).wait()


@needs(Capability.MOUNTED_FILES)
def test_mounted_files(session: aviato.Session) -> None:
    """`mounted_files` are there from the first command on, and can only be read."""
    given = [
        {"mount_path": "/data/cases", "file_content": b"1 2 3\n"},
        {"mount_path": "/data/deep/er", "file_content": bytes(range(256)) * 400},
    ]
    sandbox = session.sandbox(mounted_files=given, command="sh", args=["-c", "cat /data/cases; exec sleep 60"])
    assert next(iter(sandbox.stream_logs(follow=True))) == "1 2 3\n"
    assert sandbox.read_file("/data/deep/er").result() == given[1]["file_content"]
    attempts = "echo x > /data/cases; rm -f /data/cases; chmod 777 /data/cases; cat /data/cases"
    assert sandbox.exec(["sh", "-c", attempts]).result().stdout == "1 2 3\n"
    with pytest.raises(aviato.SandboxFileError):
        sandbox.write_file("/data/cases", b"x").result()


@needs(Capability.MOUNTED_FILES)
@keeps("mounted files")
def test_mounted_files_stay_where_they_are(session: aviato.Session) -> None:
    """Nothing inside can put another file in the place of a mounted one."""
    sandbox = session.sandbox(mounted_files=[{"mount_path": "/data/cases", "file_content": b"x"}])
    assert sandbox.exec(["sh", "-c", "mv /data /other; cat /data/cases"]).result().stdout == "x"


@needs(Capability.WORKING_DIR)
def test_a_working_directory(session: aviato.Session) -> None:
    """`working_dir` is where commands start, and from where relative paths count; it is made."""
    sandbox = session.sandbox(working_dir="/srv/made/here")
    sandbox.write_file("f", b"x").result()
    assert sandbox.exec(["sh", "-c", "pwd; ls"]).result().stdout == "/srv/made/here\nf\n"
    assert sandbox.read_file("/srv/made/here/f").result() == b"x"


def test_root_of_its_sandbox(sandbox: aviato.Sandbox) -> None:
    """`exec(user=)` of None, "root" and 0 is who commands of the sandbox are, and never refused."""
    own = sandbox.exec(["id", "-u"]).result().stdout
    assert [sandbox.exec(["id", "-u"], user=user).result().stdout for user in ("root", 0)] == [own, own]


@needs(Capability.USERS)
def test_another_user(sandbox: aviato.Sandbox) -> None:
    """`exec(user=)` takes names and numbers, which own what they make; what there is not is a AviatoValidationError."""
    assert sandbox.exec(["id", "-u"], user=1234).result().stdout == "1234\n"
    assert sandbox.exec(["id", "-u"], user="daemon").result().stdout == "1\n"
    made = sandbox.exec(["sh", "-c", "cd /tmp && mkdir -p own && cd own && touch f && stat -c %u:%g f"], user="1234:99")
    assert made.result().stdout == "1234:99\n"
    for user in ("nobody-of-this-name", 4_000_000_000):
        with pytest.raises(aviato.AviatoValidationError):
            sandbox.exec(["true"], user=user).result()
