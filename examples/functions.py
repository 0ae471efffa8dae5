"""A function of yours whose calls run in sandboxes, side by side.

Run it with `python examples/functions.py`.
"""

from dataclasses import dataclass

from aviato import SandboxExecutionError, Serialization, Session

session = Session()
TARGET = 24


@dataclass
class Score:
    expression: str
    right: bool


@session.function(serialization=Serialization.PICKLE, result_types=[Score], exec_timeout_seconds=10)
def score(expression: str) -> Score:
    return Score(expression, eval(expression) == TARGET)  # written by a model: not to be run here


with session:
    for call in score.map([("4 * 6",), ("4 + 6",), ("4 / 0",)]):
        try:
            print(call.result())
        except SandboxExecutionError as error:
            print("raised", error.exception_type)
    print(score.local("3 * 8"), "without a sandbox")
