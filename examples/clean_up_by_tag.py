"""End every sandbox that has a tag, whoever made it.

Run it with `python examples/clean_up_by_tag.py`.
"""

import aviato
from aviato import Sandbox


def clean_up(tag: str) -> int:
    """How many there were."""
    found = Sandbox.list(tags=[tag]).result()
    aviato.results([sandbox.stop(missing_ok=True) for sandbox in found])  # side by side
    return len(found)


for number in range(5):
    Sandbox.run(tags=["experiment-a" if number < 3 else "experiment-b"], detached=True)
print(clean_up("experiment-a"), "of experiment-a ended")
print(len(Sandbox.list(tags=["experiment-b"]).result()), "of experiment-b live on")
print(clean_up("experiment-b"), "of experiment-b ended")
