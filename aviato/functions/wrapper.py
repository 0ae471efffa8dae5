"""What stands for a function whose calls run elsewhere, to those who look at functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Wrapper:
    """Has another function in it, which is what is meant inside.

    Attributes:
        __wrapped__: that function.
    """

    __wrapped__: Callable[..., Any]
