"""A virtual machine with another kernel, control groups of version 2, and this machine's files: see `__main__`."""
