"""What the mechanism of an attention changes: the answers of a model with it against those with its off switch."""

from statistics import fmean

import torch

from robustbench_kpca.audit.answers import count, does_not_apply
from robustbench_kpca.audit.context import AuditContext
from robustbench_kpca.models.altered import altered, off_switch
from robustbench_kpca.models.mixing import watched
from robustbench_kpca.records.audit import Check
from robustbench_kpca.types import Images

MOST = 1e30  # in place of an infinite or missing change of logits


def mechanism(context: AuditContext) -> Check:
    """Switch the mechanism off, on clean images and at the end of PGD. A mark: whatever is found, nothing is flagged.

    `changed` counts predictions, of `predictions`. `logits` is the root mean square of what changes in them, divided by
    that of their differences from the mean over classes. `density` is the share of entries of S of RPC attention that
    are not zero, by iteration, on the first batch of clean images.
    """
    switch = off_switch(context.model)
    if not switch:
        return does_not_apply("mechanism", "no attention of the model has an off switch")
    places = {"on clean images": context.images}
    if bool(context.correct.any()):
        places["after PGD"] = context.pgd.images
    values, saw = dict[str, float](), list[str]()
    for where, images in places.items():
        number, changed, logits = _changes(context, images, switch)
        values |= {f"predictions {where}": number, f"changed {where}": changed, f"logits {where}": logits}
        saw.append(f"{changed} of {number} predictions {where} (logits by {100 * logits:.2g} % of their spread)")
    shares = _densities(context)
    values |= {f"density in iteration {iteration}": share for iteration, share in shares.items()}
    text = f"; S is not zero in {', '.join(f'{100 * share:.2g}' for share in shares.values())} % of its entries"
    return Check(
        name="mechanism",
        values=values,
        limit=None,
        flag=False,
        saw=f"without the mechanism, by {switch}, change {' and '.join(saw)}{text if shares else ''}",
        why="a mechanism that changes nothing explains no difference between models",
    )


def _changes(context: AuditContext, images: Images, switch: str) -> tuple[int, int, float]:
    """Return the number of predictions, how many change, and how much logits change."""
    number = changed = 0
    moved = spread = 0.0
    for x in images.split(context.runner.batch_size):
        logits = context.runner.logits(x)
        with altered(context.model, switch):
            without = context.runner.logits(x)
        number += logits.argmax(1).numel()
        changed += count((logits.argmax(1) != without.argmax(1)).flatten())
        moved += float((logits - without).double().square().sum())
        spread += float((logits - logits.mean(1, keepdim=True)).double().square().sum())
    share = (moved / max(spread, 1 / MOST)) ** 0.5
    return number, changed, share if share < MOST else MOST  # NaN, too


def _densities(context: AuditContext) -> dict[int, float]:
    """Return the density of S by iteration, averaged over layers; empty without RPC attention."""
    with watched(context.model) as observed, torch.no_grad():
        context.runner.logits(context.images[: context.runner.batch_size])
    shares: dict[int, list[float]] = {}
    for _, iteration, share in observed:
        shares.setdefault(iteration, []).append(share)
    return {iteration: fmean(of_layers) for iteration, of_layers in shares.items()}
