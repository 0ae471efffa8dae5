"""runc: a bundle with the machine's /usr, one container that sleeps and is entered by `runc exec`."""

import json
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

bundle = Path(tempfile.mkdtemp(prefix="runc-"))
for directory in ("usr", "etc", "proc", "dev", "sys", "tmp"):
    (bundle / "rootfs" / directory).mkdir(parents=True)
for link in ("bin", "lib", "lib64"):
    (bundle / "rootfs" / link).symlink_to(f"usr/{link}")
subprocess.run(["runc", "spec"], cwd=bundle, check=True)
config = json.loads((bundle / "config.json").read_text())
config["process"] |= {"terminal": False, "args": ["/bin/sleep", "infinity"]}
config["mounts"].append({"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]})
(bundle / "config.json").write_text(json.dumps(config))


def create():
    name = f"benchmark-{uuid.uuid4()}"
    subprocess.run(["runc", "run", "-d", "-b", bundle, name], stdin=-3, stdout=-3, check=True)
    return name


def run(name, argv):
    done = subprocess.run(["runc", "exec", name, *argv], stdin=-3, stdout=-1)
    return done.returncode, done.stdout


def stop(name):
    subprocess.run(["runc", "delete", "--force", name], check=True)


def close():
    shutil.rmtree(bundle)
