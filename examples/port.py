"""Reach a server program that runs in a sandbox."""

from __future__ import annotations

import urllib.request

from aviato import Sandbox

PAGE = b"hello from inside\n"


def main() -> None:
    with Sandbox(ports=[8000]) as sandbox:
        sandbox.write_file("/srv/index.html", PAGE).result()
        # The command ends at once; the server that it leaves behind lives as long as the sandbox.
        sandbox.exec(["sh", "-c", "cd /srv && python -m http.server 8000 > /dev/null 2>&1 &"]).result()
        url = sandbox.wait_for_port(8000).result()
        with urllib.request.urlopen(url) as response:
            print(response.read().decode(), end="")


if __name__ == "__main__":
    main()
