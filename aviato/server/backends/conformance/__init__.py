"""The contract of process 1 (docs/protocol.md) as tests, for whatever carries sandboxes.

They drive any program that speaks the protocol, by sockets and by nothing else. A backend's tests are a conftest that has a
fixture `make` of module scope, which is a `process_1.Make`, and these two lines

    from aviato.server.backends.conformance.fixtures import *
    pytest.register_assert_rewrite("aviato.server.backends.conformance")

(the second in the outermost conftest, before anything imports the suite), and a module of one line for each part of it:
`from aviato.server.backends.conformance.commands import *`, and so `bad_input`, `connection`, `endings`, `files`,
`shared_memory` and `streams`. They need pytest and the plug-in of anyio. `tests/protocol` of aviato's own sources does this
for the local backend.
"""
