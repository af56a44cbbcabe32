"""Before an attack begins, it is settled what each sample is to leave or reach, and that the question makes sense."""

import math
from collections.abc import Sequence

import torch

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.protocols.scenario import Attack as AttackScenario
from robustbench_kpca.randomness import generator, sample_key
from robustbench_kpca.types import Attack, Images, Labels, Logits


def aims_of(scenario: AttackScenario, seed: int, ids: Sequence[str], logits: Logits, labels: Labels) -> Labels:
    """Return the class that each sample is to leave or, targeted, to reach; `ids` are of these rows."""
    target, classes = scenario.target, logits.shape[1]
    if target == "random":
        draws = [generator(sample_key(seed, "target", name)) for name in ids]
        steps = [1 + int(draw.integers(classes - 1)) for draw in draws]
        return (labels + torch.tensor(steps, device=labels.device)) % classes
    if target != "none":
        others = logits.scatter(1, labels[:, None], -torch.inf)
        lowest = logits.scatter(1, labels[:, None], torch.inf)
        return others.argmax(1) if target == "runner_up" else lowest.argmin(1)
    return logits.argmax(1) if scenario.labels == "predicted" else labels


def check_budget(scenario: AttackScenario, images: Images) -> None:
    """Refuse a ball that holds every image there is: its radius was meant in other units."""
    threat, values = scenario.threat, images[0].numel()
    furthest = math.sqrt(values) if threat.norm == "l2" else values
    bounded = scenario.space == "pixel" and threat.clip
    if bounded and threat.norm != "linf" and threat.eps >= furthest:
        raise BadInputError(
            f"eps = {threat.eps:g} in {threat.norm.upper()}, while no two images are further apart than {furthest:.3g}",
            fix=f"write {threat.eps:g}/255 if pixel levels were meant",
        )


def check_per_pixel(scenario: AttackScenario, attacks: dict[str, Attack]) -> None:
    """Refuse a protocol that has no meaning, or no attack, where every pixel has a label of its own."""
    asked = (scenario.labels, scenario.target, scenario.space)
    if asked != ("true", "none", "pixel") or scenario.policy == "last":
        raise BadInputError(
            "labels = '{}', target = '{}', space = '{}' and policy = '{}' with one label a pixel".format(
                *asked, scenario.policy
            ),
            expected="labels = 'true', target = 'none', space = 'pixel', and policy = 'strongest' or 'stop_at_first'",
        )
    for name, attack in attacks.items():
        if not getattr(attack, "per_pixel", False):
            raise BadInputError(
                f"attack '{name}' with one label a pixel",
                fix="choose pgd, segpgd, apgd_shrinking, apgd, mim, fgsm or noise",
            )
