"""Names are found also where no thread can be had any more: at the end of the interpreter."""

import subprocess
import sys

PROGRAM = """
import asyncio, atexit, concurrent.futures.thread, socket
from aviato.transport.aiohttp_session import Resolver

@atexit.register
def late():
    async def main():
        try:
            await asyncio.to_thread(print, "never")
        except RuntimeError:
            return await Resolver().resolve("localhost", 80, socket.AF_INET)
    print([(one["host"], one["port"]) for one in asyncio.run(main())])
"""


def test_at_the_interpreter_s_end():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=250, check=False)
    assert (done.stdout, done.stderr) == ("[('127.0.0.1', 80)]\n", "")
