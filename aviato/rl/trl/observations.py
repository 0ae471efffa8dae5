"""What a model reads of a tool's output."""

from __future__ import annotations


def cut(data: bytes, total: int | None, limit: int, *, tail: bool = True) -> str:
    """Text of at most so many bytes of output; what is left out is marked, with the number of bytes that there were.

    Args:
        data: the output, or its beginning and its end, each at least as long as `limit`.
        total: how many bytes there were; None is those of `data`.
        limit: how many to show.
        tail: show the beginning and the end, not only the beginning.
    """
    total = len(data) if total is None else total
    if total <= limit:
        return data.decode(errors="replace")
    head_bytes = limit // 2 if tail else limit
    tail_bytes = limit - head_bytes
    head = data[:head_bytes].decode(errors="ignore")
    end = data[len(data) - tail_bytes :].decode(errors="ignore")
    return f"{head}\n[… {total - limit} of {total} bytes left out …]\n{end}"
