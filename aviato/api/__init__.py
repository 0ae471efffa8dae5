"""What blocking code holds: sandboxes, commands, terminals, sessions and waits, each call a handle and no logic."""
