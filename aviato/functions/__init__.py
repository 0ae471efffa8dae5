"""Remote functions: how a function and its arguments travel into a sandbox, and how its result is read without trust."""
