"""Starting our programs with a bare interpreter: packages by path, Ubuntu's profile. Standard library only; loaded by path."""

from __future__ import annotations

import os
import sys
import types

PACKAGES = (
    "aviato",
    "aviato.trees",
    "aviato.server",
    "aviato.server.backends",
    "aviato.server.backends.local",
)
RESTRICTION = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
PROFILE = "aviato"
ENTERED = "--in-profile"
FLAGS = ("-I", "-S", *(("-B",) if sys.dont_write_bytecode else ()))
"""Bytecode is kept as by any program: compiling takes 50 ms."""


def packages(root: str) -> None:
    """Make the packages known without running their `__init__`: what those import is not for here."""
    for name in PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(root, *name.split("."))]
        sys.modules[name] = package


def enter_profile() -> None:
    """Where AppArmor takes the capabilities out of user namespaces, start again under the profile that allows them.

    The profile is named and attached to no path, since a path would free every Python; who may write here may use it.
    """
    if ENTERED in sys.argv:
        return
    try:
        with open(RESTRICTION) as file:
            if file.read().strip() != "1":
                return
        with open("/proc/self/attr/apparmor/exec", "w") as file:
            file.write(f"exec {PROFILE}")
    except OSError:
        return
    try:
        # Not by its path: it may be a copy that nobody can change.
        os.execv("/proc/self/exe", [sys.executable, *FLAGS, *sys.argv, ENTERED])
    except OSError:
        return  # No such profile: go on as we are, and let the probe say what is missing.
