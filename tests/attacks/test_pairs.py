"""Every registered attack, with its defences and without: red unless it fails and then succeeds."""

from __future__ import annotations

import pytest

from tests.attacks import registry
from tests.attacks.registry import ATTACKS, DEFENCES, Arena, built

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.attack,
    pytest.mark.timeout(300),  # Programs without a defence are compiled one after the other, by whoever needs one first.
]
registry.load()


@pytest.mark.deep
@pytest.mark.parametrize("name", ATTACKS)
async def test_it_fails_and_succeeds_without_its_defences(backend, boxes, make_box, name, record_property):
    attack = ATTACKS[name]
    why = attack.impossible(backend)
    if why is not None:
        pytest.skip(why)
    said = {}
    for build, (walls, expected) in attack.builds().items():
        off = tuple(DEFENCES[wall] for wall in walls)
        async with built(backend, off), make_box() as neighbour:
            succeeded = await attack.run(Arena(backend, boxes, off))
            if not off:
                assert (await neighbour.run("true")).returncode == 0
        assert succeeded is expected, f"with {build}, {attack.walls} it {'succeeds' if succeeded else 'fails'}"
        said[build] = "succeeds" if succeeded else "fails"
    record_property("pair", (attack.area, name, attack.walls, said))


def test_every_defence_is_needed_by_an_attack():
    """And each wall of an attack is one that is known."""
    assert {wall for attack in ATTACKS.values() for wall in attack.walls} == set(DEFENCES)
