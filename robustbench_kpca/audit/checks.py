"""The checks of an audit: each tests a property that must hold if attacks on the model are effective.

Carlini et al. (2019), "On Evaluating Adversarial Robustness", arXiv:1902.06705, sections 3 and 5; Athalye, Carlini &
Wagner (2018), "Obfuscated Gradients Give a False Sense of Security", arXiv:1802.00420, section 3.1.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.attacks.shared.draws import signs
from robustbench_kpca.attacks.shared.losses import cross_entropy, dlr, margin
from robustbench_kpca.audit import limits
from robustbench_kpca.audit.answers import answer, count, does_not_apply, samples
from robustbench_kpca.audit.at_eps import reach, smoothed
from robustbench_kpca.audit.comparisons import black_box, huge_eps, more_steps, one_step, order, other_loss, surrogate
from robustbench_kpca.audit.context import AuditContext, all_finite
from robustbench_kpca.audit.mechanism import MOST, mechanism
from robustbench_kpca.audit.preflight import AT_EDGE, BATCH_MATES, LOST, inspect
from robustbench_kpca.audit.stairs import stairs
from robustbench_kpca.records.audit import Check
from robustbench_kpca.records.audit_versions import CHECKS as CHECKS_OF
from robustbench_kpca.records.audit_versions import LATEST, WITHOUT_ATTACKS
from robustbench_kpca.tasks.audit_plan import SLACK
from robustbench_kpca.types import Images, Mask


def preflight(context: AuditContext) -> Check:
    """Run the preflight checks, which an evaluation must pass."""
    size = context.runner.batch_size
    causal = context.task.compute.causal
    findings = inspect(context.runner, context.images[:size], context.labels[:size], causal=causal)
    scale = f"attacks of the audit see the logits divided by {context.scale:.3g}"
    scale += f"; {AT_EDGE}" if context.runner.presentation.inside else ""
    return answer(
        "preflight",
        {finding.check: 1 for finding in findings},
        0,
        "; ".join(finding.problem for finding in findings) or f"every preflight check passes; {scale}",
        "attacks on a model that fails a preflight check give meaningless results",
    )


def gradients(context: AuditContext) -> Check:
    """Find zero, constant and flat gradients of cross-entropy and DLR, at the start of PGD and at its end.

    At the end only samples that are not broken are checked: on a misclassified sample DLR is flat by design (it is 1
    wherever the label ranks third). With one label per pixel some pixels are always wrong, so DLR is not checked there.
    Cross-entropy is flat if it is rounded to zero for more than half of the correct labels.
    """
    start, labels = context.images[context.correct], context.labels[context.correct]
    unbroken = context.correct_fraction(context.pgd.images, labels) > SLACK
    places = {"start": (start, labels), "end": (context.pgd.images[unbroken], labels[unbroken])}
    values: dict[str, float] = {}
    losses = [("ce", cross_entropy)]
    if not (context.success.graded or context.few_classes):
        losses.append(("dlr", dlr))
    for where, (images, targets) in places.items():
        for name, loss in losses:
            if len(images):
                slopes = context.gradients(images, targets, loss)
                reach = context.threat.eps * slopes.gradient.flatten(1).abs().sum(1)
                values[f"{name} zero at {where}"] = count(reach == 0)
                values[f"{name} constant at {where}"] = count(_repeated(slopes.gradient, images))
                values[f"{name} flat at {where}"] = count(
                    slopes.zero_loss > LOST if name == "ce" else reach < limits.FLAT
                )
    return samples(
        "gradients",
        context,
        values,
        "up to {} have a gradient that is zero, flat or equal to that of another image",
        "a gradient attack cannot improve where the gradient carries no information (gradient masking)",
    )


def _repeated(gradient: Images, images: Images) -> Mask:
    """Tell which gradients are parallel to the gradient of a different image."""
    directions = F.normalize(gradient.flatten(1).double(), dim=1)
    same = (directions @ directions.T).abs() > limits.SAME_DIRECTION
    flat = images.flatten(1)
    twins = torch.stack([(flat == image).all(1) for image in flat])
    return (same & ~twins).any(1)


def slope(context: AuditContext) -> Check:
    """Compare the gradient of the margin with finite differences along random sign directions."""
    step, keys = limits.SLOPE_STEP * context.threat.eps, context.keys[context.correct]
    images, labels = context.images[context.correct].clamp(step, 1 - step), context.labels[context.correct]
    gradient = context.gradients(images, labels, margin).gradient
    predicted, measured = [], []
    for number in range(limits.SLOPE_DIRECTIONS):
        v = signs(keys, torch.full_like(keys, number), images)
        predicted.append(step * (gradient * v).flatten(1).sum(1))
        ahead, behind = (context.per_batch(images + side * v, labels, margin) for side in (step, -step))
        measured.append((ahead - behind) / 2)
    changes, errors = torch.stack(measured, 1), torch.stack(measured, 1) - torch.stack(predicted, 1)
    explained = (errors.norm(dim=1) <= limits.SLOPE_ERROR * changes.norm(dim=1)) & (changes.norm(dim=1) > 0)
    return answer(
        "slope",
        {"unexplained": count(~explained)},
        limits.slopes_allowed(len(context)),
        f"on {count(~explained)} of {len(context)} images the gradient does not predict how the margin changes nearby",
        "an attack that follows a wrong gradient does not find the model's errors (gradient masking)",
    )


def ascent(context: AuditContext) -> Check:
    """Check that PGD increases the loss."""
    pgd = context.pgd
    last = context.gradients(pgd.images, context.labels[context.correct], cross_entropy).losses
    values = {"no rise": count(~(last > pgd.losses[0]))}
    return samples(
        "ascent",
        context,
        values,
        "the loss of {} is not higher after PGD than before",
        "PGD should increase the loss; otherwise the gradient is not that of the loss",
    )


def neighbours(context: AuditContext) -> Check:
    """Check that logits depend neither on the order of the images nor on the other images of the batch.

    With one label per pixel only one batch is checked, to save memory.
    """
    images = context.images[: context.runner.batch_size] if context.success.graded else context.images
    logits = context.runner.logits(images)
    spread = float((logits - logits.mean(1, keepdim=True)).abs().amax().clamp_min(1e-30))
    half = (min(len(images), context.runner.batch_size) + 1) // 2  # the runner pads with copies of the last image
    again = {
        "order": context.runner.logits(images.flip(0)).flip(0),
        "company": torch.cat([context.runner.logits(part) for part in images.split(half)]),
    }
    changes = {what: float((other - logits).abs().amax()) / spread for what, other in again.items()}
    values = {what: change if change < MOST else MOST for what, change in changes.items()}  # NaN, too
    return answer(
        "neighbours",
        values,
        BATCH_MATES,
        f"with other images in the batch the logits change by up to {max(values.values()):.1e} of their spread",
        "if logits depend on the batch, the result depends on which images share it",
    )


def finite(context: AuditContext) -> Check:
    """Find NaN and infinite losses, logits and gradients under PGD."""
    pgd = context.pgd if bool(context.correct.any()) else None
    values: dict[str, float] = {}
    if pgd is not None:
        labels = context.labels[context.correct]
        slopes = context.gradients(pgd.images, labels, cross_entropy)
        bad = torch.stack([~torch.isfinite(step) for step in pgd.losses]).any(0)
        values["losses"] = count(bad | ~torch.isfinite(slopes.losses))
        values["logits"] = count(~slopes.finite | ~context.per_batch(pgd.images, labels, all_finite))
        values["gradients"] = count(~torch.isfinite(slopes.gradient).flatten(1).all(1))
    return answer(
        "finite",
        values,
        0,
        f"up to {max(values.values(), default=0):.0f} images have NaN or infinite losses, logits or gradients",
        "NaN logits are not a prediction, and a NaN gradient makes a gradient attack impossible",
    )


def runs(context: AuditContext) -> Check:
    """List the attacks and checks that raised an exception; this check runs last."""
    failed = "; ".join(f"{what}: {error}" for what, error in context.failures.items())
    return answer(
        "runs",
        dict.fromkeys(context.failures, 1.0),
        0,
        failed or "every attack and every check ran without an error",
        "an attack that raises an error breaks no sample, which is not robustness",
    )


CHECKS: dict[str, Callable[[AuditContext], Check]] = {
    "preflight": preflight,
    "more-steps": more_steps,
    "huge-eps": huge_eps,
    "one-step": one_step,
    "other-loss": other_loss,
    "black-box": black_box,
    "gradients": gradients,
    "slope": slope,
    "reach": reach,
    "stairs": stairs,
    "ascent": ascent,
    "surrogate": surrogate,
    "smoothed": smoothed,
    "neighbours": neighbours,
    "order": order,
    "finite": finite,
    "mechanism": mechanism,
}


OF_RIGHT_ANSWERS = ("gradients", "slope", "reach", "stairs", "ascent", "smoothed")
"""Checks that attack the images that the model answers rightly."""
QUICK = CHECKS_OF[LATEST]["quick"]
"""The checks of a quick audit, which need only the attacks of `budgets.QUICK`, of at most 20 steps. Left out are those
that compare strong attacks with stronger ones, and with attacks without gradients (`docs/trust.md`)."""


def run_checks(context: AuditContext) -> list[Check]:
    """Run every check of the level; one that raises an exception has no values, and the check `runs` flags it."""
    checks = []
    for name, run in CHECKS.items():
        if (context.level == "quick" and name not in QUICK) or not (context.attacks or name in WITHOUT_ATTACKS):
            continue
        if name in OF_RIGHT_ANSWERS and not bool(context.correct.any()):
            checks.append(does_not_apply(name, "the model is wrong on every image"))
            continue
        context.meter.stage = name
        check = context.attempt(name, partial(run, context))
        checks.append(check or does_not_apply(name, f"could not be run: {context.failures[name]}"))
    return [*checks, runs(context)]
