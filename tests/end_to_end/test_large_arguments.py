"""What is too large for a sandbox is refused at the call, by its name, with what to do; what is just small enough works."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import aiohttp
import pytest

import aviato
from tests.matrices import deep

WORD = 131_071
MANY = {f"NAME_{number}": "x" * 100_000 for number in range(11)}
CONTROL = {f"NAME_{number}": "\x01" * 100_000 for number in range(2)}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a variable": (
        {"environment_variables": {"A": "x" * WORD}},
        r"environment_variables 'A' takes 131073 bytes .* 131071 .*file",
    ),
    "a variable of two bytes a character": (
        {"environment_variables": {"A": "é" * 65_536}},
        "environment_variables 'A' takes 131074",
    ),
    "a name": ({"environment_variables": {"A" * WORD: ""}}, "environment_variables 'AAA"),
    "many variables": ({"environment_variables": MANY}, r"environment_variables takes \d+ bytes in all; .* 1048576; .*file"),
    "variables of control characters": ({"environment_variables": CONTROL}, r"environment_variables takes 1\d+ bytes in all"),
    "2 MiB": ({"environment_variables": {f"A{n}": "x" * 100_000 for n in range(22)}}, "environment_variables takes"),
    "an argument": ({"command": "echo", "args": ["a", "x" * (WORD + 1)]}, "args has an argument 3 of 131072 bytes"),
    "many arguments": ({"command": "echo", "args": ["x" * 100_000] * 11}, "args takes 1100004 bytes in all"),
    "a program": ({"command": "x" * (WORD + 1)}, "args has an argument 1 of 131072 bytes"),
    "a working directory": ({"working_dir": "/" + "x" * 4095}, "working_dir has 4096 bytes"),
    "a tag": ({"tags": ["x" * 257]}, "tags"),
    "many tags": ({"tags": [f"tag-{number}" for number in range(257)]}, "tags are 257; .* 256"),
    "an annotation": ({"annotations": {"a": "x" * (256 << 10)}}, "annotations takes"),
    "an image": ({"container_image": "x" * 4097}, "container_image has 4097 characters"),
    "packages": ({"packages": "/" + "x" * 5000}, "packages"),
}
LARGEST: dict[str, dict[str, Any]] = {
    "a variable": {"environment_variables": {"A": "x" * (WORD - 2)}},
    "many variables": {"environment_variables": {f"A{number}": "x" * 104_800 for number in range(10)}},
    "a name": {"environment_variables": {"A" * (WORD - 1): ""}},
    "a directory": {"working_dir": "/" + "x/" * 2047},
    "tags": {"tags": [f"tag-{number}" for number in range(256)]},
    "annotations": {"annotations": {"a": "x" * ((256 << 10) - 1)}},
}
_QUICK = ("many variables", "2 MiB", "many tags")


@pytest.mark.parametrize("kind", REFUSED)
def test_it_is_refused_by_name(served: Any, kind: str) -> None:
    options, said = REFUSED[kind]
    with pytest.raises(aviato.AviatoValidationError, match=said) as caught:
        aviato.Sandbox(**options)
    assert not caught.value.is_infrastructure
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("kind", ["many variables", *deep(sorted(set(LARGEST) - {"many variables"}))])
def test_what_just_fits_works(session: aviato.Session, kind: str) -> None:
    options = dict(LARGEST[kind])
    sandbox = session.sandbox(**options)
    if kind == "a directory":
        assert sandbox.exec(["true"], cwd="/").result().returncode == 0
    else:
        assert sandbox.exec(["sh", "-c", "env | wc -c"]).result().returncode == 0


@pytest.mark.parametrize(
    "kind", ["2 MiB", *deep(["many arguments", "an annotation", "many tags", "an image", "a working directory"])]
)
def test_another_client_is_refused_too(served: Any, kind: str) -> None:
    options = dict(REFUSED[kind][0])
    if "container_image" in options:
        options["image"] = options.pop("container_image")
    body = {"sandbox_id": f"sb-{'0' * 26}", "detached": True, **options}

    async def post() -> tuple[int, str]:
        where = aiohttp.UnixConnector(served.url.removeprefix("unix://"))
        headers = {"Aviato-Wire": "1", "Content-Type": "application/json"}
        async with aiohttp.ClientSession(connector=where) as client:
            response = await client.post(
                "http://localhost/v1/sandboxes", data=io.BytesIO(json.dumps(body).encode()), headers=headers
            )
            return response.status, await response.text()

    status, answer = asyncio.run(post())
    assert (status, "VALIDATION" in answer) == (400, True), answer
