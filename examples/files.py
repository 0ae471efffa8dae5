"""Files into a sandbox and out again: one at a time, as a stream, and whole directories.

Run it with `python examples/files.py`.
"""

import tempfile
from pathlib import Path

from aviato import Sandbox, SandboxFileError

with Sandbox() as sandbox, tempfile.TemporaryDirectory() as folder:
    project = Path(folder) / "project"
    (project / "data").mkdir(parents=True)
    (project / "sum.py").write_text("print(sum(map(int, open('data/numbers'))))")
    sandbox.upload(project, "project").result()

    sandbox.write_file_streaming("project/data/numbers", (b"%d\n" % n for n in range(100_000))).result()
    done = sandbox.exec(["sh", "-c", "python3 sum.py > result"], cwd="/workspace/project", check=True).result()
    print(sandbox.read_file("project/result").result())
    print(sum(len(chunk) for chunk in sandbox.read_file_streaming("project/data/numbers")), "bytes of numbers")

    for info in sandbox.list_files("project").result():
        print(info.type, Path(info.path).name, info.size_bytes if info.type == "file" else "")
    sandbox.download("project", Path(folder) / "back").result()
    print(sorted(path.name for path in (Path(folder) / "back").rglob("*")))

    sandbox.remove("project", recursive=True).result()
    try:
        sandbox.read_file("project/result").result()
    except SandboxFileError as error:
        print(error.filepath, error.reason)
