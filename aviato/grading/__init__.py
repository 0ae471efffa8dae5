"""Grading what a policy left in a sandbox, in sandboxes that it never was in."""
