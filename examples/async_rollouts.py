"""Many rollouts at once with `await`: each has a sandbox of its own and several turns in it.

Run it with `python examples/async_rollouts.py`.
"""

import asyncio

from aviato import Session

TURNS = ["echo 1 > state", "echo $(($(cat state) * 2)) > state", "cat state"]


async def rollout(session: Session, number: int) -> str:
    """What the last turn of one episode printed; files stay from turn to turn."""
    sandbox = session.sandbox(tags=[f"rollout-{number}"])
    for turn in TURNS:
        result = await sandbox.exec(["sh", "-c", turn], timeout_seconds=30)
    return result.stdout.strip()


async def main() -> None:
    async with Session() as session:
        print(await asyncio.gather(*(rollout(session, number) for number in range(8))))


asyncio.run(main())
