"""Connections of a server: where they come from, who is let in, how many there may be, and what they turn out to speak."""
