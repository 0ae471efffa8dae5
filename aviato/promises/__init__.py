"""What a user may rely on (the public contract of sandboxes) as tests, for a whole backend behind a real server.

Each check says in its docstring the promise that it holds. They use the public client and nothing else, so they say nothing of
how a backend is made. What the backend does not declare (`Capability`) has to be refused by name; what it names in
`unkept_promises` (`processes`, `paths`, `signals`, `mounted files`) is not asked of it; all else has to work. Sandboxes need
`sh`, the usual tools and `python3`. ::

    python -m aviato.promises --backend MODULE:CLASS
    python -m aviato.promises --server http://host:port

The first starts servers of its own, as `aviato serve --backend` with the `AVIATO_…` variables that are set; the second asks one
that runs, and leaves out what kills servers. Other words go to pytest. To have them among tests of one's own, a module has

    from aviato.promises.all_checks import *
    from aviato.promises.fixtures import *

and a fixture `serving` of scope `session` or `module`, which returns a `serving.Serving`.
"""
