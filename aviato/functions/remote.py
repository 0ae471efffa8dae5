"""RemoteFunction: a function whose calls run in sandboxes."""

from __future__ import annotations

import functools
from copy import copy
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from aviato.bridge.operation import OperationRef
from aviato.functions.wrapper import Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aviato.api.session import Session
    from aviato.functions.call import Call
    from aviato.functions.options import FunctionOptions
    from aviato.results import ProcessResult

P = ParamSpec("P")
T = TypeVar("T")


class FunctionCall(OperationRef[T]):
    """One call under way: a handle on what the function returns."""

    _call: Call

    def _settle(self, error: BaseException | None) -> None:
        self._call.over()

    @property
    def exec_result(self) -> ProcessResult | None:
        """What the call printed, how long it took and what it used; None before it has ended."""
        return self._call.exec_result


class RemoteFunction(Wrapper, Generic[P, T]):
    """A function whose calls run in a sandbox each; made by `@session.function()`.

    It keeps the name, documentation and signature of the function. Inside a sandbox it is the plain function again, so one
    that calls itself or another one does so there.

    What a call raises, from its handle:
        SandboxExecutionError: the function raised, exited or crashed; `exception_type` and `exception_message` say what it
            raised, `exec_result` what it printed, and the message has its traceback.
        SandboxCommandTimeoutError: it ran longer than `exec_timeout_seconds`.
        FunctionSerializationError: its result cannot be sent, or holds what a result may not hold.
    """

    __wrapped__: Callable[P, T]
    __name__: str
    __qualname__: str

    def __init__(self, session: Session, function: Callable[P, T], options: FunctionOptions) -> None:
        functools.update_wrapper(self, function)
        self._session = session
        self._options = options
        self._before: tuple[Any, ...] = ()

    def __get__(self, instance: Any, owner: type | None = None) -> RemoteFunction[..., T]:
        """In a class it is a method: the object is its first argument, and travels like the others."""
        if instance is None:
            return self
        bound = copy(self)
        bound._before = (*self._before, instance)
        return bound

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> FunctionCall[T]:
        """Call it in a fresh sandbox, which is stopped when the call is over; cancelling the handle kills it.

        Raises:
            TypeError: it does not take these arguments.
            FunctionSerializationError: an argument, or something that the function reads, cannot be sent; nothing was started.
        """
        return self._begin([(args, kwargs)])[0]

    __call__ = remote

    def map(self, arguments: Iterable[tuple[Any, ...]]) -> list[FunctionCall[T]]:
        """Call it once for each tuple of arguments, in parallel; handles in the same order.

        Raises:
            TypeError, FunctionSerializationError: as `remote`; no call was started.
        """
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        for one in arguments:
            if not isinstance(one, (tuple, list)):
                raise TypeError(f"map() takes a list of argument tuples, and got {one!r}: write ({one!r},)")
            calls.append((tuple(one), {}))
        return self._begin(calls)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it here, in this process."""
        return self.__wrapped__(*self._before, *args, **kwargs)

    def _begin(self, calls: list[tuple[Any, Any]]) -> list[FunctionCall[T]]:
        from aviato.functions.call import prepare

        calls = [((*self._before, *args), kwargs) for args, kwargs in calls]
        handles = []
        for call in prepare(self._session, self.__wrapped__, self._options, calls):
            handle: FunctionCall[T] = FunctionCall.__new__(FunctionCall)
            handle._call = call
            handle._state = call.state
            handle._start(call.run(), name=f"call {self.__name__}() in {call.sandbox_id}")
            handles.append(handle)
        return handles

    def __repr__(self) -> str:
        return f"<RemoteFunction {self.__module__}.{self.__qualname__}>"

    def __reduce__(self) -> Any:
        from aviato.functions.copying import reduced

        return reduced(self)
