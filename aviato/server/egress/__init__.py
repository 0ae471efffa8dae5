"""The way out: what sandboxes may connect to, and the proxy through which they do."""
