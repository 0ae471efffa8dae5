"""The process and the machine that aviato finds itself in."""
