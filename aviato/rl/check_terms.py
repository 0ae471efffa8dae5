"""What single expressions and statements of a test source mean: which are always true, which end it, which can fail."""

from __future__ import annotations

import ast
import builtins
import re
from typing import Any

FAILING = re.compile(r"(?i)(^|_|\b)(fail|failed|failure|die|abort|error|wrong|reject|panic)(_|$|\b)|_exit$")
FAILING_METHOD = re.compile(r"(?i)(^|_)(fail|die|abort)$|_exit$")
"""Of methods: `logger.error()` and `results.failed()` only say so."""
CHECKING = re.compile(r"(?i)assert|check|verify|validate|expect|ensure|test|raises|warns")
ASKING = re.compile(
    r"(is|has|are)_[a-z]\w*$|(all|any|is)?close$|approx$|(array_)?equals?$|eq$|(starts|ends)_?with$|"
    r"is(nan|inf|finite|digit|decimal|numeric|alpha|alnum|lower|upper|space|title|subset|superset|disjoint|instance|subclass)$"
)
"""Names of functions that answer yes or no, and whose answer must be asserted."""
PROCESSES = frozenset({"subprocess.run", "subprocess.call", "subprocess.Popen"})
ENDS = frozenset({"exit", "quit", "sys.exit", "os._exit", "SystemExit", "pytest.exit", "builtins.exit"})
SWALLOWERS = frozenset({"suppress", "contextlib.suppress"})
RAISERS = re.compile(r"(?i)(raises|warns|assert_?(raises|warns|logs|no_?logs)\w*)$")
OF_THE_INTERPRETER = frozenset(
    (
        *("sys.version_info", "sys.version", "sys.platform", "sys.byteorder", "sys.maxsize", "sys.implementation", "os.name"),
        *("platform.system", "platform.machine", "platform.python_version", "platform.python_implementation"),
    )
)
SURROUNDINGS = frozenset(
    {
        *(
            "atexit",
            "faulthandler",
            "gc",
            "logging",
            "multiprocessing",
            "os",
            "platform",
            "random",
            "signal",
            "sys",
            "threading",
        ),
        *("time", "warnings", "math", "re", "operator", "copy", "string", "itertools", "collections"),
    }
)
"""Modules of Python's own that say nothing of the code, and whose functions check nothing."""
LOSING = frozenset({"Thread", "Process", "Timer", "start_new_thread", "register", "signal", "finalize"})
"""What calls a function where nobody hears what it raises."""
SILENT = frozenset(
    name for name in dir(builtins) if not name.startswith("_") and name not in {"exec", "exit", "quit", "compile"}
) | {"pprint", "pprint.pprint", "doctest.testmod", "doctest.testfile", "doctest.run_docstring_examples", "np.random.seed",
     "numpy.random.seed", "torch.manual_seed", "np.set_printoptions", "np.seterr"}  # fmt: skip
MADE = frozenset({"iter", "map", "filter", "zip", "enumerate", "reversed", "object"})
"""Built-in functions whose value is true whatever it is of."""
CONTAINERS = (ast.List, ast.Dict, ast.Set, ast.Tuple, ast.ListComp, ast.DictComp, ast.SetComp, ast.Constant, ast.JoinedStr)


def dotted(node: ast.AST) -> str:
    """`a.b.c` of names and attributes; what stands for anything else is `?`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return dotted(node.func) if isinstance(node, ast.Call) else "?"


def called(node: ast.AST) -> str:
    """The dotted name that an expression calls, or nothing."""
    if isinstance(node, ast.Await):
        node = node.value
    return dotted(node.func) if isinstance(node, ast.Call) else ""


def truth(node: ast.expr, functions: frozenset[str] = frozenset()) -> bool | None:
    """Whether an expression is true, or false, whatever the code is; None where that depends on it.

    Args:
        node: the expression.
        functions: names of functions, classes and modules: true as such; with `()` behind them where what a call gives is.
    """
    if isinstance(node, ast.BoolOp):
        return _truth_of_several(node, functions)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = truth(node.operand, functions)
        return None if inner is None else not inner
    if isinstance(node, ast.NamedExpr):
        return truth(node.value, functions)
    if isinstance(node, ast.Name):
        return False if node.id == "TYPE_CHECKING" else node.id in functions or None
    if isinstance(node, ast.Attribute) and dotted(node) == "typing.TYPE_CHECKING":
        return False
    if isinstance(node, ast.IfExp):
        known = truth(node.test, functions)
        parts = (node.body, node.orelse) if known is None else (node.body,) if known else (node.orelse,)
        chosen = {truth(part, functions) for part in parts}
        return chosen.pop() if len(chosen) == 1 else None
    if isinstance(node, ast.Call):
        return _truth_of_call(node, functions)
    return _truth_of_value(node)


def _truth_of_several(node: ast.BoolOp, functions: frozenset[str]) -> bool | None:
    found = [truth(value, functions) for value in node.values]
    decisive = isinstance(node.op, ast.Or)
    if decisive in found:
        return decisive
    return None if None in found else not decisive


def _truth_of_value(node: ast.expr) -> bool | None:
    if isinstance(node, (ast.Lambda, ast.GeneratorExp)):
        return True
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        starred = any(isinstance(item, ast.Starred) for item in node.elts)
        plain = any(not isinstance(item, ast.Starred) for item in node.elts)
        return True if plain else None if starred else False
    if isinstance(node, ast.Dict):
        return True if any(key is not None for key in node.keys) else None if node.keys else False
    if isinstance(node, (ast.ListComp, ast.SetComp)):
        # `assert [f(x) == y for …]`: all() was meant.
        return True if _is_condition(node.elt) else None
    if isinstance(node, ast.JoinedStr):
        return True if any(isinstance(part, ast.Constant) and part.value for part in node.values) else None
    if isinstance(node, ast.Compare) and _has_names(node):
        return True if _asks_of_an_answer(node) else None
    return _truth_of_constants(node)


def _truth_of_call(node: ast.Call, functions: frozenset[str]) -> bool | None:
    name = called(node)
    if f"{name}()" in functions:
        return True
    if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
        return None
    given = node.args[0]
    if name == "bool":
        return truth(given, functions)
    if name in ("str", "repr") and _is_condition(given):
        return True
    literal = isinstance(given, (ast.List, ast.Tuple, ast.Set)) and not any(isinstance(one, ast.Starred) for one in given.elts)
    if name == "len" and literal:
        return truth(given)
    if name in ("all", "any") and literal:
        assert isinstance(given, (ast.List, ast.Tuple, ast.Set))
        found = [truth(one, functions) for one in given.elts]
        decisive = name == "any"
        return decisive if decisive in found else None if None in found else not decisive
    return True if name == "all" and _is_empty(given) else None


def _is_empty(node: ast.expr) -> bool:
    if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
        return truth(node.generators[0].iter) is False
    return truth(node) is False


def _is_condition(node: ast.expr) -> bool:
    return isinstance(node, (ast.Compare, ast.BoolOp)) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def _asks_of_an_answer(node: ast.Compare) -> bool:
    """`(f(2) == 4) is not None`, `(f(2) == 4) in (True, False)`: a comparison is one of these in any case."""
    if not _is_condition(node.left) or len(node.ops) != 1:
        return False
    right = node.comparators[0]
    if isinstance(node.ops[0], (ast.IsNot, ast.NotEq)):
        return isinstance(right, ast.Constant) and right.value is None
    both = {ast.dump(ast.Constant(True)), ast.dump(ast.Constant(False))}
    elements = right.elts if isinstance(right, (ast.Tuple, ast.List, ast.Set)) else []
    return isinstance(node.ops[0], ast.In) and both <= {ast.dump(one) for one in elements}


def _has_names(node: ast.Compare) -> bool:
    return any(isinstance(part, ast.Name) for part in ast.walk(node))


def _truth_of_constants(node: ast.expr) -> bool | None:
    """Of what has no name and no call in it."""
    if any(isinstance(part, (ast.Name, ast.Call, ast.Await, ast.Yield, ast.YieldFrom)) for part in ast.walk(node)):
        return None
    try:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return _compared(node.ops[0], ast.literal_eval(node.left), ast.literal_eval(node.comparators[0]))
        return bool(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return True  # Constants all the same: it says nothing of the code.


def _compared(operator: ast.cmpop, left: Any, right: Any) -> bool:
    if isinstance(operator, (ast.Eq, ast.Is)):
        return bool(left == right)
    if isinstance(operator, (ast.NotEq, ast.IsNot)):
        return bool(left != right)
    if isinstance(operator, (ast.In, ast.NotIn)):
        return (left in right) is isinstance(operator, ast.In)
    if isinstance(operator, (ast.Lt, ast.LtE)):
        return bool(left < right if isinstance(operator, ast.Lt) else left <= right)
    return bool(left > right if isinstance(operator, ast.Gt) else left >= right)


def is_main_guard(node: ast.expr) -> bool:
    """`__name__ == "__main__"`, either way round."""
    if not (isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)):
        return False
    sides = [node.left, node.comparators[0]]
    names = [side.id for side in sides if isinstance(side, ast.Name)]
    return names == ["__name__"] and any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)


def says_nothing_of_code(node: ast.expr) -> bool:
    """Whether an expression is about the interpreter alone, such as `sys.version_info >= (3, 8)`.

    What else `sys` and `os` have, such as files and environment, may be what the code did.
    """
    roots = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    known = [part for part in ast.walk(node) if isinstance(part, ast.Attribute) and dotted(part) in OF_THE_INTERPRETER]
    return bool(roots) and len(roots) == len(known)


def is_answer(call: ast.Call, name: str) -> bool:
    """Whether a call only gives an answer, which its caller throws away."""
    last = name.rpartition(".")[2]
    if name in PROCESSES:
        return not any(
            one.arg == "check" and not (isinstance(one.value, ast.Constant) and not one.value.value) for one in call.keywords
        )
    if re.fullmatch(r"(?i)raises|warns|assert_?(raises|warns)", last):
        return len(call.args) < 2  # It makes a context that nobody enters.
    return bool(ASKING.match(last))


def asks_a_runner(node: ast.expr) -> bool:
    """Whether an expression asks a result of unittest whether all went well."""
    return any(isinstance(part, ast.Attribute) and part.attr == "wasSuccessful" for part in ast.walk(node))


def raised(node: ast.Raise) -> str:
    """The name of what is raised; nothing for a bare `raise`."""
    if node.exc is None:
        return ""
    return dotted(node.exc).rpartition(".")[2]


def catches(handler: ast.ExceptHandler, name: str) -> bool:
    """Whether a handler takes an exception of that name."""
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(is_kind_of(name, dotted(kind).rpartition(".")[2]) for kind in types)


def is_kind_of(name: str, kind: str) -> bool:
    """Whether the exception called `name` is one called `kind`; of names that Python does not know, as far as can be told."""
    found, wanted = getattr(builtins, name, None), getattr(builtins, kind, None)
    if isinstance(found, type) and isinstance(wanted, type):
        return issubclass(found, wanted)
    return name == kind or kind in ("Exception", "BaseException")


def has_items(node: ast.expr) -> bool:
    """Whether a loop over it runs at least once."""
    if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Constant)):
        return truth(node) is True
    if called(node) == "range" and isinstance(node, ast.Call) and len(node.args) == 1:
        most = node.args[0]
        return isinstance(most, ast.Constant) and isinstance(most.value, int) and most.value > 0
    if called(node) in ("enumerate", "list", "sorted", "reversed") and isinstance(node, ast.Call) and node.args:
        return has_items(node.args[0])
    return False
