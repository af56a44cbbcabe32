"""The checks of an audit. Each is one question whose answer is known for an honestly evaluated model.

Carlini et al. (2019), "On Evaluating Adversarial Robustness", arXiv:1902.06705, sections 3 and 5; Athalye, Carlini &
Wagner (2018), "Obfuscated Gradients Give a False Sense of Security", arXiv:1802.00420, section 3.1.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attacks._draws import signs
from robustbench_kpca.attacks._losses import cross_entropy, dlr, margin
from robustbench_kpca.audit import Check
from robustbench_kpca.evaluation.audit_bench import HUGE_EPS, Bench
from robustbench_kpca.evaluation.audit_limits import (
    FLAT,
    SAME_DIRECTION,
    SLOPE_DIRECTIONS,
    SLOPE_ERROR,
    SLOPE_STEP,
    samples_allowed,
    slopes_allowed,
)
from robustbench_kpca.evaluation.preflight import BATCH_MATES, inspect
from robustbench_kpca.models.mixing import at_most, rpc_layers
from robustbench_kpca.types import Images, Mask


def preflight(bench: Bench) -> Check:
    """Ask what would refuse an evaluation."""
    size = bench.runner.batch_size
    found = inspect(bench.runner, bench.images[:size], bench.labels[:size])
    return _check(
        "preflight", {finding.check: 1 for finding in found}, 0,
        "; ".join(finding.met for finding in found) or "every preflight check passes",
        "an attack on a model that fails one means nothing",
    )  # fmt: skip


def more_steps(bench: Bench) -> Check:
    """Twice the steps."""
    gained = {
        f"{name} {steps} to {2 * steps}": _count(~bench.broken(name)) - _count(~bench.broken(f"{name}-doubled"))
        for name, steps in (("pgd", 20), ("apgd", 20))
    }
    return _samples(
        "more-steps", bench, gained, "twice the steps break {} more",
        "an attack that has not converged overstates robustness",
    )  # fmt: skip


def huge_eps(bench: Bench) -> Check:
    """Attack in a ball in which nothing can be robust."""
    standing = {"standing": _count(~bench.broken("huge-eps"))}
    return _samples(
        "huge-eps", bench, standing, f"{{}} stand in a ball of eps = {HUGE_EPS}",
        "there every image can be made plain grey, so whatever stands is an attack that fails",
    )  # fmt: skip


def one_step(bench: Bench) -> Check:
    """FGSM against PGD."""
    only = {"fgsm only": _count(bench.broken("fgsm") & ~bench.broken("pgd"))}
    return _samples(
        "one-step", bench, only, "one step breaks {} that twenty do not",
        "iterations lose to a single step where gradients mislead",
    )  # fmt: skip


def other_loss(bench: Bench) -> Check:
    """Each cross-entropy attack against all gradient attacks together, DLR among them."""
    every = bench.broken(*bench.white_box)
    values = {name: _count(every & ~bench.broken(name)) for name in ("pgd-doubled", "apgd-doubled")}
    return _samples(
        "other-loss", bench, values, "one gradient attack leaves {} that another breaks",
        "an attack that misses what its equals find overstates robustness; often its loss saturates",
    )  # fmt: skip


def black_box(bench: Bench) -> Check:
    """Attacks without gradients, and a sibling's adversarial images, against all gradient attacks together."""
    white = bench.broken(*bench.white_box)
    values = {name: _count(bench.broken(name) & ~white) for name in ("noise", "square", "spsa")}
    if bench.sibling is not None and bool(bench.right.any()):
        images = bench.climb("apgd-doubled", bench.sibling).images
        values["sibling"] = _count(_transferred(bench, images) & ~white)
    return _samples(
        "black-box", bench, values, "attacks without its gradients break {} that gradient attacks do not",
        "gradients that lose to guesses are masked",
    )  # fmt: skip


def gradients(bench: Bench) -> Check:
    """Zero, constant and flat gradients of both losses, at the start of PGD and where it ends on what still stands.

    (Where an answer is wrong already, DLR is flat by design: it is 1 wherever the label ranks third.)
    """
    if not bool(bench.right.any()):
        return _does_not_apply("gradients", "no image is right")
    start, labels = bench.images[bench.right], bench.labels[bench.right]
    stands = ~bench.verdicts(bench.path.images, labels)
    places = {"start": (start, labels), "end": (bench.path.images[stands], labels[stands])}
    values: dict[str, float] = {}
    for where, (images, own) in places.items():
        for name, loss in (("ce", cross_entropy), *(() if bench.few_classes else (("dlr", dlr),))):
            if len(images):
                losses, gradient, _ = bench.gradients(images, own, loss)
                reach = bench.threat.eps * gradient.flatten(1).abs().sum(1)
                values[f"{name} zero at {where}"] = _count(reach == 0)
                values[f"{name} constant at {where}"] = _count(_repeated(gradient, images))
                values[f"{name} flat at {where}"] = _count(losses == 0 if name == "ce" else reach < FLAT)
    return _samples(
        "gradients", bench, values, "up to {} have a gradient that is zero, flat or another image's",
        "a gradient attack is blind where the gradient says nothing",
    )  # fmt: skip


def _repeated(gradient: Images, images: Images) -> Mask:
    """Which gradients point along that of another image."""
    directions = F.normalize(gradient.flatten(1).double(), dim=1)
    same = (directions @ directions.T).abs() > SAME_DIRECTION
    flat = images.flatten(1)
    twins = torch.stack([(flat == one).all(1) for one in flat])
    return (same & ~twins).any(1)


def slope(bench: Bench) -> Check:
    """Whether the gradient tells how the margin changes."""
    if not bool(bench.right.any()):
        return _does_not_apply("slope", "no image is right")
    step, keys = SLOPE_STEP * bench.threat.eps, bench.keys[bench.right]
    images, labels = bench.images[bench.right].clamp(step, 1 - step), bench.labels[bench.right]
    _, gradient, _ = bench.gradients(images, labels, margin)
    told, seen = [], []
    for number in range(SLOPE_DIRECTIONS):
        v = signs(keys, torch.full_like(keys, number), images)
        told.append(step * (gradient * v).flatten(1).sum(1))
        ahead, behind = (margin(bench.logits(images + side * v), labels) for side in (step, -step))
        seen.append((ahead - behind) / 2)
    changes, errors = torch.stack(seen, 1), torch.stack(seen, 1) - torch.stack(told, 1)
    explained = (errors.norm(dim=1) <= SLOPE_ERROR * changes.norm(dim=1)) & (changes.norm(dim=1) > 0)
    return _check(
        "slope", {"unexplained": _count(~explained)}, slopes_allowed(len(bench)),
        f"the gradients of {_count(~explained)} of {len(bench)} images do not tell how the margin changes next to them",
        "an attack that climbs something else than the model's own loss misses its weaknesses",
    )  # fmt: skip


def ascent(bench: Bench) -> Check:
    """Whether the loss rises."""
    if not bool(bench.right.any()):
        return _does_not_apply("ascent", "no image is right")
    climb = bench.path
    last, _, _ = bench.gradients(climb.images, bench.labels[bench.right], cross_entropy)
    values = {"no rise": _count(~(last > climb.losses[0]))}
    return _samples(
        "ascent", bench, values, "the loss of {} is not higher after PGD than before",
        "steps uphill must lead up, or the slope is not the function's",
    )  # fmt: skip


def surrogate(bench: Bench) -> Check:
    """Adversarial images of the model with fewer iterations in its RPC layers, shown to the model itself."""
    most = max((layer.pursuit.iterations for layer in rpc_layers(bench.model)), default=0)
    if most == 0:
        return _does_not_apply("surrogate", "does not apply: the model has no RPC layer to smooth")
    if not bool(bench.right.any()):
        return _does_not_apply("surrogate", "no image is right")
    values: dict[str, float] = {}
    own = bench.broken("apgd", "apgd-doubled")
    for iterations in sorted({0, most // 2}):
        with at_most(bench.model, iterations):
            images = bench.climb("apgd-doubled").images
        values[f"{iterations} iterations"] = _count(_transferred(bench, images) & ~own)
    return _samples(
        "surrogate", bench, values, "images made on a smoother copy break {} that the model's own gradients do not",
        "then the iterations hide weaknesses instead of removing them",
    )  # fmt: skip


def order(bench: Bench) -> Check:
    """Another order of the images: the same verdicts."""
    other = torch.arange(len(bench) - 1, -1, -1, device=bench.labels.device)
    values: dict[str, float] = {}
    there = bench.broken("order")
    back = bench.attempt("order reversed", lambda: bench.attack("order", bench.images[other], bench.labels[other]))
    if back is not None:
        values["verdicts"] = _count(there != back[other])
    return _samples(
        "order", bench, values, "in another order {} get another verdict",
        "a verdict that depends on its neighbours is not the model's",
    )  # fmt: skip


def neighbours(bench: Bench) -> Check:
    """Another order of the images, and other company in the batch: the same logits."""
    logits = bench.logits(bench.images)
    spread = float((logits - logits.mean(1, keepdim=True)).abs().amax().clamp_min(1e-30))
    half = (min(len(bench), bench.runner.batch_size) + 1) // 2  # the runner fills the batch up with the last image
    again = {
        "order": bench.logits(bench.images.flip(0)).flip(0),
        "company": torch.cat([bench.runner.logits(part) for part in bench.images.split(half)]),
    }
    values = {what: min(float((other - logits).abs().amax()) / spread, 1e30) for what, other in again.items()}
    return _check(
        "neighbours", values, BATCH_MATES,
        f"with other images beside them the logits change by up to {max(values.values()):.1e} of their spread",
        "logits that depend on the batch can be made right by its composition",
    )  # fmt: skip


def finite(bench: Bench) -> Check:
    """NaN and infinite answers, under noise and under PGD."""
    climb = bench.path if bool(bench.right.any()) else None
    values: dict[str, float] = {}
    if climb is not None:
        labels = bench.labels[bench.right]
        losses, gradient, logits = bench.gradients(climb.images, labels, cross_entropy)
        bad = torch.stack([~torch.isfinite(step) for step in climb.losses]).any(0)
        values["losses"] = _count(bad | ~torch.isfinite(losses))
        values["logits"] = _count(~torch.isfinite(logits).all(1) | ~torch.isfinite(bench.logits(climb.images)).all(1))
        values["gradients"] = _count(~torch.isfinite(gradient).flatten(1).all(1))
    return _check(
        "finite", values, 0,
        f"up to {max(values.values(), default=0):.0f} images get NaN or infinite losses, logits or gradients",
        "NaN is no class, and a NaN gradient ends every attack",
    )  # fmt: skip


def runs(bench: Bench) -> Check:
    """Attacks and checks that failed; to be asked last."""
    failed = "; ".join(f"{what}: {error}" for what, error in bench.failures.items())
    return _check(
        "runs", dict.fromkeys(bench.failures, 1.0), 0,
        failed or "every attack and every check ran to its end",
        "an attack that fails breaks nothing, which is no robustness",
    )  # fmt: skip


CHECKS: dict[str, Callable[[Bench], Check]] = {
    "preflight": preflight,
    "more-steps": more_steps,
    "huge-eps": huge_eps,
    "one-step": one_step,
    "other-loss": other_loss,
    "black-box": black_box,
    "gradients": gradients,
    "slope": slope,
    "ascent": ascent,
    "surrogate": surrogate,
    "neighbours": neighbours,
    "order": order,
    "finite": finite,
}


def run_checks(bench: Bench) -> list[Check]:
    """Ask every question; one that cannot be asked is without values, and flagged under `runs`."""
    found = []
    for name, ask in CHECKS.items():
        check = bench.attempt(name, partial(ask, bench))
        found.append(check or _does_not_apply(name, f"could not be asked: {bench.failures[name]}"))
    return [*found, runs(bench)]


def _transferred(bench: Bench, images: Tensor) -> Mask:
    """Which samples are wrong on these images, one for each that is right; clean errors included."""
    wrong = ~bench.right
    wrong[bench.right] = bench.verdicts(images, bench.labels[bench.right])
    return wrong


def _count(mask: Tensor) -> int:
    return int(mask.sum())


def _samples(name: str, bench: Bench, values: dict[str, float] | dict[str, int], saw: str, why: str) -> Check:
    worst = f"{max(values.values(), default=0):.0f} of {len(bench)} images"
    return _check(name, dict(values), samples_allowed(len(bench)), saw.format(worst), why)


def _check(name: str, values: dict[str, float], limit: float, saw: str, why: str) -> Check:
    flag = any(value > limit for value in values.values())
    return Check(name=name, values=values, limit=limit, flag=flag, saw=saw, why=why)


def _does_not_apply(name: str, reason: str) -> Check:
    return _check(name, {}, 0, reason, "")
