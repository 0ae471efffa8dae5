"""A server program in a sandbox, reached from outside through an exposed port.

Run it with `python examples/port.py`.
"""

import urllib.request

from aviato import Sandbox

with Sandbox(ports=[8000]) as sandbox:
    sandbox.write_file("/srv/index.html", b"hello from inside").result()
    # The command ends at once; the server that it leaves behind lives as long as the sandbox.
    sandbox.exec(["sh", "-c", "cd /srv && python -m http.server 8000 > /dev/null 2>&1 &"]).result()
    url = sandbox.wait_for_port(8000).result()
    with urllib.request.urlopen(url) as response:
        print(response.read().decode())
