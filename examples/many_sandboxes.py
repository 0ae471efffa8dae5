"""Many sandboxes at once: a list comprehension starts them in parallel, a session stops them all.

Run it with `python examples/many_sandboxes.py`.
"""

import aviato
from aviato import SandboxDefaults, Session

with Session(SandboxDefaults(tags=["many"], exec_timeout_seconds=30)) as session:
    sandboxes = [session.sandbox(environment_variables={"N": str(n)}) for n in range(16)]
    program = b"import os; print(int(os.environ['N']) ** 2)"
    aviato.results([sandbox.write_file("program.py", program) for sandbox in sandboxes])
    results = aviato.results([sandbox.exec(["python", "program.py"]) for sandbox in sandboxes])
    print([int(result.stdout) for result in results])
    print(session.sandbox_count, "live")
print(session.sandbox_count, "live")
