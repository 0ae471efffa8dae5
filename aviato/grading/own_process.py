"""What a test changes or watches in its own process, where a solution that runs in another has no part in it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_WATCHING = "watches its own process"
_CHANGING = "changes its own process"
_WRITING = "has files of its own"
_FIXTURES = {
    **dict.fromkeys(("capsys", "capfd", "capsysbinary", "capfdbinary", "caplog", "recwarn"), _WATCHING),
    **dict.fromkeys(("monkeypatch", "mocker"), _CHANGING),
    **dict.fromkeys(("tmp_path", "tmpdir", "tmp_path_factory", "tmpdir_factory"), _WRITING),
}
"""Of pytest, by their names."""
_CALLS = {
    **dict.fromkeys(("redirect_stdout", "redirect_stderr", "captured_stdout", "captured_stderr"), _WATCHING),
    **dict.fromkeys(("warns", "deprecated_call", "assertWarns", "assertWarnsRegex", "assertLogs", "assertNoLogs"), _WATCHING),
    **dict.fromkeys(("patch", "chdir", "putenv", "setrecursionlimit"), _CHANGING),
    **dict.fromkeys(("NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory", "mkdtemp", "mkstemp"), _WRITING),
}
"""By the last name of what is called."""
_PATCHES = ("patch.object", "patch.dict", "patch.multiple")
_SET = frozenset(("sys.stdin", "sys.stdout", "sys.stderr", "sys.argv", "os.environ"))


def use_of_own_process(node: ast.AST, given: Collection[str]) -> str | None:
    """What one node of a test does so, in words that follow "it"; None for all else.

    Args:
        node: of the test.
        given: what calls of the solution are given, as `ast.dump` has it: a file of such a name is written for it.
    """
    if isinstance(node, ast.arg) and node.arg in _FIXTURES:
        return _said(_FIXTURES[node.arg], node.arg)
    if isinstance(node, ast.Call):
        return _of_call(node, given)
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        return _of_target(node)
    return None


def _of_call(call: ast.Call, given: Collection[str]) -> str | None:
    name = ast.unparse(call.func)
    last = name.rpartition(".")[2]
    if name.endswith(_PATCHES):
        return _said(_CHANGING, name)
    if last == "catch_warnings" and any(keyword.arg == "record" for keyword in call.keywords):
        return _said(_WATCHING, name)
    if name == "open":
        modes = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        writes = any(isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+") for mode in modes)
        return _said(_WRITING, name) if writes and call.args and ast.dump(call.args[0]) in given else None
    return _said(_CALLS[last], name) if last in _CALLS else None


def _of_target(node: ast.Attribute | ast.Subscript) -> str | None:
    name = ast.unparse(node.value if isinstance(node, ast.Subscript) else node)
    if name in _SET or name.startswith(("getcontext().", "decimal.getcontext().")):
        return _said(_CHANGING, name)
    return None


def _said(what: str, name: str) -> str:
    return f"it {what} ({name}), and the solution runs in another one"
