"""The audit checks that compare two attacks: the attack that should be stronger must not break fewer samples."""

import torch

from robustbench_kpca.audit.answers import by_more, count, does_not_apply, samples, transferred, worse
from robustbench_kpca.audit.context import AuditContext
from robustbench_kpca.models.mixing import at_most, rpc_layers
from robustbench_kpca.records.audit import Check
from robustbench_kpca.tasks.audit_plan import GAIN, HUGE_EPS, SLACK
from robustbench_kpca.types import PerSample


def more_steps(context: AuditContext) -> Check:
    """Compare PGD and APGD with twice the steps."""
    gained = {}
    for name, steps in (("pgd", 20), ("apgd", 20)):
        once, twice = context.remaining(name), context.remaining(f"{name}-doubled")
        gained[f"{name} {steps} to {2 * steps}"] = worse(twice, once, GAIN) - worse(once, twice, GAIN)
    return samples(
        "more-steps",
        context,
        gained,
        f"with twice the steps, attacks break {{}} more{by_more(context, GAIN)}",
        "an attack that has not converged overestimates robustness",
    )


def huge_eps(context: AuditContext) -> Check:
    """Attack with a ball so large that it contains the plain grey image, so that no sample can be robust.

    With one label per image, every sample must be broken; an honest model could keep images of the class that it sees
    in plain grey, but no such model has been met. With one label per pixel, the pixels that the model predicts
    correctly on the grey image may stay correct.
    """
    allowed = torch.zeros_like(context.clean)
    if context.success.graded:
        allowed = context.correct_fraction(torch.full_like(context.images, 0.5), context.labels)
    standing = {"standing": worse(allowed, context.remaining("huge-eps"))}
    more = f": more than {100 * SLACK:.0f} % of their {context.task.unit}s are correct although wrong on plain grey"
    more = more if context.success.graded else ""
    return samples(
        "huge-eps",
        context,
        standing,
        f"{{}} are not broken at eps = {HUGE_EPS}{more}",
        "every image can be turned into plain grey at this eps, so an unbroken image means that the attack failed",
    )


def one_step(context: AuditContext) -> Check:
    """Find samples that FGSM breaks and PGD does not."""
    only = {"fgsm only": worse(context.remaining("fgsm"), context.remaining("pgd"))}
    return samples(
        "one-step",
        context,
        only,
        f"one step breaks {{}} that twenty steps do not{by_more(context)}",
        "a single step beats an iterative attack if the gradients are misleading (gradient masking)",
    )


def other_loss(context: AuditContext) -> Check:
    """Check that each of the strongest attacks breaks what all gradient attacks together break.

    With one label per image these are the cross-entropy attacks, compared with DLR. With one label per pixel it is
    SegPGD, because plain cross-entropy is weaker than SegPGD on honest segmenters (Gu et al. 2022, arXiv:2207.12391).
    """
    every = white_box(context)
    strong = context.task.compute.audit.strongest
    values = {name: worse(every, context.remaining(name)) for name in strong}
    return samples(
        "other-loss",
        context,
        values,
        f"one gradient attack does not break {{}} that another breaks{by_more(context)}",
        "an attack that misses what similar attacks find overestimates robustness; often its loss saturates",
    )


def black_box(context: AuditContext) -> Check:
    """Find samples that black-box attacks break and no gradient attack breaks."""
    plan, white = context.task.compute.audit, white_box(context)
    values = {name: worse(context.remaining(name), white) for name in plan.black_box}
    missing = f"; {plan.left_out}" if plan.left_out else ""
    saw = "attacks without gradients break {} that gradient attacks do not"
    return samples(
        "black-box",
        context,
        values,
        f"{saw}{by_more(context)}{missing}",
        "a black-box attack beats gradient attacks if the gradients are masked",
    )


def surrogate(context: AuditContext) -> Check:
    """Transfer adversarial images from a copy of the model with fewer iterations in its RPC layers."""
    most = max((layer.pursuit.iterations for layer in rpc_layers(context.model)), default=0)
    if most == 0:
        return does_not_apply("surrogate", "does not apply: the model has no RPC layer to smooth")
    if not bool(context.correct.any()):
        return does_not_apply("surrogate", "the model is wrong on every image")
    values: dict[str, float] = {}
    remaining = context.remaining("apgd", "apgd-doubled")
    for iterations in sorted({0, most // 2}):
        with at_most(context.model, iterations):
            images = context.trajectory("apgd-doubled").images
        values[f"{iterations} iterations"] = worse(transferred(context, images), remaining)
    saw = "adversarial images of a smoother copy break {} that the model's own gradients do not"
    return samples(
        "surrogate",
        context,
        values,
        f"{saw}{by_more(context)}",
        "if so, the iterations mask the gradients instead of making the model robust",
    )


def order(context: AuditContext) -> Check:
    """Check that attack results do not depend on the order of the images."""
    other = torch.arange(len(context) - 1, -1, -1, device=context.labels.device)
    values: dict[str, float] = {}
    forward = context.remaining("order")
    backward = context.attempt(
        "order reversed", lambda: context.attack("order", context.images[other], context.labels[other])
    )
    if backward is not None:
        values["verdicts"] = count((forward - backward[other]).abs() > SLACK)
    return samples(
        "order",
        context,
        values,
        f"in reverse order {{}} get a different result{by_more(context)}",
        "a result that depends on other images is not a property of the model",
    )


def white_box(context: AuditContext) -> PerSample:
    """Return the fraction of labels that stay correct under all gradient attacks together."""
    return context.remaining(*(name for name in context.task.compute.audit.white_box if name in context.attacks))
