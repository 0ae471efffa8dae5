"""Finds installed packages late: looking for them is up to a quarter of a Python's start, and few programs need them.

What `site` does at the start is done when a module is asked for that the standard library does not have.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as type checkers take it, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

ELSEWHERE = ("java", "msvcrt", "nt", "org", "vms_lib", "winreg", "_overlapped", "_scproxy", "_winapi", "_winreg")
"""What the standard library itself asks for on other systems."""

AS_ANY = ("no_site", "isolated", "ignore_environment", "no_user_site", "safe_path")


class Late:
    """The last finder: what nobody else has may be among the packages."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """As importlib calls it."""
        if path is not None or name in ELSEWHERE or not self.open():
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find and find(name, path, target)
            if spec is not None:
                return spec
        return None

    def find_distributions(self, *context: Any) -> Iterator[Any]:
        """As importlib.metadata calls it."""
        if self.open():
            for finder in list(sys.meta_path):
                yield from getattr(finder, "find_distributions", lambda *_: ())(*context)

    def open(self) -> bool:
        """Find the packages; False if that was done before."""
        if self not in sys.meta_path:
            return False
        sys.meta_path.remove(self)
        import site

        site.main()
        return True


def leave_packages_for_later() -> None:
    """Be as any Python to code that does not look closely; nothing if this one has its packages."""
    if not sys.flags.no_site:
        return
    import _sitebuiltins
    import builtins

    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    builtins.help = _sitebuiltins._Helper()
    for name in ("copyright", "credits", "license"):
        setattr(builtins, name, _sitebuiltins._Printer(name, "Type %s() in a Python of your own." % name))
    # Interpreters that this one starts get its flags, and have nobody to find their packages later; and the user's packages
    # are found where nothing is isolated.
    names = [name for name in dir(sys.flags) if name[0] != "_" and isinstance(getattr(sys.flags, name), int)]
    values = {name: getattr(sys.flags, name) for name in names}
    sys.flags = type("flags", (tuple,), {**values, **dict.fromkeys(AS_ANY, 0)})(sys.flags)
    sys.meta_path.append(Late())
