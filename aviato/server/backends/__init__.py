"""Backends: each carries process 1s to one kind of place. They never import each other."""
