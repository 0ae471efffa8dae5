"""A sandbox that reaches listed hosts and no others: the rest is refused, with the reason.

Run it with `python examples/network.py`.
"""

from aviato import NetworkOptions, Sandbox

FETCH = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1]).status)
except OSError as error:
    print(error)
"""

with Sandbox(network=NetworkOptions(egress_mode=["example.com", "*.example.net:443"])) as sandbox:
    for url in ("http://example.org/", "http://api.example.net/", "http://169.254.169.254/latest/meta-data/"):
        print(sandbox.exec(["python", "-c", FETCH, url]).result().stdout, end="")
    print("reaches", *sandbox.applied_egress_mode)
