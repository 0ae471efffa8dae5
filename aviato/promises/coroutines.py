"""The same by coroutines: a sandbox that is awaited, and AsyncClient."""

from __future__ import annotations

import asyncio

import pytest

import aviato
from aviato.promises.serving import Server


def test_an_awaited_sandbox(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operation's handle can be awaited on any loop."""
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)

    async def main() -> None:
        async with aviato.Sandbox(environment_variables={"A": "1"}) as sandbox:
            await sandbox.write_file("f", b"x")
            process = sandbox.exec(["sh", "-c", "cat; echo $A"], stdin=True)
            assert process.stdin is not None
            await process.stdin.write(b"from a coroutine\n")
            await process.stdin.close()
            assert [text async for text in process.stdout.lines()] == ["from a coroutine", "1"]
            assert (await process).returncode == 0 and await sandbox.read_file("f") == b"x"
            results = await asyncio.gather(*(sandbox.exec(["echo", str(number)]) for number in range(8)))
            assert [result.stdout for result in results] == [f"{number}\n" for number in range(8)]
            with pytest.raises(aviato.SandboxCommandTimeoutError):
                await sandbox.exec(["sleep", "60"], timeout_seconds=0.3)
        assert sandbox.status == "terminated"

    asyncio.run(main())


def test_the_client_of_coroutines(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """`AsyncClient` does the same without a thread; leaving it ends its sandboxes."""
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)

    async def main() -> None:
        async with aviato.AsyncClient() as client:
            one, two = await client.sandbox(), await client.sandbox()
            assert (await one.exec(["echo", "one"])).stdout == "one\n"
            await two.write_file("f", b"x")
            assert await two.read_file("f") == b"x"
            process = two.spawn(["cat"], stdin=True)
            await process.write_stdin(b"x\n")
            await process.close_stdin()
            assert [text async for text in process.stdout] == ["x\n"] and (await process).returncode == 0
            with pytest.raises(aviato.SandboxFileError):
                await one.read_file("f")
        async with aviato.AsyncClient() as client:
            again = await client.from_id(one.sandbox_id)
            await again.wait_until_complete()
            assert await again.get_status() == "terminated"

    asyncio.run(main())
