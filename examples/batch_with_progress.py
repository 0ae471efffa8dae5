"""A long batch through at most four sandboxes at a time; how far it is shows as results come in.

Run it with `python examples/batch_with_progress.py`.
"""

import aviato
from aviato import AviatoError, Session

PROGRAMS = {
    **{f"square {n}": f"print({n} ** 2)" for n in range(10)},
    "a mistake": "print(1 / 0)",
    "too slow": "while True: pass",
}

wrong = []
with Session(max_concurrency=4) as session:
    # The sandboxes are let go at once: each makes room for the next when its command has ended.
    names = {
        session.sandbox().exec(["python", "-c", program], check=True, timeout_seconds=5): name
        for name, program in PROGRAMS.items()
    }
    for number, process in enumerate(aviato.as_completed(names), 1):
        try:
            process.result()
        except AviatoError as error:
            wrong.append(f"{names[process]}: {type(error).__name__}")
        if number % 4 == 0:
            print(f"{number} of {len(names)} done")
print("wrong:", ", ".join(sorted(wrong)))
