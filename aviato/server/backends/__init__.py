"""Backends: each carries supervisors to one kind of place. They never import each other."""
