"""Runs inside, beside the driver: makes functions and classes from their source, where code objects would not load.

What it reads was written by `source.py`: definitions (text and place), and pickles in which functions, classes and modules
are references to them.
"""

import __future__

import ast
import importlib
import importlib.util
import io
import pickle
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FACTORY = "__make__"
MADE = "__made__"


class Source:
    """Everything that came as source in one call. Classes are made once, whichever part of the call brings them first."""

    def __init__(self) -> None:
        self._classes: dict[Any, Any] = {}
        self._modules: dict[str, Any] = {}

    def load(self, packed: bytes) -> "Any":
        """The value that was packed, with all it refers to."""
        record = pickle.loads(packed)
        return Part(self, record["definitions"]).load(record["values"], record["batches"])

    def namespace(self, name: str) -> "dict[str, Any]":
        """The globals of a module of the caller's, as far as they came along."""
        return self.module(name).__dict__  # type: ignore[no-any-return]

    def module(self, name: str) -> "Any":
        """A module of the caller's."""
        if name not in self._modules:
            module = types.ModuleType(name)
            if name == "__main__" or not is_here(name):
                # Decorators such as `dataclass` look their module up.
                sys.modules[name] = module
            self._modules[name] = module
        return self._modules[name]


def is_here(name: str) -> bool:
    """Whether the image has a module of this name itself."""
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except Exception:
        return False


class Part:
    """The function, or its arguments: definitions, and the values that belong to them."""

    def __init__(self, source: Source, definitions: "list[dict[str, Any]]") -> None:
        self._source = source
        self._definitions = definitions
        self._functions: dict[int, Any] = {}
        self._cells: dict[int, Any] = {}

    def load(self, values: bytes, batches: int) -> "Any":
        """Read the values, then fill in what functions need of them."""
        reader = self._reader(values)
        root = reader.load()
        for batch in [reader.load() for _ in range(batches)]:
            for number, (defaults, keyword_defaults, attributes) in batch["functions"].items():
                function = self._function(number)
                function.__defaults__, function.__kwdefaults__ = defaults, keyword_defaults
                function.__dict__.update(attributes)
            for number, content in batch["cells"].items():
                self._cell(number).cell_contents = content
            for module, names in batch["globals"].items():
                self._source.namespace(module).update(names)
        return root

    def _reader(self, packed: bytes) -> "Any":
        part = self

        class Reader(pickle.Unpickler):
            def persistent_load(self, reference: "Any") -> "Any":
                return part.resolve(*reference)

        return Reader(io.BytesIO(packed))

    def resolve(self, kind: str, what: "Any") -> "Any":
        """A function, class or module that a value refers to."""
        if kind == "module":
            return importlib.import_module(what)
        if kind == "own module":
            return self._source.module(what)
        return self._function(what) if kind == "function" else self._class(what)

    def _cell(self, number: int) -> "Any":
        if number not in self._cells:
            self._cells[number] = types.CellType()
        return self._cells[number]

    def _function(self, number: int) -> "Any":
        if number in self._functions:
            return self._functions[number]
        wanted = self._definitions[number]
        node = parse(wanted)
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        node.args.defaults, node.args.kw_defaults = [], [None] * len(node.args.kwonlyargs)
        last: Any = ast.Return(node)
        if not wanted["lambda"]:
            node.returns, node.decorator_list = None, []
            # Under its own name it would be a variable of the factory, which hides the global of that name.
            node.name = MADE
            last = ast.Return(ast.Name(MADE, ast.Load()))
        factory = ast.parse("def {}({}): pass".format(FACTORY, ", ".join(wanted["cells"])))
        factory.body[0].body = [last] if wanted["lambda"] else [node, last]  # type: ignore[attr-defined]
        for piece in (last, factory.body[0]):
            ast.copy_location(piece, node)
        self._import(wanted)
        namespace, made = self._source.namespace(wanted["namespace"]), {}  # type: ignore[var-annotated]
        namespace.setdefault("__builtins__", __builtins__)
        exec(compile_tree(factory, wanted), namespace, made)
        code = made[FACTORY](*[None] * len(wanted["cells"])).__code__.replace(co_name=wanted["name"])
        if hasattr(code, "co_qualname"):
            code = code.replace(co_qualname=wanted["qualname"])
        closure = tuple(self._cell(wanted["cells"][name]) for name in code.co_freevars)
        function = types.FunctionType(code, namespace, wanted["name"], None, closure)
        function.__qualname__, function.__module__ = wanted["qualname"], wanted["module"]
        function.__doc__ = wanted["doc"]
        self._functions[number] = function
        return function

    def _import(self, wanted: "dict[str, Any]") -> None:
        for reference in wanted["imports"]:
            self.resolve(*reference)

    def _class(self, number: int) -> "Any":
        wanted = self._definitions[number]
        key = wanted["module"], wanted["qualname"]
        if key not in self._source._classes:
            self._source._classes[key] = None
            self._import(wanted)
            namespace = self._source.namespace(wanted["module"])
            needs, parts = self._reader(wanted["needs"]).load()
            namespace.update(needs)
            for module, names in parts.items():
                self._source.namespace(module).update(names)
            tree = ast.Module([undecorated(parse(wanted), wanted["remote"])], [])
            made: dict[str, Any] = {}
            exec(compile_tree(tree, wanted), namespace, made)
            found = made[wanted["name"]]
            found.__qualname__ = wanted["qualname"]
            self._source._classes[key] = found
        found = self._source._classes[key]
        if found is None:
            raise ImportError("class {} is needed while it is being made".format(wanted["qualname"]))
        return found


def parse(wanted: "dict[str, Any]") -> "Any":
    """The syntax tree of a definition, at the place where the user wrote it."""
    text, line = wanted["text"], wanted["line"]
    if wanted["lambda"]:
        tree: Any = ast.parse("(" + text + ")", mode="eval")
        node, offset = tree.body, line - 1
    elif text[:1] in " \t\f":
        tree = ast.parse("if 1:\n" + text)
        node, offset = tree.body[0].body[0], line - 2
    else:
        tree = ast.parse(text)
        node, offset = tree.body[0], line - 1
    ast.increment_lineno(node, offset)
    return node


def undecorated(node: "Any", names: "list[str]") -> "Any":
    """A class statement in which these methods are plain functions: inside, remote functions are."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name in names:
            method.decorator_list = [
                one for one in method.decorator_list if isinstance(one, ast.Name) and one.id == "staticmethod"
            ]
    return node


def compile_tree(tree: "Any", wanted: "dict[str, Any]") -> "Any":
    """Code with the user's file name, under the `from __future__` imports of that file."""
    flags = 0
    for name in wanted["futures"]:
        flags |= getattr(getattr(__future__, name, None), "compiler_flag", 0)
    return compile(ast.fix_missing_locations(tree), wanted["file"], "exec", flags, True)
