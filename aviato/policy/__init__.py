"""What lies between the facade and the core: retrying, and counting."""
