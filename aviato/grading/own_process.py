"""What a test changes, watches or makes where it runs: a solution in another process, and another sandbox, sees none of it.

What is set for a whole process and is plain data crosses with calls (`inside/process_state.py`); all else is found here.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_WATCHING = "watches its own process"
_CHANGING = "changes its own process"
_WRITING = "has files of its own"
_SERVING = "has sockets of its own"
_FIXTURES = {
    **dict.fromkeys(("capsys", "capfd", "capsysbinary", "capfdbinary", "caplog", "recwarn"), _WATCHING),
    **dict.fromkeys(("monkeypatch", "mocker"), _CHANGING),
    **dict.fromkeys(("tmp_path", "tmpdir", "tmp_path_factory", "tmpdir_factory"), _WRITING),
}
"""Of pytest, by their names."""
_CALLS = {
    **dict.fromkeys(("redirect_stdout", "redirect_stderr", "captured_stdout", "captured_stderr", "addHandler"), _WATCHING),
    **dict.fromkeys(("warns", "deprecated_call", "assertWarns", "assertWarnsRegex", "assertLogs", "assertNoLogs"), _WATCHING),
    **dict.fromkeys(("NamedTemporaryFile", "TemporaryFile", "TemporaryDirectory", "mkdtemp", "mkstemp"), _WRITING),
    "write_text": _WRITING,
    "write_bytes": _WRITING,
}
"""By the last name of what is called."""
_PATCHES = ("patch.object", "patch.dict", "patch.multiple")
_CHANGED = ("os.environ", "os.environb", "sys.argv", "sys.stdin", "sys.stdout", "sys.stderr")
"""What a test may not set, nor an item of it, nor call one of these of it:"""
_CHANGERS = frozenset(("append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"))
_FULL = {
    **{f"{owner}.{name}": _CHANGING for owner in _CHANGED[:3] for name in _CHANGERS},
    **dict.fromkeys(("os.chdir", "os.fchdir", "os.putenv", "contextlib.chdir"), _CHANGING),
    **dict.fromkeys(("patch", "mock.patch", "unittest.mock.patch"), _CHANGING),
    **dict.fromkeys(("os.umask", "os.unsetenv", "locale.setlocale", "sys.modules.setdefault", "sys.modules.update"), _CHANGING),
    **dict.fromkeys(("os.mkdir", "os.makedirs", "os.symlink", "os.link", "os.mkfifo", "os.rename", "os.replace"), _WRITING),
    **dict.fromkeys(("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree", "shutil.move"), _WRITING),
    **dict.fromkeys(("numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt"), _WRITING),
    **dict.fromkeys(("http.server.HTTPServer", "http.server.ThreadingHTTPServer", "asyncio.start_server"), _SERVING),
    **dict.fromkeys(("asyncio.start_unix_server", "socket.socket", "socket.create_server", "socket.socketpair"), _SERVING),
    **{f"socketserver.{kind}Server": _SERVING for kind in ("TCP", "UDP", "ThreadingTCP", "ThreadingUDP", "UnixStream")},
}
"""By the whole name of what is called."""
_OF_DATACLASSES = frozenset(f"dataclasses.{name}" for name in ("asdict", "astuple", "replace", "fields", "is_dataclass"))
_OF_THE_INTERPRETER = frozenset(("sys.path", "sys.dont_write_bytecode", "sys.tracebacklimit"))
"""What may be set in a module, since no result of a solution comes of it."""
_OF_LIBRARIES = frozenset(("PYTHONHASHSEED", "MPLBACKEND", "TF_CPP_MIN_LOG_LEVEL", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"))
_OF_LIBRARIES |= frozenset(("TOKENIZERS_PARALLELISM", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_ENABLE_ONEDNN_OPTS"))
"""Variables of the environment by which no result is another."""
_OPENERS = frozenset(
    ("open", "io.open", "codecs.open", "gzip.open", "bz2.open", "lzma.open", "tarfile.open", "zipfile.ZipFile")
)
_LOOKS = frozenset(("os.path.exists", "os.path.isfile", "os.path.isdir", "os.path.getsize", "os.stat", "os.listdir"))
_LOOKS |= frozenset(("os.remove", "os.unlink", "os.rmdir", "shutil.rmtree"))
_PATHS = frozenset(("pathlib.Path", "pathlib.PosixPath"))
_PATH_WRITERS = frozenset(("mkdir", "touch", "symlink_to", "hardlink_to", "rename"))
_PATH_LOOKS = frozenset(("exists", "is_file", "is_dir", "unlink", "rmdir", "stat", "iterdir"))


class OwnProcess:
    """Looks at the nodes of a test that calls a solution.

    Args:
        tree: of the test.
        calls: those of the solution in it.
        given: values that these are given.
        files: paths that are there for the test and for the solution: of others that a test looks at only the solution can
            have made them. None if there may be any.
    """

    def __init__(
        self, tree: ast.AST, calls: Collection[ast.Call], given: Collection[ast.expr], files: Collection[str] | None
    ) -> None:
        self._names: dict[str, str] = {}
        """Of what is imported, by the name that it has here."""
        self._modules: set[str] = set()
        self._values: dict[str, list[ast.expr]] = {}
        self._calls = set(calls)
        self._given = {ast.dump(value) for value in given}
        self._files = None if files is None else {part for path in files for part in _and_parents(path)}
        made_for_effect = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.split(".")[0]
                    self._names[alias.asname or first] = alias.name if alias.asname else first
                    self._modules.add(alias.asname or first)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self._values.setdefault(target.id, []).append(node.value)
            elif isinstance(node, ast.Expr) and node.value in self._calls:
                made_for_effect.add(node.lineno)
        self._first_effect = min(made_for_effect, default=None)

    def why(self, node: ast.AST) -> str | None:
        """What a node does so, in words that follow "it"; None for all else."""
        if isinstance(node, ast.arg) and node.arg in _FIXTURES:
            return _said(_FIXTURES[node.arg], node.arg)
        if isinstance(node, ast.Call):
            return self._of_call(node) or self._of_file(node)
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            return self._of_target(node)
        return None

    def _of_call(self, call: ast.Call) -> str | None:
        name, last = self._full(call.func), self._last(call.func)
        if isinstance(call.func, ast.Attribute) and self._is_object(call.func.value):
            return None
        if name in _OF_DATACLASSES and call.args and self._is_object(call.args[0]):
            return f"it asks {name}() of what the solution gives, which is in another process"
        if what := _FULL.get(name) or _CALLS.get(last):
            return _said(what, ast.unparse(call.func))
        if name.endswith(_PATCHES) or (last in ("setattr", "delattr") and self._is_module(_first(call))):
            return _said(_CHANGING, ast.unparse(call.func))
        if last == "catch_warnings" and any(keyword.arg == "record" for keyword in call.keywords):
            return _said(_WATCHING, ast.unparse(call.func))
        if name == "logging.basicConfig" and any(self._is_of_log(each) for each in call.keywords):
            return _said(_WATCHING, name)
        if name in ("warnings.simplefilter", "warnings.filterwarnings") and _constant(_first(call)) == "error":
            return _said(_CHANGING, name)
        return None

    def _of_target(self, node: ast.Attribute | ast.Subscript) -> str | None:
        of = node.value if isinstance(node, ast.Subscript) else node
        name = self._full(of)
        if name == "os.environ" and isinstance(node, ast.Subscript) and _constant(node.slice) in _OF_LIBRARIES:
            return None
        if name in _CHANGED or (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and name == "sys.modules"):
            return _said(_CHANGING, ast.unparse(of))
        if isinstance(node, ast.Attribute) and self._is_module(node.value) and name not in _OF_THE_INTERPRETER:
            return _said(_CHANGING, ast.unparse(of))
        return None

    def _is_object(self, node: ast.AST) -> bool:
        """Whether it is what a call of the solution gave: what its methods are called says nothing."""
        if isinstance(node, ast.Name):
            values = self._values.get(node.id, [])
            return bool(values) and all(value in self._calls for value in values)
        return node in self._calls

    def _is_of_log(self, keyword: ast.keyword) -> bool:
        """Whether it says where the log goes, and not to where it goes anyhow."""
        is_standard = keyword.arg == "stream" and self._full(keyword.value) in ("sys.stdout", "sys.stderr")
        return keyword.arg in ("stream", "handlers", "filename") and not is_standard

    # -- files

    def _of_file(self, call: ast.Call) -> str | None:
        name, first = self._full(call.func), _first(call)
        if isinstance(call.func, ast.Attribute) and (path := self._path(call.func.value)) is not None:
            last = call.func.attr
            if last in _PATH_WRITERS or (last == "open" and _writes(call, 0)):
                return _said(_WRITING, ast.unparse(call.func))
            return self._of_look(call, _first(path), last in _PATH_LOOKS)
        if name == "sqlite3.connect":
            return None if self._text(first) == ":memory:" else _said(_WRITING, name)
        if name in _OPENERS and _writes(call, 1):
            return None if self._text(first) == "/dev/null" or self._full(first) == "os.devnull" else _said(_WRITING, name)
        return self._of_look(call, first, name in _LOOKS) if name in _LOOKS or name in _OPENERS else None

    def _of_look(self, call: ast.Call, first: ast.expr | None, looks: bool) -> str | None:
        """Whether it looks for a file that only the solution can have made."""
        text = self._text(first)
        if (
            text is None
            or self._files is None
            or text.startswith(("/", "~"))
            or text.rstrip("/") in self._files
            or text in ("", ".", "..")
        ):
            return None
        is_given = first is not None and ast.dump(first) in self._given
        is_later = self._first_effect is not None and call.lineno > self._first_effect
        if is_given or looks or is_later:
            return f"it looks for the file {text!r}, and what the solution makes is in another sandbox"
        return None

    def _path(self, node: ast.AST) -> ast.Call | None:
        """The call that made the path that it is."""
        for each in self._resolved(node):
            if isinstance(each, ast.Call) and self._full(each.func) in _PATHS:
                return each
        return None

    # -- what a node is

    def _resolved(self, node: ast.AST) -> Iterator[ast.AST]:
        """It, or what a variable was assigned."""
        if isinstance(node, ast.Name) and node.id in self._values:
            yield from self._values[node.id]
        else:
            yield node

    def _text(self, node: ast.expr | None) -> str | None:
        """The text that it is, as it is written there or was assigned once."""
        found = list(self._resolved(node)) if node is not None else []
        value = _constant(found[0]) if len(found) == 1 else None
        return value if isinstance(value, str) else None

    def _is_module(self, node: ast.AST | None) -> bool:
        if not isinstance(node, ast.Name) or node.id in self._values:
            return False
        return node.id in self._modules or node.id == "__builtins__"

    def _last(self, node: ast.AST) -> str:
        return node.attr if isinstance(node, ast.Attribute) else self._full(node).rpartition(".")[2]

    def _full(self, node: ast.AST | None) -> str:
        """The name of what it is, with the module that it was imported from; empty for anything else."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            owner = self._full(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return ""


def seeded_in(sources: Iterable[str]) -> list[str]:
    """Which random numbers tests may seed: what goes before their calls is `process_state.heed_seeds`."""
    seeding = [source for source in sources if "seed" in source or "setstate" in source or "set_state" in source]
    return ["random", *(["numpy"] if any("numpy" in source for source in seeding) else [])] if seeding else []


def _writes(call: ast.Call, position: int) -> bool:
    """Whether a file is opened for more than reading; the mode is the argument of that position."""
    modes = [*call.args[position : position + 1], *(each.value for each in call.keywords if each.arg == "mode")]
    return any(set(str(_constant(mode))) & set("wax+") for mode in modes if isinstance(mode, ast.Constant))


def _first(call: ast.AST | None) -> ast.expr | None:
    return call.args[0] if isinstance(call, ast.Call) and call.args else None


def _constant(node: ast.AST | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _and_parents(path: str) -> Iterator[str]:
    parts = path.strip("/").split("/")
    yield from ("/".join(parts[:count]) for count in range(1, len(parts) + 1))


def _said(what: str, name: str) -> str:
    return f"it {what} ({name}), and the solution runs in another one"
