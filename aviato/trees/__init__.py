"""Directory trees as one stream of bytes: tar, without trust in what is read. Both sides of a copy run this code.

Standard library only, blocking calls in bounded steps: process 1 runs them as jobs of its loop, a client in a thread.
"""
