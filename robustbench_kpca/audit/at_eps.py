"""Two checks at the eps of the audit: whether the gradient says what happens there, and whether pictures transfer."""

import torch
from torch import Tensor

from robustbench_kpca.attacks.shared.ball import project
from robustbench_kpca.attacks.shared.draws import signs, uniforms
from robustbench_kpca.attacks.shared.losses import cross_entropy, margin
from robustbench_kpca.audit import limits
from robustbench_kpca.audit.answers import answer, by_more, count, samples, transferred, worse
from robustbench_kpca.audit.comparisons import white_box
from robustbench_kpca.audit.context import AuditContext
from robustbench_kpca.records.audit import Check
from robustbench_kpca.types import Images, Labels, Mask

STEP = 0.25  # share of eps, as in PGD-20
SIGNS_FROM = 1000  # other directions than those of the check `slope`


def reach(context: AuditContext) -> Check:
    """Compare the gradient of the margin with what happens at eps and at a quarter of it, there by a factor.

    At radius r the gradient g predicts r g.v along v. `unseen` are images where more happens along random signs v:
    the root mean square of (m(x + r v) - m(x - r v)) / 2 is more than `REACH_FACTOR` times as predicted. `overstated`
    are images where less happens along -sign(g): the margin falls by less than the prediction divided by the factor.
    An image counts only if it does so at both radii.
    """
    masks = [_at(context, min(radius * context.threat.eps, 0.5)) for radius in limits.REACH_RADII]  # inside [0, 1]
    unseen, overstated = (torch.stack(part).all(0) for part in zip(*masks, strict=True))
    return answer(
        "reach",
        {"unseen": count(unseen), "overstated": count(overstated)},
        limits.slopes_allowed(len(context)),
        f"at eps and at a quarter of it, more happens than {limits.REACH_FACTOR:g} times what the gradient says on "
        f"{count(unseen)} of {len(context)} images, and less than one part in {limits.REACH_FACTOR:g} on "
        f"{count(overstated)}",
        "an attack within eps goes astray where the gradient says nothing of what happens at eps (gradient masking)",
    )


def _at(context: AuditContext, radius: float) -> tuple[Mask, Mask]:
    keys, labels = context.keys[context.correct], context.labels[context.correct]
    images = context.images[context.correct].clamp(radius, 1 - radius)
    slopes = context.gradients(images, labels, margin)
    predicted, measured = [], []
    for number in range(limits.REACH_DIRECTIONS):
        v = radius * signs(keys, torch.full_like(keys, SIGNS_FROM + number), images)
        predicted.append((slopes.gradient * v).flatten(1).sum(1))
        ahead, behind = (context.per_batch(images + side * v, labels, margin) for side in (1, -1))
        measured.append((ahead - behind) / 2)
    changes, expected = (torch.stack(part).norm(dim=0) for part in (measured, predicted))
    down = -radius * slopes.gradient.sign()
    fall = slopes.losses - context.per_batch(images + down, labels, margin)
    first_order = -(slopes.gradient * down).flatten(1).sum(1)
    return changes > limits.REACH_FACTOR * expected, (fall < first_order / limits.REACH_FACTOR) & (first_order > 0)


def smoothed(context: AuditContext) -> Check:
    """Transfer pictures made on a smoother copy: the gradient is averaged over images with uniform noise.

    Where a gradient says nothing at the image itself, it may say something on average nearby (Athalye, Carlini & Wagner
    2018, arXiv:1802.00420, section 4).
    """
    missed = worse(transferred(context, _pictures(context)), white_box(context))
    return samples(
        "smoothed",
        context,
        {"transferred": missed},
        f"pictures of a smoother copy break {{}} that gradient attacks do not{by_more(context)}",
        "if so, the model's own gradients mislead the attacks (gradient masking)",
    )


def _pictures(context: AuditContext) -> Images:
    """Follow the sign of the averaged gradient of cross-entropy within eps."""
    clean, labels = context.images[context.correct], context.labels[context.correct]
    keys, eps = context.keys[context.correct], context.threat.eps
    x = clean
    for step in range(limits.SMOOTHED_STEPS):
        total = torch.zeros_like(clean)
        for draw in range(limits.SMOOTHED_DRAWS):
            noisy = (x + limits.SMOOTHED_NOISE * eps * _noise(keys, step * limits.SMOOTHED_DRAWS + draw, x)).clamp(0, 1)
            total = total + context.gradients(noisy, labels, cross_entropy).gradient
        x = project(x + STEP * eps * total.sign(), clean, context.threat)
    return x


def _noise(keys: Labels, number: int, like: Images) -> Tensor:
    """Draw uniform noise in [-1, 1] for each sample."""
    drawn = uniforms(keys, torch.full_like(keys, number), like[0].numel())
    return (2 * drawn - 1).to(like).view(like.shape)
