"""Adversarial examples inside training: the evaluation's own attacks, run to the end of their budget."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.randomness import sample_key
from robustbench_kpca.strict import validate
from robustbench_kpca.training.recipe import Adversarial
from robustbench_kpca.types import Attack, Images, Labels, Logits, Loss, Mask, PerSample


class _PlainQuery:
    """The model in evaluation mode, for training: nothing is counted, nothing stops early, no sample is dropped.

    With `beliefs` p, one distribution a sample, the attack climbs KL(p || f(x)) in place of its own loss.
    """

    def __init__(self, model: nn.Module, beliefs: Logits | None = None) -> None:
        self.model, self.beliefs = model, beliefs

    def logits(self, x: Images, *, outside: bool = False) -> Logits:  # noqa: ARG002
        with torch.no_grad():
            logits: Logits = self.model(x).float()
        return logits

    def gradient(self, x: Images, loss: Loss, *, outside: bool = False) -> tuple[PerSample, Images]:  # noqa: ARG002
        x = x.detach().requires_grad_()
        logits = self.model(x).float()
        if self.beliefs is None:
            losses = loss(logits)
        else:
            losses = F.kl_div(logits.log_softmax(1), self.beliefs, reduction="none").sum(1)
        (gradient,) = torch.autograd.grad(losses.sum(), x)
        return losses.detach(), gradient

    def rows(self, mask: Mask) -> "_PlainQuery":
        return _PlainQuery(self.model, None if self.beliefs is None else self.beliefs[mask])

    def module(self) -> nn.Module:
        return self.model


def adversarial_images(
    model: nn.Module,
    x: Images,
    y: Labels,
    ids: Sequence[str],
    settings: Adversarial,
    *,
    seed: int,
    epoch: int,
) -> Images:
    """Return the last iterate for every image; each sample's randomness depends on (seed, epoch, its id).

    With `settings.trades_beta` the attack leads away from what the model says of the clean images, not from the labels.
    """
    threat = settings.threat(epoch)
    attack: Attack = validate(ATTACKS.get(settings.attack), settings.options, f"attack '{settings.attack}'")
    keys = torch.tensor([sample_key(seed, f"train/{epoch}", sample) for sample in ids])
    was_training = model.training
    model.eval()
    query = _PlainQuery(model)
    if settings.trades_beta is not None:
        query = _PlainQuery(model, beliefs=query.logits(x).softmax(1))
    state = attack.start(x, y, threat, keys)
    while not bool(state["finished"].all()):
        state = attack.step(state, threat, query)
    model.train(was_training)
    return state["x"].detach()
