"""How much a sandbox may have of what the machine has, where nothing else is said."""

from __future__ import annotations

LIMIT_PROCESSES = 512
LIMIT_MEMORY_BYTES = 2 << 30
LIMIT_DISK_BYTES = 4 << 30
LIMIT_INODES = 1 << 18
LIMIT_TERMINALS = 64
"""Of one sandbox; the machine has about 3,000 for all."""
LIMIT_INOTIFY_INSTANCES = 16
"""Of one sandbox; a user of the machine usually has 128, root included."""
LIMIT_INOTIFY_WATCHES = 16384
LIMIT_SIGNALS = 4096
"""Signals and timers under way."""
LIMIT_QUEUE_BYTES = 200 << 10
"""POSIX message queues: two of the usual size."""
LIMIT_LOCKED_BYTES = 1 << 20
LIMIT_OPEN_FILES = 4096
OPEN_FILES_SHARE = 2
"""Commands have at most this part of the server's own limit. Descriptors that are on their way in sockets count for the user to
whom all of an ordinary user's sandboxes belong, and each is let send until that count reaches its own limit. So the server can
go on where they no longer can, and so can process 1 of each sandbox, which has so many times as much as they."""
LIMIT_WATCHES = 1 << 18
"""What all commands of a sandbox may wait for by epoll, where its server's user has one count for all."""
WATCHES_SHARE = 16
"""It is at most this part of what that user may have; and so are closed connections of what the machine may have."""
LIMIT_FILTERS = 1 << 10
"""Of system calls, in all threads of a sandbox: the machine keeps compiled ones, of at most some 80 KiB, in one place for all,
which often has 512 MiB."""
SOCKETS_SHARE = 4
"""TCP and UDP may hold at most this part of what the machine lets each hold for all."""
LIMIT_FILE_BYTES = 4 << 30
ETC_BYTES = 16 << 20
OWN_BYTES = 1 << 20
MEMORY_UPPER_BYTES = 1 << 30
"""Size of the writable layer where it has to be in memory, by default."""
UPPER_SLACK_BYTES = 32 << 20
"""So much more it can hold than it may: who goes beyond the limit of the disk is to be seen doing so."""
