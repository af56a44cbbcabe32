"""What an evaluation takes at most: the passes of a sample that withstands."""

from dataclasses import dataclass

from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca.attacks.shared.passes import evaluated
from robustbench_kpca.protocols.scenario import Attack, Corruption, Scenario
from robustbench_kpca.types import Attack as Algorithm


@dataclass(frozen=True)
class Passes:
    """Forward and backward passes per sample."""

    forwards: int
    backwards: int

    def times(self, number: int) -> "Passes":
        """Return so many times as many passes."""
        return Passes(number * self.forwards, number * self.backwards)


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
