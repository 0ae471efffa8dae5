"""Images that are built in sandboxes, without a daemon: what one is to be, and how it comes to be."""
