"""The kernel's calls: what the filter refuses, and what stands behind it."""

from __future__ import annotations

from tests.attacks import programs
from tests.attacks.mutate import CAPABILITIES
from tests.attacks.registry import Area, Arena

area = Area(__name__)
NO_CAPABILITIES = area.defence("commands have no capability", steps=CAPABILITIES)
FAMILIES = {
    family: area.defence(f"filter: {family}", families=(family,))
    for family in {attack.family: None for attack in programs.ATTACKS.values()}
    if family is not None
}


def register(name: str, attack: programs.Attack) -> None:
    walls = (FAMILIES[str(attack.family)], *([NO_CAPABILITIES] if attack.steps else []))

    @area.attack(name, *walls)
    async def run(arena: Arena) -> bool:
        async with arena.box() as box:
            result = await box.python(programs.PRELUDE + attack.source)
            assert result.error is None and result.exit is not None and result.stderr == "", result.stderr
            assert (await box.run("true")).returncode == 0
        said = result.stdout.strip()
        if walls[0] not in {defence.name for defence in arena.off}:
            assert said == attack.refused
            return False
        return bool(said != attack.refused if attack.reaches else said == "True")


for _name, _attack in programs.ATTACKS.items():
    register(_name, _attack)
