"""The same as plain coroutines on the caller's own loop."""
