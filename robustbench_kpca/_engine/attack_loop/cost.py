"""How long an evaluation will take at most: passes of a sample that withstands, times the measured time of a pass."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca.attacks.shared.passes import evaluated
from robustbench_kpca.protocols.scenario import Attack, Corruption, Scenario
from robustbench_kpca.types import Attack as Algorithm

ROWS = 32
REPEATS = 3


@dataclass(frozen=True)
class Passes:
    """Forward and backward passes per sample."""

    forwards: int
    backwards: int

    def times(self, number: int) -> "Passes":
        """Return so many times as many passes."""
        return Passes(number * self.forwards, number * self.backwards)


@dataclass(frozen=True)
class Speed:
    """Seconds per sample of a forward pass, and of a backward pass."""

    forward: float
    backward: float

    def seconds(self, passes: Passes) -> float:
        """Seconds per sample of so many passes."""
        return passes.forwards * self.forward + passes.backwards * self.backward


def passes_of(attack: Algorithm, classes: int) -> tuple[int, int] | None:
    """Return the most forward and backward passes of a restart of an attack; None where it does not say."""
    formula = getattr(attack, "most_passes", None)
    return None if formula is None else evaluated(formula, vars(attack), classes)


def most_passes(scenario: Scenario, classes: int, *, graded: bool = False) -> Passes | None:
    """Return the passes of a sample that no attack breaks, the clean one included; None where that is not known.

    With `draws` every pass is made so often, and with smaller budgets (`below`) all of it once more for each. Where
    success is `graded`, the worst image of every stage is confirmed; under the policy `strongest`, one image.
    """
    if isinstance(scenario, Corruption):
        return Passes(len(scenario.cells), 0).times(scenario.draws)
    if not isinstance(scenario, Attack):
        return Passes(1, 0).times(scenario.draws)
    forwards, backwards = 1 + (len(scenario.stage) if graded else scenario.policy == "strongest"), 0
    for stage in scenario.stage:
        most = passes_of(build_attack(stage), classes)
        if most is None:
            return None
        spent = stage.spent(*most)
        forwards += stage.restarts * int(spent[0])
        backwards += stage.restarts * int(spent[1])
    return Passes(forwards, backwards).times(scenario.draws * (1 + len(scenario.below)))


def speed(model: nn.Module, sample: Tensor, device: str) -> Speed:
    """Time a model on `ROWS` copies of a sample: the fastest of `REPEATS` forward passes, and of gradients.

    Args:
        model: in evaluation mode; it is moved to the device.
        sample: one input of the model, without the axis of the batch.
        device: such as "cpu".
    """
    model = model.to(device)
    x = sample.to(device).expand(ROWS, *sample.shape).clone()
    forward, both = [], []
    for _ in range(REPEATS + 1):  # the first is warm-up
        with torch.no_grad():
            started = time.perf_counter()
            model(x).sum().item()
            forward.append(time.perf_counter() - started)
        asked = x.clone().requires_grad_()
        started = time.perf_counter()
        with torch.enable_grad():
            gradient = torch.autograd.grad(model(asked).sum(), asked, allow_unused=True)[0]
        if gradient is not None:  # None: the inputs are words
            gradient.sum().item()
        both.append(time.perf_counter() - started)
    once, twice = min(forward[1:]), min(both[1:])
    return Speed(once / ROWS, max(twice - once, 0.0) / ROWS)
