"""The docker backend: each sandbox is a container of an engine that speaks Docker's API."""
