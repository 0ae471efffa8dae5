"""A key for code inside, that the caller only names: no listing, log or record has its value.

Run it with `AVIATO_SECRET_HF_TOKEN=hf_… python examples/use_a_secret.py`.
"""

from aviato import AviatoValidationError, Sandbox, Secret

LENGTH = ["python", "-c", "import os; print(len(os.environ.get('HF_TOKEN', '')), 'characters')"]

token = Secret(store="env", name="HF_TOKEN")
with Sandbox(secrets=[token]) as sandbox, Sandbox() as another:
    print("here:", sandbox.exec(LENGTH).result().stdout, end="")
    print("in another sandbox:", another.exec(LENGTH).result().stdout, end="")

try:
    Sandbox.run(secrets=[Secret(store="env", name="NO_SUCH_TOKEN")])
except AviatoValidationError as error:
    print("refused:", error.field_violations["secrets"].rpartition(" ")[2])
