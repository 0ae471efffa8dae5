"""Sandboxes for model-written code, built for reinforcement learning.

Every operation returns one handle that works with both `.result()` and `await`. Names are resolved at first use, so that
`import aviato` stays cheap, loads no third-party library and starts no thread.
"""

__version__ = "0.1.0"
