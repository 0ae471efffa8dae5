"""End what was detached and forgotten: everything with a tag that is older than it should be.

Run it with `python examples/old_sandboxes.py`.
"""

import datetime
import time

from aviato import Sandbox

OLD = datetime.timedelta(seconds=1)


def old_sandboxes(tag: str) -> list[Sandbox]:
    now = datetime.datetime.now(datetime.UTC)
    return [sandbox for sandbox in Sandbox.list(tags=[tag]).result() if sandbox.created_at and now - sandbox.created_at > OLD]


Sandbox.run(tags=["nightly"], annotations={"made-for": "Monday"}, detached=True)
time.sleep(OLD.total_seconds() + 0.1)
young = Sandbox.run(tags=["nightly"], annotations={"made-for": "Tuesday"}, detached=True).wait()

for sandbox in old_sandboxes("nightly"):
    sandbox.stop(missing_ok=True).result()
    print("ended the one made for", sandbox.annotations["made-for"])
print("the young one is", young.get_status())
young.stop().result()
