"""What is closed at the end of a `with` or an `async with`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from aviato.log import logger

if TYPE_CHECKING:
    from types import TracebackType

    from aviato.bridge.operation import OperationRef


class Closing:
    """Closed with the block; where that fails after another error, it is said in the log."""

    if TYPE_CHECKING:

        def close(self) -> OperationRef[None]:
            """End it."""

    @property
    def _ends_here(self) -> bool:
        """Whether the end of a block in this process is its end; in a forked child it may be left to the parent."""
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._ends_here:
            return
        try:
            self.close().result()
        except Exception as failure:
            self._failed_too(error, failure)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ends_here:
            return
        try:
            await self.close()
        except Exception as failure:
            self._failed_too(error, failure)

    def _failed_too(self, error: BaseException | None, failure: Exception) -> None:
        if error is None:
            raise failure
        logger.warning("closing the %s failed as well: %s", type(self).__name__.lower(), failure)
