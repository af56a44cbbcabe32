"""Attack a batch that stays whole, with a model as it is: for training, where batch norm and dropout see every image.

The engine (`engine`) attacks models that repeat their answers; so it may drop an image, fill its row and ask again.
Here nothing is asked twice, and every image is searched until the budget of all is spent.
"""

from dataclasses import dataclass

import torch

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.randomness import sample_key
from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca._engine.attack_loop.query import CountingQuery, Worst, check_clean
from robustbench_kpca._engine.attack_loop.sets import set_of
from robustbench_kpca._engine.attack_loop.success import Success
from robustbench_kpca._engine.attack_loop.targets import check_budget, targets_of, threat_for
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.attacks.shared.rows import choose, none
from robustbench_kpca.protocols.scenario import Attack as AttackProtocol
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Attack, Images, Labels, Mask, State


@dataclass(frozen=True)
class Searched:
    """What a search found of every image, and the passes it was shown in, without the one on the clean image."""

    worst: Worst
    broken: Mask
    forwards: Labels
    backwards: Labels


def search(
    runner: Runner, protocol: AttackProtocol, success: Success, images: Images, labels: Labels, *, seed: int
) -> Searched:
    """Run every stage and restart of a protocol from the clean images, misclassified ones too.

    Args:
        runner: of a batch size of at least that of the images.
        protocol: with policy `last`, the last image of a restart counts, and the one of lowest margin of several
            restarts; else that of lowest margin of all that were shown.
        success: of the task.
        images: in [0, 1], on the runner's device.
        labels: of the images, on the runner's device.
        seed: of all randomness; the id of image i is "i".

    Raises:
        BadInputError: clean logits that do not fit the labels or are not finite; an invalid protocol.
        EvaluationError: an attack left its ball, or a gradient is not finite.
    """
    _require_possible(protocol, success)
    space, threat = InputSpace.of(runner.model, protocol.space), threat_for(protocol, runner.model)
    allowed = set_of(threat)
    ids = [str(number) for number in range(len(images))]
    clean = space.enter(images)
    clean = clean.clamp(0, 1) if protocol.cut_off else clean
    logits = runner.logits(space.leave(clean))
    check_clean(logits, labels)
    check_budget(threat, protocol.space, images)
    targets = targets_of(protocol, seed, ids, logits, labels)
    prediction, margin = success.judge(logits, targets, threat.sign)
    worst = Worst(clean.clone(), margin.double(), prediction, success.rank(logits, labels))
    wrong = success.reached(prediction, labels, targeted=False)
    last = protocol.policy == "last"
    if last:
        worst.margin.fill_(torch.inf)
    unasked = Worst(worst.images, torch.full_like(worst.margin, -torch.inf), worst.prediction, worst.rank)
    counts = labels.new_zeros(2, len(images))
    for number, stage in enumerate(protocol.stage):
        attack = build_attack(stage)
        allowed.require_attack(stage.attack, attack)
        for restart in range(stage.restarts):
            keys = [sample_key(seed, f"{number}/{stage.attack}/{restart}", name) for name in ids]
            queries = [
                CountingQuery(
                    runner,
                    space,
                    success,
                    stage.attack,
                    allowed=allowed,
                    clean=clean,
                    labels=targets,
                    truth=labels,
                    worst=found,
                    stops=False,
                )
                for found in (unasked if last else worst, worst)
            ]
            state = attack.start(clean, targets, threat, torch.tensor(keys, device=labels.device))
            queries[1].logits(_end(attack, state, threat, queries[0])["x"])
            queries[1].checks.settle()
            counts += sum(query.counts[:2] for query in queries)
    reached = success.reached(worst.prediction, targets if threat.targeted else labels, targeted=threat.targeted)
    broken = reached if protocol.labels == "predicted" else reached | wrong
    return Searched(worst, broken, counts[0], counts[1])


def _require_possible(protocol: AttackProtocol, success: Success) -> None:
    """Refuse what this search does not do."""
    odd = {
        "smaller budgets below": bool(protocol.below),
        "stages with backward_of or attention_loss": any(stage.name != stage.attack for stage in protocol.stage),
        f"precision = '{protocol.precision}'": protocol.precision != "fp32",
        "samples of many labels": success.graded,
    }
    for what, met in odd.items():
        if met:
            raise BadInputError(f"train_mode = 'keep' with {what}", expected="one budget, fp32, one label a sample")


def _end(attack: Attack, state: State, threat: Threat, query: CountingQuery) -> State:
    """Take steps with all images until all are finished; the state of one that is finished stays."""
    while not bool((finished := state["finished"]).all()):
        after = attack.step(state, threat, query)
        query.checks.settle()
        state = after if none(finished) else {key: choose(~finished, rows, state[key]) for key, rows in after.items()}
    return state
