"""What the children of a fork are made from: what their parent was, and what is said anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, cast

from aviato.calls import sandbox_config
from aviato.calls.image_arguments import image_name, image_reference
from aviato.exceptions import AviatoValidationError, SandboxSnapshotError
from aviato.values.parameters import check_names
from aviato.wire.ids import SNAPSHOT_ID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aviato.calls.sandbox_config import SandboxOptions
    from aviato.options import NetworkOptions, ResourceOptions
    from aviato.results import Snapshot

MOST_CHILDREN = 10_000
NOT_OF_CHILDREN = frozenset({"command", "args", "image_fallback", "pool_id", "warmup"})
"""Fields of a create request that are the parent's alone."""


class ForkOptions(TypedDict, total=False):
    """What children may have that their parent has not."""

    environment_variables: Mapping[str, str] | None
    tags: Sequence[str] | None
    resources: ResourceOptions | Mapping[str, Any] | None
    network: NetworkOptions | None


def count(n: int) -> int:
    """How many children.

    Raises:
        TypeError, AviatoValidationError: not so many.
    """
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"n must be an int, not {type(n).__name__}")
    if not 1 <= n <= MOST_CHILDREN:
        raise AviatoValidationError(f"n must be 1 to {MOST_CHILDREN}, got {n}", field_violations={"n": "out of range"})
    return n


def name(given: str | None) -> str | None:
    """The name of a snapshot.

    Raises:
        TypeError, AviatoValidationError: it is none.
    """
    return None if given is None else image_name(given)


def snapshot_id(given: str) -> str:
    """The id of a snapshot.

    Raises:
        TypeError, SandboxSnapshotError: it is none.
    """
    if not isinstance(given, str):
        raise TypeError(f"snapshot_id must be a str, not {type(given).__name__}")
    if SNAPSHOT_ID.fullmatch(given) is None:
        raise SandboxSnapshotError(f"{given!r} is not the id of a snapshot", reason="not_found", is_infrastructure=False)
    return given


def snapshot_meant(given: str | Snapshot | None, parameter: str) -> str | None:
    """The id or name of a snapshot that a parameter is given; None: it is given none.

    Raises:
        TypeError, AviatoValidationError: it is none.
    """
    if given is None:
        return None
    return image_reference(given if isinstance(given, str) else getattr(given, "snapshot_id", cast("str", given)), parameter)


def fields(known: dict[str, Any] | None, image: str, options: ForkOptions) -> dict[str, Any]:
    """The fields of a child's create request.

    Tags add up, environment variables merge, and so do resources, each limit by its name. A main command is the parent's own,
    and what a warm-up has done is in the image.

    Args:
        known: those of its parent; None where another process has made that.
        image: that it begins with.
        options: what is said anew.

    Raises:
        TypeError, AviatoValidationError: an argument that cannot be meant; it is named.
    """
    check_names("fork()", options, ForkOptions.__optional_keys__)
    given = sandbox_config.config(cast("SandboxOptions", dict(options))).create or {}
    parent = given | {"environment_variables": {}, "tags": []} if known is None else known
    create = {field: value for field, value in parent.items() if field not in NOT_OF_CHILDREN}
    create["image"] = image
    if options.get("environment_variables") is not None:
        create["environment_variables"] = {**create["environment_variables"], **given["environment_variables"]}
    if options.get("tags") is not None:
        create["tags"] = [*dict.fromkeys([*create["tags"], *given["tags"]])]
    if "resources" in given:
        before = create.get("resources", {})
        create["resources"] = {kind: {**before.get(kind, {}), **given["resources"][kind]} for kind in ("requests", "limits")}
    if options.get("network") is not None:
        for field in ("ports", "egress_mode"):
            create.pop(field, None)
            create |= {field: given[field]} if field in given else {}
    return create
