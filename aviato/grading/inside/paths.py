"""Where separate grading keeps what is its own, in the sandbox of the tests and for whoever reads it there."""

from __future__ import annotations

DIRECTORY = "/tmp/.aviato-grading"
"""Where any user may make it: the one of an image need not be root."""
SOCKET_PATH = DIRECTORY + "/solution.sock"
"""By which tests reach the solution."""
INSEPARABLE_PATH = DIRECTORY + "/inseparable"
"""What a test has asked for that cannot cross."""
TASKS_PATH = DIRECTORY + "/tasks"
"""A directory for each place of a grader that has several tasks."""
