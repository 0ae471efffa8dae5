"""The sandbox server: sandboxes' life, policy, state and the HTTP API under `/v1`."""
