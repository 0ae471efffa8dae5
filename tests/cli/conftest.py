"""The command line in this process, against a real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from aviato.cli.main import main


class Done(NamedTuple):
    """What a command line came to."""

    status: int
    out: str
    err: str


@pytest.fixture
def aviato_cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """`aviato …`, without a server unless AVIATO_BASE_URL names one."""

    def run(*arguments: str) -> Done:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out, err)

    return run
