"""Held-out accuracy under attack after an epoch, and the sign of catastrophic overfitting in it.

Wong, Rice & Kolter (2020), "Fast is better than free", arXiv:2001.03994: training on one-step attacks can fail
suddenly. The accuracy under this attack goes on to grow, that under several steps falls to almost nothing.
"""

from collections.abc import Mapping

from torch import nn

from robustbench_kpca.training.recipe import Adversarial
from robustbench_kpca.training.scoring import held_out_scores
from robustbench_kpca.training.source import Source

OWN, STRONGER = "val_adv_", "val_stronger_"
"""Beginnings of the names of columns: under the attack of training, and under the stronger one."""


def attacked_scores(model: nn.Module, source: Source, classes: int, settings: Adversarial) -> dict[str, float]:
    """Return the scores on the validation images under the attacks that the recipe wants there, by column.

    Args:
        model: in evaluation mode.
    """
    attacks = {OWN: settings} if settings.held_out else {}
    if (stronger := settings.stronger) is not None:
        attacks[STRONGER] = settings.model_copy(update={"attack": stronger.attack, "options": stronger.options})
    by_attack = {column: held_out_scores(model, source, "val", classes, attack) for column, attack in attacks.items()}
    return {f"{column}{name}": value for column, scores in by_attack.items() for name, value in scores.items()}


def overfitting(scores: Mapping[str, float], settings: Adversarial, score: str) -> str:
    """Say that the model resists the attack of training only; empty where it does not, or where nobody looked.

    Args:
        score: name of the score that is compared, such as `accuracy`.
    """
    own, other = scores.get(OWN + score), scores.get(STRONGER + score)
    if settings.stronger is None or own is None or other is None or own - other <= settings.stronger.most_gap:
        return ""
    return f"{score} {100 * own:.1f} % under the attack of training, {100 * other:.1f} % under the stronger one"
