"""Python's larger packages: numbers, notebooks, environments."""

from __future__ import annotations

from tests.ordinary.table import Row, table

NO_ROOT = "Without namespaces"
TORCH = ("torch==2.13.0", "numpy")
NOTEBOOKS = ("nbconvert", "nbclient", "ipykernel")
UV = ("uv",)

THREADS = """
import torch
torch.set_num_threads(8); torch.manual_seed(0)
a = torch.randn(512, 512); b = (a @ a.T).diagonal()
print(torch.allclose(b, (a * a).sum(1), rtol=1e-3), torch.get_num_threads())
"""
LEARNS = """
import torch
torch.manual_seed(0); torch.set_num_threads(2)
model = torch.nn.Linear(4, 1); steps = torch.optim.Adam(model.parameters(), 0.05)
x = torch.randn(256, 4); y = x.sum(1, keepdim=True)
for _ in range(300): steps.zero_grad(); loss = ((model(x) - y) ** 2).mean(); loss.backward(); steps.step()
print(loss.item() < 0.01)
"""
LOADS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    data = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=8, num_workers=2)
    print(sum(batch.sum().item() for batch, in data))
"""
GROUPS = """
import os, torch, torch.distributed as d, torch.multiprocessing as m
def work(rank):
    d.init_process_group("gloo", init_method="file://" + os.path.abspath("own"), rank=rank, world_size=2)
    t = torch.tensor([rank + 1.0]); d.all_reduce(t)
    if rank == 0: print(t.item())
    d.destroy_process_group()
if __name__ == "__main__": m.spawn(work, nprocs=2)
"""
NOTEBOOK = """
python3 - <<'P'
import nbformat.v4 as n, nbformat
nbformat.write(n.new_notebook(cells=[n.new_code_cell("x = 6 * 7"), n.new_code_cell("print('found', x)")]), "own.ipynb")
P
"""
SHARE = (
    "export JUPYTER_PATH=$(python3 -c 'import nbconvert, os; "
    "print(os.path.dirname(os.path.dirname(nbconvert.__file__)))')/share/jupyter; "
)
WHEEL = """
mkdir -p p/src/own_x; echo 'def main(): print("from uv")' > p/src/own_x/__init__.py
python3 - <<'P'
import zipfile
with zipfile.ZipFile("own_x-1.0-py3-none-any.whl", "w") as made:
    made.writestr("own_x.py", "def main(): print('from uv')\\n")
    made.writestr("own_x-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: own-x\\nVersion: 1.0\\n")
    made.writestr("own_x-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    made.writestr("own_x-1.0.dist-info/entry_points.txt", "[console_scripts]\\nown-x = own_x:main\\n")
    made.writestr("own_x-1.0.dist-info/RECORD", "own_x.py,,\\n")
P
uv() { python3 -m uv "$@"; }
export UV_OFFLINE=1 UV_PYTHON_DOWNLOADS=never
"""
PREFIX = """
V=$(/usr/bin/python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])'); mkdir -p own/bin own/lib
cp $(readlink -f /usr/bin/python3) own/bin/python; cp -r /usr/lib/$V own/lib/; mkdir -p own/etc/conda/activate.d
export CONDA_PREFIX=$PWD/own PATH=$PWD/own/bin:$PATH; hash -r
python -c 'import sys, os, json; print(sys.prefix == os.environ["CONDA_PREFIX"], json.__file__.startswith(sys.prefix))'
"""

ROWS = [
    Row("an interpreter in a prefix of its own, as conda's", PREFIX, "True True", bare=True),
    Row(
        "numpy",
        "python3 -c 'import numpy as n; a = n.random.default_rng(0).random((300, 300)); print(n.allclose(a @ "
        "n.linalg.inv(a), n.eye(300)), n.fft.fft(n.ones(8))[0].real)'",
        "True 8.0",
        packages=("numpy",),
        bare=True,
    ),
    Row(
        "numpy, files that are mapped",
        'python3 -c \'import numpy as n; m = n.memmap("own", mode="w+", shape=1 << 20); m[:] = 1; m.flush(); '
        'print(n.memmap("own").sum())\'',
        "1048576",
        packages=("numpy",),
        bare=True,
    ),
    Row(
        "torch, many threads",
        f"cat > a.py <<'E'{THREADS}E\npython3 a.py",
        "True 8",
        packages=TORCH,
        bare=True,
        timeout_seconds=300,
    ),
    Row(
        "torch, what it learns",
        f"cat > a.py <<'E'{LEARNS}E\npython3 a.py",
        "True",
        packages=TORCH,
        bare=True,
        timeout_seconds=300,
    ),
    Row(
        "torch, workers that load",
        f"cat > a.py <<'E'{LOADS}E\npython3 a.py",
        "2016.0",
        packages=TORCH,
        bare=True,
        timeout_seconds=300,
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row(
        "torch, two processes that add up",
        f"cat > a.py <<'E'{GROUPS}E\npython3 a.py 2> said || cat said",
        "3.0",
        packages=TORCH,
        bare=True,
        timeout_seconds=300,
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row(
        "a notebook is executed",
        NOTEBOOK + "python3 -m nbconvert --to notebook --execute --output done own.ipynb 2> log || cat log; grep -o "
        "'found 42' done.ipynb",
        "found 42",
        packages=NOTEBOOKS,
        bare=True,
        timeout_seconds=300,
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row(
        "a notebook as a page",
        SHARE + NOTEBOOK + "python3 -m nbconvert --to html own.ipynb 2> log || cat log; grep -c '<html' own.html",
        "1",
        packages=NOTEBOOKS,
        timeout_seconds=300,
    ),
    Row(
        "a kernel of Jupyter's, asked by its client",
        "cat > a.py <<'E'\nfrom jupyter_client.manager import start_new_kernel\nm, c = "
        "start_new_kernel(kernel_name='python3')\nr = c.execute_interactive('print(6 * 7)', "
        "timeout=120)\nc.stop_channels(); m.shutdown_kernel(now=True)\nE\npython3 a.py",
        "42",
        packages=NOTEBOOKS,
        bare=True,
        timeout_seconds=300,
        differs={"landlock": None},
        guide=NO_ROOT,
    ),
    Row(
        "uv, an environment and a package",
        WHEEL + "uv venv -q there; uv pip install -q --python there ./own_x-1.0-py3-none-any.whl; there/bin/own-x; "
        "uv pip list -q --python there | grep -c own-x",
        "from uv\\s+1",
        packages=UV,
    ),
    Row(
        "uv, a project",
        WHEEL
        + "mkdir q; cd q; uv init -q --bare --name q; uv add -q ../own_x-1.0-py3-none-any.whl; uv run -q own-x; ls uv.lock",
        "from uv\\s+uv.lock",
        packages=UV,
    ),
    Row(
        "uv, for the system",
        WHEEL + "uv pip install -q --system --break-system-packages ./own_x-1.0-py3-none-any.whl && own-x",
        "from uv",
        differs={"landlock": None},
        guide=NO_ROOT,
        packages=UV,
    ),
]

test_a_command = table(ROWS, always=len(ROWS))
