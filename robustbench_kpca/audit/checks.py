"""The checks of an audit. Each is one question whose answer is known for an honestly evaluated model.

Carlini et al. (2019), "On Evaluating Adversarial Robustness", arXiv:1902.06705, sections 3 and 5; Athalye, Carlini &
Wagner (2018), "Obfuscated Gradients Give a False Sense of Security", arXiv:1802.00420, section 3.1.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attacks.shared.draws import signs
from robustbench_kpca.attacks.shared.losses import cross_entropy, dlr, margin
from robustbench_kpca.audit.answers import answer, count, does_not_apply, samples
from robustbench_kpca.audit.bench import Bench, all_finite
from robustbench_kpca.audit.comparisons import (
    black_box,
    huge_eps,
    more_steps,
    one_step,
    order,
    other_loss,
    surrogate,
)
from robustbench_kpca.audit.limits import (
    FLAT,
    SAME_DIRECTION,
    SLOPE_DIRECTIONS,
    SLOPE_ERROR,
    SLOPE_STEP,
    slopes_allowed,
)
from robustbench_kpca.audit.preflight import BATCH_MATES, LOST, inspect
from robustbench_kpca.records.audit import Check
from robustbench_kpca.tasks.audit_plan import SLACK
from robustbench_kpca.types import Images, Mask


def preflight(bench: Bench) -> Check:
    """Ask what would refuse an evaluation."""
    size = bench.runner.batch_size
    found = inspect(bench.runner, bench.images[:size], bench.labels[:size])
    return answer(
        "preflight", {finding.check: 1 for finding in found}, 0,
        "; ".join(finding.met for finding in found) or "every preflight check passes",
        "an attack on a model that fails one means nothing",
    )  # fmt: skip


def gradients(bench: Bench) -> Check:
    """Zero, constant and flat gradients of both losses, at the start of PGD and where it ends on what still stands.

    (Where an answer is wrong already, DLR is flat by design: it is 1 wherever the label ranks third. Where every pixel
    has a label, some are, so that DLR is not asked, and cross-entropy is flat if more than half of the right ones lose
    theirs to rounding.)
    """
    if not bool(bench.right.any()):
        return does_not_apply("gradients", "no image is right")
    start, labels = bench.images[bench.right], bench.labels[bench.right]
    stands = bench.shares(bench.path.images, labels) > SLACK
    places = {"start": (start, labels), "end": (bench.path.images[stands], labels[stands])}
    values: dict[str, float] = {}
    losses = [("ce", cross_entropy)]
    if not (bench.success.graded or bench.few_classes):
        losses.append(("dlr", dlr))
    for where, (images, own) in places.items():
        for name, loss in losses:
            if len(images):
                found = bench.slopes(images, own, loss)
                reach = bench.threat.eps * found.gradient.flatten(1).abs().sum(1)
                values[f"{name} zero at {where}"] = count(reach == 0)
                values[f"{name} constant at {where}"] = count(_repeated(found.gradient, images))
                values[f"{name} flat at {where}"] = count(found.lost > LOST if name == "ce" else reach < FLAT)
    return samples(
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
        return does_not_apply("slope", "no image is right")
    step, keys = SLOPE_STEP * bench.threat.eps, bench.keys[bench.right]
    images, labels = bench.images[bench.right].clamp(step, 1 - step), bench.labels[bench.right]
    gradient = bench.slopes(images, labels, margin).gradient
    told, seen = [], []
    for number in range(SLOPE_DIRECTIONS):
        v = signs(keys, torch.full_like(keys, number), images)
        told.append(step * (gradient * v).flatten(1).sum(1))
        ahead, behind = (bench.ask(images + side * v, labels, margin) for side in (step, -step))
        seen.append((ahead - behind) / 2)
    changes, errors = torch.stack(seen, 1), torch.stack(seen, 1) - torch.stack(told, 1)
    explained = (errors.norm(dim=1) <= SLOPE_ERROR * changes.norm(dim=1)) & (changes.norm(dim=1) > 0)
    return answer(
        "slope", {"unexplained": count(~explained)}, slopes_allowed(len(bench)),
        f"the gradients of {count(~explained)} of {len(bench)} images do not tell how the margin changes next to them",
        "an attack that climbs something else than the model's own loss misses its weaknesses",
    )  # fmt: skip


def ascent(bench: Bench) -> Check:
    """Whether the loss rises."""
    if not bool(bench.right.any()):
        return does_not_apply("ascent", "no image is right")
    climb = bench.path
    last = bench.slopes(climb.images, bench.labels[bench.right], cross_entropy).losses
    values = {"no rise": count(~(last > climb.losses[0]))}
    return samples(
        "ascent", bench, values, "the loss of {} is not higher after PGD than before",
        "steps uphill must lead up, or the slope is not the function's",
    )  # fmt: skip


def neighbours(bench: Bench) -> Check:
    """Another order of the images, and other company in the batch: the same logits.

    (Of maps of logits, no more than a batch is kept.)
    """
    images = bench.images[: bench.runner.batch_size] if bench.success.graded else bench.images
    logits = bench.runner.logits(images)
    spread = float((logits - logits.mean(1, keepdim=True)).abs().amax().clamp_min(1e-30))
    half = (min(len(images), bench.runner.batch_size) + 1) // 2  # the runner fills the batch up with the last image
    again = {
        "order": bench.runner.logits(images.flip(0)).flip(0),
        "company": torch.cat([bench.runner.logits(part) for part in images.split(half)]),
    }
    values = {what: min(float((other - logits).abs().amax()) / spread, 1e30) for what, other in again.items()}
    return answer(
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
        found = bench.slopes(climb.images, labels, cross_entropy)
        bad = torch.stack([~torch.isfinite(step) for step in climb.losses]).any(0)
        values["losses"] = count(bad | ~torch.isfinite(found.losses))
        values["logits"] = count(~found.finite | ~bench.ask(climb.images, labels, all_finite))
        values["gradients"] = count(~torch.isfinite(found.gradient).flatten(1).all(1))
    return answer(
        "finite", values, 0,
        f"up to {max(values.values(), default=0):.0f} images get NaN or infinite losses, logits or gradients",
        "NaN is no class, and a NaN gradient ends every attack",
    )  # fmt: skip


def runs(bench: Bench) -> Check:
    """Attacks and checks that failed; to be asked last."""
    failed = "; ".join(f"{what}: {error}" for what, error in bench.failures.items())
    return answer(
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
        found.append(check or does_not_apply(name, f"could not be asked: {bench.failures[name]}"))
    return [*found, runs(bench)]
