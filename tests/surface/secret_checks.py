"""Section 8: secrets."""

from __future__ import annotations

import aviato
from tests.conftest import SECRETS
from tests.surface.harness import Place, acheck, check

TOKEN = SECRETS["AVIATO_SECRET_HF_TOKEN"]


@check("Sandbox(secrets=)", "Secret.env_var")
def secrets(place: Place) -> None:
    given = [aviato.Secret(store="env", name="HF_TOKEN"), aviato.Secret(store="env", name="HF_TOKEN", env_var="OTHER")]
    assert [secret.env_var for secret in given] == ["HF_TOKEN", "OTHER"]
    with aviato.Sandbox(secrets=given) as box:
        assert box.exec(["sh", "-c", "echo $HF_TOKEN $OTHER"]).result().stdout == f"{TOKEN} {TOKEN}\n"


@acheck("Sandbox(secrets=)")
async def secrets_async(place: Place) -> None:
    async with aviato.Sandbox(secrets=[aviato.Secret(store="env", name="HF_TOKEN")]) as box:
        assert (await box.exec(["sh", "-c", "echo $HF_TOKEN"])).stdout == f"{TOKEN}\n"


@check("SandboxDefaults.secrets", "SandboxDefaults.merge_secrets")
def default_secrets(place: Place) -> None:
    defaults = aviato.SandboxDefaults(secrets=[aviato.Secret(store="env", name="HF_TOKEN", env_var="A")])
    more = aviato.Secret(store="env", name="HF_TOKEN", env_var="B")
    assert defaults.merge_secrets([more]) == (*defaults.secrets, more)
    with aviato.Sandbox(defaults=defaults, secrets=[more]) as box:
        assert box.exec(["sh", "-c", "echo $A $B"]).result().stdout == f"{TOKEN} {TOKEN}\n"
