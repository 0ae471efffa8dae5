"""Sandboxes out of Linux namespaces: no root, no daemon, no image needed."""
