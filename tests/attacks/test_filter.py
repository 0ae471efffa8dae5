"""Each attack on the kernel's calls, with its defence and without: red unless it fails the first time and succeeds the second."""

from __future__ import annotations

import pytest

from aviato.server.backends.local import rules
from tests.attacks.mutate import without
from tests.attacks.programs import ATTACKS, PRELUDE, Attack

pytestmark = [pytest.mark.anyio, pytest.mark.attack]


async def run(box, attack: Attack):
    """What it printed; the sandbox is as good as before, and nothing looked like a failure of the machine."""
    result = await box.python(PRELUDE + attack.source)
    assert result.error is None and result.exit is not None
    assert result.stderr == "", result.stderr
    assert (await box.run("true")).returncode == 0
    return result.stdout.strip()


@pytest.mark.parametrize("name", ATTACKS)
async def test_it_fails_and_succeeds_without_its_defence(backend, boxes, name):
    attack = ATTACKS[name]
    async with boxes.make_box(backend) as box:
        assert await run(box, attack) == attack.refused
    if attack.steps:
        with without(backend, steps=attack.steps):
            async with boxes.make_box(backend) as box:
                assert await run(box, attack) == attack.refused, "the filter alone"
    with without(backend, attack.family, steps=attack.steps):
        async with boxes.make_box(backend) as box:
            said = await run(box, attack)
            assert said != attack.refused if attack.reaches else said == "True"


def test_every_family_is_tried():
    untried = set(rules.families(rules.RULES)) - {attack.family for attack in ATTACKS.values()}
    assert untried == {"kernel code"}, "which is for the machine's own root, whom no sandbox has"
