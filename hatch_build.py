"""Compiles the part of the template that is C, where there is a compiler. Without one aviato does the same in Python."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DIRECTORY = "aviato/server/backends/local"
SUPERVISOR = "aviato/server/supervisor"
SOURCES = (
    *(f"{DIRECTORY}/{name}" for name in ("birth.c", "template.c", "layers.c", "networks.c", "shared.c")),
    *(f"{SUPERVISOR}/{name}" for name in ("early.c", "early_start.c", "early_watch.c", "early_wire.c", "early_files.c")),
)
LIBRARY = f"{DIRECTORY}/libaviato.so"


class CustomBuildHook(BuildHookInterface):
    """Adds the library to a wheel, which is for one platform then, and puts it into the tree of an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        if self.target_name != "wheel" or not self._compile():
            return
        build_data["artifacts"].append(f"/{LIBRARY}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def _compile(self) -> bool:
        compiler = shlex.split(os.environ.get("CC", "cc"))
        library = Path(self.root, LIBRARY)
        if not sysconfig.get_platform().startswith("linux") or shutil.which(compiler[0]) is None:
            library.unlink(missing_ok=True)
            self.app.display_info("no C compiler: sandboxes will be made by Python alone, each some 1 ms slower")
            return False
        # A new file, put in place at once: servers may have the old one in use.
        new = library.with_name(f"{library.name}.{os.getpid()}")
        sources = [str(Path(self.root, name)) for name in SOURCES]
        command = [*compiler, "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", str(new), *sources]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            new.unlink(missing_ok=True)
            library.unlink(missing_ok=True)
            self.app.display_warning(f"{shlex.join(command)}: {done.stderr.strip()}\nsandboxes will be made by Python alone")
            return False
        new.replace(library)
        return True
