"""Reads back what wandb wrote in offline mode: its file of log records, in LevelDB's framing, each a protobuf message."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER_BYTES = 7
BLOCK_BYTES = 32 * 1024
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def messages(data: bytes) -> Iterator[bytes]:
    """The payloads; a large one is cut over several blocks."""
    at, part = HEADER_BYTES, b""
    while at + HEADER_BYTES <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEADER_BYTES:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        piece = data[at + HEADER_BYTES : at + HEADER_BYTES + length]
        if len(piece) < length:
            return
        part = piece if kind in (WHOLE, FIRST) else part + piece
        at += HEADER_BYTES + length
        if kind in (WHOLE, LAST):
            yield part


def records(files_dir: str | Path) -> list[Any]:
    """The records of the run whose `run.dir` it was, once wandb has written the last."""
    from wandb.proto.wandb_internal_pb2 import Record

    deadline = time.monotonic() + 60
    while True:
        found = []
        for log in Path(files_dir).parent.glob("*.wandb"):
            for message in messages(log.read_bytes()):
                found.append(Record())
                found[-1].ParseFromString(message)
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"the run was not finished: {len(found)} records")
        time.sleep(0.02)


def rows(files_dir: str | Path) -> list[dict[str, Any]]:
    """The rows of its history, `_step` and all, in the order in which they were written."""
    history = [record.history for record in records(files_dir) if record.WhichOneof("record_type") == "history"]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in history]


def step_metrics(files_dir: str | Path) -> dict[str, str]:
    """Which metric, or pattern, has which axis."""
    found = [record.metric for record in records(files_dir) if record.WhichOneof("record_type") == "metric"]
    return {metric.name or metric.glob_name: metric.step_metric for metric in found}
