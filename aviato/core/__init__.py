"""The async client: plain coroutines on the caller's loop. It starts no thread and knows no HTTP library."""
