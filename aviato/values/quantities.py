"""Kubernetes quantities (`500m`, `2Gi`, `1e3`) and the resources that are counted in them. Pure."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import NamedTuple

_FACTORS = {
    **{suffix: Decimal(10) ** power for suffix, power in (("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6))},
    **{suffix: Decimal(10) ** power for suffix, power in (("G", 9), ("T", 12), ("P", 15), ("E", 18))},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}
_NUMBER = r"[+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})"
_QUANTITY = re.compile(rf"({_NUMBER})(?:([eE][+-]?\d{{1,2}})|([KMGTPE]i|[numkMGTPE]?))", re.ASCII)


class Resource(NamedTuple):
    """What a resource is counted in, and the least that makes sense."""

    unit: str
    least: float
    whole: bool


RESOURCES = {
    "cpu": Resource("cores", 0.001, whole=False),
    "memory": Resource("bytes", 4 << 20, whole=True),
    "shm": Resource("bytes", 1 << 20, whole=True),
    "processes": Resource("processes", 1, whole=True),
    "disk": Resource("bytes", 1 << 20, whole=True),
    "inodes": Resource("files and directories", 64, whole=True),
    "gpu": Resource("devices", 1, whole=True),
}
"""Every resource that a sandbox can ask for; which of them it can have is its backend's matter."""
LARGEST = 1 << 60


def parse_quantity(text: str) -> Decimal:
    """The number that a quantity means.

    Raises:
        ValueError: it is none.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no quantity, such as '500m', '2' or '2Gi'")
    number, exponent, suffix = match.groups()
    return Decimal(number + exponent) if exponent else Decimal(number) * _FACTORS[suffix]


def format_bytes(value: float) -> str:
    """A number of bytes as the shortest exact quantity: `2Gi`, `1536Mi`, `1000`."""
    number = int(value)
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        unit = int(_FACTORS[suffix])
        if number >= unit and number % unit == 0:
            return f"{number // unit}{suffix}"
    return str(number)


def amount(name: str, value: object) -> float:
    """How much of a resource a caller means, in its unit; whole numbers but for `cpu`.

    Args:
        name: of the resource.
        value: a number or a quantity.

    Raises:
        TypeError: neither.
        ValueError: an unknown resource, no quantity, or an amount that makes no sense.
    """
    resource = RESOURCES.get(name) if isinstance(name, str) else None
    if resource is None:
        from aviato.values.suggestions import meant

        hint = meant(name, RESOURCES, _SYNONYMS)
        raise ValueError(f"there is no resource {name!r}; there are {', '.join(RESOURCES)}{hint}")
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"must be a number or a quantity such as '2Gi', not {type(value).__name__}")
    number = _number(value, resource) if isinstance(value, str) else Decimal(value)
    if number.is_nan():
        raise ValueError(f"{value!r} is no amount")
    if not number.is_finite() or number > LARGEST:
        raise ValueError(f"{value!r} is more than can be meant; leave it out for the default")
    if number < Decimal(str(resource.least)):
        least = format_bytes(resource.least) if resource.unit == "bytes" else f"{resource.least:g}"
        raise ValueError(f"{value!r} is less than {least}, the least{_meant(value, resource)}")
    if not resource.whole:
        return float(number)
    if resource.unit != "bytes" and number != int(number):
        raise ValueError(f"{value!r} is no whole number")
    return math.ceil(number)


_SYNONYMS = {
    **dict.fromkeys(("mem", "ram", "mem_limit", "memory_mb", "memory_limit"), "memory"),
    **dict.fromkeys(("cpus", "cpu_count", "cores", "vcpu", "vcpus", "nano_cpus", "num_cpus"), "cpu"),
    **dict.fromkeys(("pids", "pids_limit", "procs", "nproc"), "processes"),
    **dict.fromkeys(("shm_size", "shared_memory", "shmem"), "shm"),
    **dict.fromkeys(("storage", "disk_size", "ephemeral-storage", "storage_size"), "disk"),
    **dict.fromkeys(("gpus", "nvidia.com/gpu"), "gpu"),
}
"""Names that other tools have for a resource."""
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP])(?:i?B)?\s*", re.ASCII | re.IGNORECASE)


def _number(text: str, resource: Resource) -> Decimal:
    """As `parse_quantity`; what other tools write for a size is no quantity, and said to be meant."""
    try:
        return parse_quantity(text)
    except ValueError as error:
        size = _SIZE.fullmatch(text) if resource.unit == "bytes" else None
        raise ValueError(f"{error}; did you mean '{size[1]}{size[2].upper()}i'?" if size else str(error)) from None


def _meant(value: object, resource: Resource) -> str:
    """A hint for the usual slips: `128m` is a thousandth part, `512` are bytes. None that is refused again."""
    if resource.unit != "bytes":
        return ""
    digits = re.match(r"\s*(\d{1,6})\s*(m?)\s*$", str(value))
    return f"; did you mean '{digits[1]}Mi'?" if digits and int(digits[1]) << 20 >= resource.least else ""
