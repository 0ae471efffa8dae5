"""Compiles what of aviato is no Python: `aviato-init` by cargo, and the part of the template that is C where a compiler is."""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "aviato"
LOCAL = f"{PACKAGE}/server/backends/local"
COMPILING = f"{LOCAL}/compiling.py"
BINARY = f"{LOCAL}/binary.py"
NEEDED = False
"""Whether sandboxes need `aviato-init`, so that a build without it ends."""


class CustomBuildHook(BuildHookInterface):
    """Adds both to a wheel, which is for one platform then, and puts them into the tree of an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        if self.target_name != "wheel":
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        if self.library(build_data):
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
        if sys.platform == "linux" and self.program(build_data):
            # It is static, and the library is left out where it cannot be loaded: the C library of the machine matters not.
            machine = os.uname().machine
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-manylinux_2_17_{machine}.musllinux_1_1_{machine}"

    def program(self, build_data: dict[str, Any]) -> bool:
        """Whether `aviato-init` is there. One that cannot be made anew goes, since it fits no longer."""
        binary = runpy.run_path(str(Path(self.root, BINARY)))
        files = [f"{PACKAGE}/{binary[name]}" for name in ("PROGRAM", "MARK")]
        why = binary["build"](str(self.root))
        if why is not None:
            for name in files:
                Path(self.root, name).unlink(missing_ok=True)
            if NEEDED:
                self.app.abort(why)
            self.app.display_warning(f"{why}\naviato-init is left out")
            return False
        build_data["artifacts"] += [f"/{name}" for name in files]
        return True

    def library(self, build_data: dict[str, Any]) -> bool:
        """Whether the compiled part of the template is there."""
        compiling = runpy.run_path(str(Path(self.root, COMPILING)))
        why = compiling["compile_library"](str(Path(self.root, PACKAGE)))
        if why is not None:
            Path(self.root, PACKAGE, compiling["LIBRARY"]).unlink(missing_ok=True)
            self.app.display_warning(f"{why}\nsandboxes will be made by Python alone, each some 1 ms slower")
            return False
        build_data["artifacts"].append(f"/{PACKAGE}/{compiling['LIBRARY']}")
        return True
