"""Compiles `aviato-init`, the program that is process 1 of sandboxes, by cargo."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "aviato"
BINARY = f"{PACKAGE}/server/backends/local/binary.py"


class CustomBuildHook(BuildHookInterface):
    """Adds it to a wheel, which is for one platform then, and puts it into the tree of an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling. Elsewhere than on Linux there are clients alone, and nothing to compile."""
        if self.target_name != "wheel" or sys.platform != "linux":
            return
        binary = runpy.run_path(str(Path(self.root, BINARY)))
        files = [f"{PACKAGE}/{binary[name]}" for name in ("PROGRAM", "MARK")]
        why = binary["build"](str(self.root))
        if why is not None:
            for name in files:  # What cannot be made anew fits no longer.
                Path(self.root, name).unlink(missing_ok=True)
            self.app.abort(why)
        build_data["artifacts"] += [f"/{name}" for name in files]
        # It is static: the C library of the machine matters not.
        machine = os.uname().machine
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_17_{machine}.musllinux_1_1_{machine}"
