"""The landlock backend: sandboxes without namespaces, for machines that forbid them."""
