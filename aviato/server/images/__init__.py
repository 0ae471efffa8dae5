"""What a sandbox's root is made of."""
