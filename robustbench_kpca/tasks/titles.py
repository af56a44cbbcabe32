"""What a protocol is called: the titles of known protocols, and names of attacks that do not run."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import parse_assignments
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.attacks.shared.names import library_of
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.presets import protocols
from robustbench_kpca.protocols.scenario import Attack, Scenario, Stage

_NAMED = re.compile(
    r"(?<![a-z])(auto[- ]?attack|a?pgd|fgsm|c&w|ddn|fab|fmn|malt|mim|spsa|sld|square|hotflip|gbda)"
    r"(?:-(\d+)(?![\d.%]))?(?![a-z])",
    re.IGNORECASE,
)
_BUDGET = re.compile(r"(?<![\d/])(\d+)/255(?!\d)")


def misnamed(text: str, scenarios: Sequence[Scenario]) -> str | None:
    """Say which attack, number of steps or budget a text names that these protocols lack; None if it names none.

    Numbers in "PGD-20, L-infinity 8/255, with eps = 4/255" are those of the protocol before a field was replaced, and
    are not compared. Code from outside may be any attack, and is not compared, either.
    """
    attacks = [scenario for scenario in scenarios if isinstance(scenario, Attack) and scenario.stage]
    stages = [stage for attack in attacks for stage in attack.stage]
    names = [stage.attack for stage in stages]
    if not names or any(ATTACKS.version(name) is None and not library_of(name) for name in names):
        return None
    numbers = ", with " not in text
    for named, steps in _NAMED.findall(text):
        if not any(_runs(named.lower(), attack.stage) for attack in attacks):
            run = ", ".join(dict.fromkeys(names))
            return f"it is called '{text[:60]}', but the attacks are {run}"
        if steps and numbers and not any(int(steps) in stage.options.values() for stage in stages):
            return f"it is called '{text[:60]}', but no attack has {steps} as an option"
    named_eps = [int(number) / 255 for number in _BUDGET.findall(text)] if numbers else []
    if named_eps and not any(abs(attack.eps - eps) < 1e-9 for attack in attacks for eps in named_eps):
        return f"it is called '{text[:60]}', but eps = {attacks[0].eps:.6g}"
    return None


def _runs(name: str, stages: Sequence[Stage]) -> bool:
    """Whether a cascade is what this name says. AutoAttack is several attacks, APGD among them."""
    if name.startswith("auto"):
        library = any("autoattack" in stage.attack.lower() for stage in stages)
        return library or (len(stages) > 1 and any(stage.attack.startswith("apgd") for stage in stages))
    return any(name.replace("c&w", "cw") in stage.attack.lower() for stage in stages)


def title_of(label: str, scenario: Scenario) -> str:
    """Return the title of a protocol: of a known one that of its preset, which no record can change.

    The label names the preset and the fields that were replaced (`pgd20-linf-8_255+eps=3_255`).
    """
    return preset_title(label, scenario.digest()) or scenario.title


@lru_cache(maxsize=256)
def preset_title(label: str, digest: str) -> str:
    """Return the title of the preset that a label names, with the fields it replaces; "" if the digest is another."""
    base, *replaced = label.split("+")
    if base not in protocols():
        return ""
    try:
        _, preset = load_scenario(base, dict(map(_replaced, replaced)))
    except BadInputError:
        return ""
    return preset.title if preset.digest() == digest else ""


def _replaced(text: str) -> tuple[str, Any]:
    """Read a part of a label, such as `eps=3_255` or `below=1_255,2_255`, as `load_scenario` wrote it."""
    key, _, written = text.partition("=")
    values = [parse_assignments([f"{key}={value}"])[key] for value in written.replace("_", "/").split(",")]
    return key, values if len(values) > 1 or key == "below" else values[0]
