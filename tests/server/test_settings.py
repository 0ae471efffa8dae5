from __future__ import annotations

import os

import pytest

from aviato.exceptions import AviatoValidationError, SandboxUnavailableError
from aviato.server.settings import ServerSettings, load
from aviato.server.state_dir import StateDirectory, default_state_directory, state_directory, take_lock

EXAMPLES = {
    "socket": ("/run/a.sock", "/run/a.sock"),
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("8080", 8080),
    "state_dir": ("/tmp/x", "/tmp/x"),
    "backend": ("landlock", "landlock"),
    "kubernetes_context": ("c", "c"),
    "kubernetes_namespace": ("n", "n"),
    "kubernetes_claim": ("team-a", "team-a"),
    "kubernetes_init_image": ("registry.example.org/init:1", "registry.example.org/init:1"),
    "kubernetes_reach": ("forward", "forward"),
    "kubernetes_security": ("root", "root"),
    "kubernetes_runtime_class": ("gvisor", "gvisor"),
    "kubernetes_pull_secret": ("a,b", ("a", "b")),
    "kubernetes_pool_label": ("example.org/pool", "example.org/pool"),
    "kubernetes_objects": ("agent-sandbox", "agent-sandbox"),
    "kubernetes_warm_pool": ("python", "python"),
    "kubernetes_start": ("60", 60.0),
    "docker_host": ("unix:///run/docker.sock", "unix:///run/docker.sock"),
    "default_image": ("python:3.13", "python:3.13"),
    "api_key_file": ("/k", "/k"),
    "auth": ("wandb", "wandb"),
    "wandb_entity": ("team-a,team.b", ("team-a", "team.b")),
    "allowed_host": ("sandboxes.example.org,*.example.net", ("sandboxes.example.org", "*.example.net")),
    "tls_cert": ("/c", "/c"),
    "tls_key": ("/t", "/t"),
    "image": ("a=/x,b=/y", {"a": "/x", "b": "/y"}),
    "packages": ("a=/x,b=/y", {"a": "/x", "b": "/y"}),
    "image_cache_bytes": ("1000", 1000),
    "registry_mirror": ("a.b=b,a.b=c:1/d", {"a.b": ("b", "c:1/d")}),
    "secrets_dir": ("/s", "/s"),
    "max_detached_lifetime": ("60", 60.0),
    "max_sandboxes": ("8", 8),
    "max_queued_sandboxes": ("0", 0),
    "run_code_concurrency": ("4", 4),
    "lease": ("10", 10.0),
    "orphan_timeout": ("20", 20.0),
    "idle_exit": ("30", 30.0),
    "sandbox_uid_base": ("1900000000", 1_900_000_000),
    "socket_fd": ("3", 3),
    "egress_allow_cidr": ("10.0.0.0/8,fd00::/8", ("10.0.0.0/8", "fd00::/8")),
    "record_retention": ("5", 5.0),
    "warm": ("host=2,python:3.12=3", {"host": 2, "python:3.12": 3}),
}


TABLES = ("image", "packages")


def test_every_setting_has_an_example():
    assert EXAMPLES.keys() == ServerSettings.model_fields.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_precedence_is_flag_environment_file_default(name, tmp_path):
    given, value = EXAMPLES[name]
    default = getattr(ServerSettings(), name)
    file = tmp_path / "settings.toml"
    tables = dict.fromkeys(TABLES, "{a = '/x', b = '/y'}") | {
        "registry_mirror": "{'a.b' = ['b', 'c:1/d']}",
        "warm": "{host = 2, 'python:3.12' = 3}",
    }
    literal = tables.get(name) or repr(list(value) if isinstance(value, tuple) else value)
    file.write_text(f"{name.replace('_', '-')} = {literal}\n")
    others = {
        **dict.fromkeys(TABLES, "z=/z"),
        "registry_mirror": "z.z=z",
        "warm": "z=1",
        "secrets_dir": "/other",
        "state_dir": "/other",
        "backend": "local",
        "kubernetes_reach": "direct",
        "kubernetes_security": "restricted",
        "kubernetes_objects": "pods",
        "egress_allow_cidr": "192.168.0.0/16",
        "allowed_host": "a.b",
    }
    other = others.get(name, "7")
    assert getattr(load({}, {}), name) == default
    assert getattr(load({"settings_file": str(file)}, {}), name) == value
    assert getattr(load({}, {"AVIATO_SETTINGS_FILE": str(file)}), name) == value
    variables = {f"AVIATO_{name.upper()}": given}
    if name == "auth":
        # The variable of that name is the client's own.
        assert load({}, variables).auth is None
        assert load({"auth": given}, {}).auth == value
        return
    assert getattr(load({}, variables), name) == value
    assert getattr(load({"settings_file": str(file)}, {f"AVIATO_{name.upper()}": other}), name) != value
    flag = ("a=/x", "b=/y") if name in TABLES else value if isinstance(value, tuple) else given
    assert getattr(load({name: flag}, {f"AVIATO_{name.upper()}": other}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "70000"), ("max_sandboxes", "0"), ("lease", "-1"), ("lease", "nan"), ("idle_exit", "inf"),
        ("egress_allow_cidr", "10.0.0.1/8"), ("egress_allow_cidr", "all"), ("image", "noequals"),
        ("allowed_host", "a:80"), ("allowed_host", "a b"), ("wandb_entity", "a/b"),
        ("image", "a=relative"), ("packages", "a=relative"), ("packages", "a/b=/x"), ("packages", "/x"),
        ("registry_mirror", "hub=mirror.example.org"), ("registry_mirror", "docker.io=http://mirror.example.org"),
        ("registry_mirror", "docker.io=https://user:key@example.org"), ("registry_mirror", "docker.io/library=m.example.org"),
        ("secrets_dir", "relative"), ("socket_fd", "1"),
        ("backend", "podman"), ("backend", "nomad"), ("backend", ""), ("backend", "Local"), ("state_dir", "relative"),
        ("state_dir", "~/state"), ("max_sandboxes", "many"), ("max_sandboxes", ""), ("max_queued_sandboxes", "-1"),
        ("run_code_concurrency", "0"), ("orphan_timeout", "0"), ("record_retention", "soon"), ("max_detached_lifetime", "0"),
        ("kubernetes_claim", "A_b"), ("kubernetes_reach", "proxy"), ("kubernetes_security", "privileged"),
        ("kubernetes_objects", "sandboxes"), ("kubernetes_warm_pool", "A_b"),
        ("kubernetes_start", "0"), ("sandbox_uid_base", "0"), ("sandbox_uid_base", "4294967295"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_said_by_the_name_that_its_giver_knows(name, value, tmp_path):
    """The flag, the variable or the line of the file, and the value."""
    file = tmp_path / "s.toml"
    file.write_text(f"{name} = {value!r}\n")
    flag = f"--{name.replace('_', '-')}"
    variable = f"AVIATO_{name.upper()}"
    for flags, variables, said in (
        ({}, {variable: value}, variable),
        ({name: value}, {}, flag),
        ({"settings_file": str(file)}, {}, f"{name} in {str(file)!r}"),
        ({}, {"AVIATO_SETTINGS_FILE": str(file)}, f"{name} in {str(file)!r}"),
    ):
        with pytest.raises(AviatoValidationError) as caught:
            load(flags, variables)
        assert str(caught.value).startswith(f"{said} is {value!r}: ") and "\n" not in str(caught.value)
        assert list(caught.value.field_violations) == [name]


def test_the_backends_are_named():
    with pytest.raises(
        AviatoValidationError,
        match="AVIATO_BACKEND is 'podman': there is no such backend; there are 'docker', 'kubernetes', 'landlock', 'local', "
        "or MODULE:CLASS",
    ):
        load({}, {"AVIATO_BACKEND": "podman"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"nonsense", "the file is not TOML"),
        (b"\xff = 1", "the file is not TOML"),
        (b"unknown-thing = 1", "unknown_thing in "),
        (b"max-sandboxs = 1", "did you mean max_sandboxes?"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, said):
    file = tmp_path / "s.toml"
    file.write_bytes(text)
    with pytest.raises(AviatoValidationError) as caught:
        load({"settings_file": str(file)}, {})
    assert said in str(caught.value) and str(file) in str(caught.value)


def test_a_file_that_cannot_be_read_is_said_by_the_name_of_its_giver(tmp_path):
    for path in (tmp_path / "absent", tmp_path, "/dev/null/x"):
        with pytest.raises(AviatoValidationError, match=f"^--settings-file is '{path}': the file cannot be read"):
            load({"settings_file": str(path)}, {})
        with pytest.raises(AviatoValidationError, match=f"^AVIATO_SETTINGS_FILE is '{path}': the file cannot be read"):
            load({}, {"AVIATO_SETTINGS_FILE": str(path)})


def test_the_clients_own_variable_is_none_of_the_servers():
    assert load({}, {"AVIATO_AUTH": "wandb"}) == ServerSettings()


def test_an_embedded_server_leaves_out_what_only_serve_knows():
    settings = load({}, {"AVIATO_PORT": "80", "AVIATO_SOCKET": "/x", "AVIATO_MAX_SANDBOXES": "3"}, embedded=True)
    assert (settings.port, settings.socket, settings.max_sandboxes) == (None, None, 3)


def test_the_default_state_directory_is_never_a_home():
    assert default_state_directory(0) == "/var/lib/aviato"
    assert default_state_directory(1000) == "/var/tmp/aviato-1000"


def test_a_state_directory_is_made_and_checked(tmp_path):
    path = tmp_path / "a" / "state"
    assert state_directory(str(path)) == str(path)
    assert path.stat().st_mode & 0o777 == (0o711 if os.getuid() == 0 else 0o700)
    path.chmod(0o777)
    state_directory(str(path))
    assert path.stat().st_mode & 0o777 == (0o711 if os.getuid() == 0 else 0o700)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(AviatoValidationError, match="symlink"):
        state_directory(str(link))
    with pytest.raises(AviatoValidationError, match="absolute"):
        state_directory("relative")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(AviatoValidationError, match="not a directory"):
        state_directory(str(file))
    for bad in ("/proc/x", str(file / "below"), "/dev/null/x", str(tmp_path / ("x" * 300)), "relative"):
        with pytest.raises(AviatoValidationError, match=f"^--state-dir is '{bad}': "):
            state_directory(bad, "--state-dir")
        with pytest.raises(AviatoValidationError, match=f"^AVIATO_STATE_DIR is '{bad}': "):
            state_directory(bad)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_state_directory_of_another_user_is_refused(tmp_path):
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(AviatoValidationError, match="belongs to uid 12345"):
        state_directory(str(tmp_path))


def test_a_second_server_on_a_held_lock_is_refused_and_named(tmp_path):
    folder = StateDirectory(str(tmp_path))
    fd = take_lock(folder)
    try:
        with pytest.raises(SandboxUnavailableError, match=f"pid {os.getpid()}"):
            take_lock(folder)
    finally:
        os.close(fd)
    os.close(take_lock(folder))
