"""What a user would take in aviato's place, on the same work in the same run.

`measure(rounds)` returns rows: who, its isolation, the work, what each round took, or why there is nothing. Every peer has an
environment of its own and a script below `scripts/` of at most 40 lines.
"""

from peers.catalogue import PEERS, WORKS, Peer, Work
from peers.measuring import Row, Sizes, measure

__all__ = ["PEERS", "WORKS", "Peer", "Row", "Sizes", "Work", "measure"]
