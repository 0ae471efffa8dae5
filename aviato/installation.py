"""How this copy of aviato came here, and the commands that bring what it lacks into the same Python.

The distribution is `aviato-sandbox`: the name `aviato` is someone else's in the registry of Python's packages.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTION = "aviato-sandbox"


@dataclass(frozen=True)
class Origin:
    """Where this copy was installed from.

    Attributes:
        kind: `checkout` (editable, or a source tree on the path), `directory`, `file` (a wheel or an archive of sources), `url`
            (of one, or of a repository), or `index`.
        place: the path or the URL; of an index the version.
    """

    kind: Literal["checkout", "directory", "file", "url", "index"]
    place: str

    def requirement(self, extra: str | None = None) -> list[str]:
        """What an installer is given to install this copy again, with an extra."""
        extras = f"[{extra}]" if extra else ""
        if self.kind == "checkout":
            return ["-e", self.place + extras]
        if self.kind in ("directory", "file"):
            return [self.place + extras]
        return [f"{DISTRIBUTION}{extras} @ {self.place}" if self.kind == "url" else DISTRIBUTION + extras]

    @property
    def is_there(self) -> bool:
        """Whether it can be installed from once more, as far as this machine's files tell."""
        return self.kind in ("url", "index") or os.path.exists(self.place)


def extra_command(extra: str) -> str:
    """The command that installs an extra of this copy, for a shell.

    Where the file or directory that this copy came from is gone, it names what the extra asks for.
    """
    found = origin()
    return packages_command(*(found.requirement(extra) if found.is_there else _requirements(extra)))


def packages_command(*arguments: str) -> str:
    """The command that installs packages into the Python that runs this, for a shell.

    Args:
        arguments: of `pip install`.
    """
    managed = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    in_the_system = not _is_of_environment(sys.executable) and os.path.exists(managed)
    return _installer() + shlex.join([*(["--break-system-packages"] if in_the_system else []), *arguments])


def origin() -> Origin:
    """Where this copy was installed from."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if _is_checkout(home):
        return Origin("checkout", home)
    for distribution in metadata.distributions(name=DISTRIBUTION):
        if os.path.realpath(str(distribution.locate_file(""))) == os.path.realpath(home):
            return _recorded(json.loads(distribution.read_text("direct_url.json") or "{}"), distribution.version)
    from aviato import __version__

    return Origin("index", __version__)


def _is_checkout(home: str) -> bool:
    try:
        with open(os.path.join(home, "pyproject.toml"), "rb") as file:
            named = tomllib.load(file).get("project", {}).get("name")
    except (OSError, tomllib.TOMLDecodeError):
        return False
    return bool(named == DISTRIBUTION)


def _recorded(direct: dict[str, Any], version: str) -> Origin:
    """What an installer wrote into direct_url.json; it writes none for what an index gave."""
    url = direct.get("url", "")
    if not url:
        return Origin("index", version)
    if "vcs_info" in direct:
        asked = direct["vcs_info"]
        below = f"#subdirectory={direct['subdirectory']}" if direct.get("subdirectory") else ""
        return Origin("url", f"{asked['vcs']}+{url}@{asked['commit_id']}{below}")
    if not url.startswith("file:"):
        return Origin("url", url)
    path = unquote(urlsplit(url).path)
    return Origin("directory" if "dir_info" in direct else "file", path)


def _requirements(extra: str) -> Iterator[str]:
    """What an extra asks for, without its conditions."""
    for line in metadata.requires(DISTRIBUTION) or []:
        requirement, _, condition = line.partition(";")
        if any(f"extra == {quote}{extra}{quote}" in condition for quote in "\"'"):
            yield requirement.strip()


def _is_of_environment(python: str) -> bool:
    """Whether an interpreter is a virtual environment's: this one may have been started without what would tell it (`-S`)."""
    folder = os.path.dirname(python)
    return any(os.path.exists(os.path.join(each, "pyvenv.cfg")) for each in (folder, os.path.dirname(folder)))


def _installer() -> str:
    """The beginning of the command, up to the arguments of `pip install`."""
    python = shlex.quote(sys.executable or "python3")
    if find_spec("pip") is None:
        if shutil.which("uv"):
            return f"uv pip install --python {python} "
        if find_spec("ensurepip"):
            return f"{python} -m ensurepip && {python} -m pip install "
    return f"{python} -m pip install "
