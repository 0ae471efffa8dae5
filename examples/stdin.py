"""Input: given whole, or written while the command runs.

Run it with `python examples/stdin.py`.
"""

from aviato import Sandbox

with Sandbox() as sandbox:
    print(sandbox.exec(["wc", "-w"], stdin="three words here").result().stdout, end="")

    process = sandbox.exec(["python", "-u", "-c", "while True: print(eval(input()))"], stdin=True)
    answers = process.stdout.lines()
    for question in ("1 + 1", "2 ** 10"):
        process.stdin.writeline(question)
        print(question, "=", next(answers))
    process.stdin.close()
    print("returncode", process.wait())
