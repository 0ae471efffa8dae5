"""Runs a test source as the driver in a sandbox does: in the module of the code, with marks, and collected where it says so.

Usage: python driven.py COLLECT_PY < {"code", "source", "kind", "counts_checks", "already_run"} as JSON; prints the verdict.
"""

import builtins
import json
import sys
import types


def verdict(job: dict) -> str:
    tool = {"__name__": "aviato_collect"}
    with open(sys.argv[1], encoding="utf-8") as file:
        exec(compile(file.read(), "collect.py", "exec"), tool)
    reached = []
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    names = module.__dict__
    names["__builtins__"] = builtins

    def mark(value=None):
        reached.append(1)
        return value

    names["__aviato_checked__"] = mark
    exec(compile(job["code"], "solution.py", "exec"), names)
    before = dict(names)
    try:
        exec(compile(job["source"], "test_1", "exec"), names)
        if job["kind"] != "statements":
            tool["collect"](job["kind"], names, before, job["already_run"])
    except tool["NothingPassed"] as error:
        return error.status
    except ModuleNotFoundError as error:
        return f"no {error.name}"
    except AssertionError as error:
        return f"failed: {error}"
    except SystemExit:
        return "ended_early"
    except BaseException as error:
        if tool["skip_reason"](error) is not None:
            return "skipped"
        return f"failed: {type(error).__name__}: {error}"
    return "passed" if reached or not job["counts_checks"] else "not_run"


if __name__ == "__main__":
    found = verdict(json.load(sys.stdin))
    print("\n" + found.split("\n")[0], flush=True)
