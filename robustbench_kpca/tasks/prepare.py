"""Check a protocol before the evaluation starts: all that it names exists, is valid, and has a meaning for the data."""

from collections.abc import Mapping
from pathlib import Path

import torch

from robustbench_kpca._core.errors import BadInputError, BenchmarkError, reason_of
from robustbench_kpca._engine.attack_loop.backward import require_gradients
from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca._engine.attack_loop.sets import set_of
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.attacks.shared.names import require_attack
from robustbench_kpca.corruptions import require_corruption, require_profile
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.forms import PICTURES, SIGNALS, TOKENS, WORDS
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import Attack, Certificate, Corruption, Ood, Override, Scenario, Shift
from robustbench_kpca.tasks import task_named


def prepare(protocol: str | Path, overrides: Mapping[str, Override]) -> tuple[str, Scenario]:
    """Load and check a protocol; return its label and the parsed protocol.

    Raises:
        BadInputError: unknown protocol, attack or corruption; unknown or invalid option.
    """
    label, scenario = load_scenario(protocol, dict(overrides))
    if isinstance(scenario, Attack):
        if scenario.imported is not None:
            raise BadInputError(f"protocol '{label}' is of imported images", fix="rbk board break ROW --images FILE")
        require_startable(scenario)
    elif isinstance(scenario, Corruption) and scenario.mode != "stored":
        for name in scenario.names:
            require_corruption(name)
            require_profile(name, scenario.profile)
    return label, scenario


def require_startable(protocol: Attack) -> None:
    """Refuse an attack protocol with a stage that cannot start.

    Raises:
        BadInputError: unknown attack, an invalid option of one, or a norm or target that it does not support.
    """
    allowed, zero = set_of(protocol.threat.on_tokens(4)), torch.zeros(1, dtype=torch.int64)
    for stage in protocol.stage:
        require_attack(stage.attack)
        attack = build_attack(stage)
        allowed.require_attack(stage.attack, attack)
        require_gradients(stage, attack)
        try:
            attack.start(allowed.example(), zero, allowed.threat, zero)  # refuses unsupported norms and targets
        except BenchmarkError:
            raise
        except Exception as error:
            if not ATTACKS.is_outside(stage.attack):
                raise
            raise BadInputError(f"attack '{stage.attack}' cannot start ({reason_of(error)})") from None


def try_cells(data: Dataset, scenario: Scenario, seed: int, frost: str) -> None:
    """Corrupt one sample in each cell, so that an invalid cell is found before the evaluation starts.

    Raises:
        BadInputError: a corruption cannot be applied.
    """
    if not isinstance(scenario, Corruption) or scenario.mode == "stored":
        return
    compute = task_named(data.task).compute
    for place in scenario.cells:
        compute.try_corruption(data, scenario, place, seed, frost)


def require_form(data: Dataset, protocol: Scenario) -> None:
    """Refuse attacks in another space, corruptions of another form of data, and shifts of what is no image."""
    form = data.form
    if isinstance(protocol, Attack) and protocol.space not in form.spaces:
        spaces = " or ".join(f"space = '{space}'" for space in form.spaces)
        raise BadInputError(
            f"protocol '{protocol.title}' attacks in {protocol.space} space, but data '{data.name}' are {form.name}",
            expected=f"an attack with {spaces}" if spaces else "no attack: small changes of a word have no meaning",
            fix="see: rbk list protocols",
        )
    if isinstance(protocol, Corruption) and protocol.profile not in form.profiles:
        kinds = (kind.name for kind in (PICTURES, SIGNALS, TOKENS, WORDS) if protocol.profile in kind.profiles)
        raise BadInputError(
            f"protocol '{protocol.title}' corrupts {next(kinds, protocol.profile)}, but data '{data.name}' are "
            f"{form.name}",
            expected=f"a protocol with profile = {' or '.join(repr(profile) for profile in form.profiles)}",
            fix="see: rbk list corruptions, rbk list protocols",
        )
    if isinstance(protocol, Shift | Ood | Certificate) and not form.box:
        raise BadInputError(f"protocol '{protocol.title}' for {form.name}", expected="images")
