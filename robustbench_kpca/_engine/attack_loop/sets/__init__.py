"""Which inputs an attack may propose: one file a kind of perturbation set. The loop asks the set, not its kind."""

from robustbench_kpca._engine.attack_loop.sets.ball import Ball
from robustbench_kpca._engine.attack_loop.sets.base import PerturbationSet
from robustbench_kpca._engine.attack_loop.sets.patches import Patches
from robustbench_kpca._engine.attack_loop.sets.words import ReplacedWords
from robustbench_kpca.protocols.threat import Norm, Threat

_KINDS: dict[Norm, type[PerturbationSet]] = {
    "linf": Ball,
    "l2": Ball,
    "l1": Ball,
    "words": ReplacedWords,
    "l0": Patches,
    "patches": Patches,
}


def set_of(threat: Threat) -> PerturbationSet:
    """Return what a threat model allows."""
    return _KINDS[threat.norm](threat)
