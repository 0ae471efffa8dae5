"""Compiles the part of the template that is C, where there is a compiler. Without one aviato does the same in Python."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "aviato"
COMPILING = f"{PACKAGE}/server/backends/local/compiling.py"


class CustomBuildHook(BuildHookInterface):
    """Adds the library to a wheel, which is for one platform then, and puts it into the tree of an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        if self.target_name != "wheel":
            return
        package = Path(self.root, PACKAGE)
        compiling = runpy.run_path(str(Path(self.root, COMPILING)))
        why = compiling["compile_library"](str(package))
        if why is not None:
            (package / compiling["LIBRARY"]).unlink(missing_ok=True)
            self.app.display_warning(f"{why}\nsandboxes will be made by Python alone, each some 1 ms slower")
            return
        build_data["artifacts"].append(f"/{PACKAGE}/{compiling['LIBRARY']}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
