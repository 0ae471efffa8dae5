"""What a grader's own tools load, or look for in modules, without being asked for it, and where no result may lie."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from aviato.grading.inside.paths import DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Container

_LOADED_BY_ITSELF = frozenset(
    (
        *("sitecustomize", "usercustomize", "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"),
        *("pyproject.toml", "tox.ini", "setup.cfg", ".bashrc", ".profile", ".bash_profile", "ld.so.preload", "pyvenv.cfg"),
    )
)
_PACKAGES = frozenset(("site-packages", "dist-packages"))
TOOLS = frozenset(("aviato_solution", "pytest", "_pytest", "pluggy", "hypothesis", "aviato"))
"""Modules that no result may stand in the place of."""
FRAMEWORKS = (
    *("load_tests", "setUpModule", "tearDownModule", "setup_module", "teardown_module", "setup_function", "teardown_function"),
    *("pytest_plugins", "pytestmark", "pytest_generate_tests"),
)
"""Names that pytest and unittest look for in any package, and in files that may have tests."""
NOSE = ("setup", "teardown")
"""Likewise, until pytest 8, in files that may have tests."""
_SYSTEM = (
    *("/proc", "/sys", "/dev", "/run", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/.aviato", DIRECTORY),
    *("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/usr/local/bin", "/usr/local/lib", "/root/.local"),
)
LOADED_CODE = (".pyc", ".pyo", ".so", ".pyd", ".egg", ".whl")
"""Ends of names of code that a Python loads into its own process as it is."""


def is_of_the_system(path: str) -> bool:
    """Whether a path lies where the sandbox's own programs and settings do."""
    return f"{path}/".startswith(tuple(f"{folder}/" for folder in _SYSTEM))


def is_loaded_by_itself(path: str, packages: Container[str] = ()) -> bool:
    """Whether a grader's tools would load this file without being asked for it.

    Args:
        path: of a result.
        packages: directories that are packages whatever the policy did: a `json.py` in one of them is `pkg.json`, and hides
            nothing.
    """
    parts = path.split("/")
    name = parts[-1]
    stem = name.split(".")[0]
    if stem in _LOADED_BY_ITSELF or name in _LOADED_BY_ITSELF or name.endswith(".pth") or not _PACKAGES.isdisjoint(parts):
        return True
    if name.startswith("test") and name.endswith(".txt"):
        return True  # pytest runs what such a file says.
    module = parts[-2] if name == "__init__.py" and len(parts) > 1 else stem
    hides = name.endswith(".py") and (module in sys.stdlib_module_names or module in TOOLS)
    owner = parts[:-2] if name == "__init__.py" else parts[:-1]
    return hides and not any("/".join(owner[:at]) in packages for at in range(len(owner), 0, -1))
