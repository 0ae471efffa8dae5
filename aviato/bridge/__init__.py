"""From blocking to async: one loop thread a process, handles that both worlds can wait on, streams that both can read."""
