"""Show logits on one scale, so that an audit's answers do not depend on a temperature.

Dividing logits by a constant changes no prediction, but it changes cross-entropy: small logits make it nearly linear,
large ones round it to zero. So an audit divides logits by the larger of g / `GAP` and h / `GAP_HIGH`, where g and h are
the median and the 95th percentile, over its clean images, of the gap between the two largest logits. A common offset,
such as that of log-softmax, does not change them.
"""

from dataclasses import replace

import torch

from robustbench_kpca._engine.inference.runner import Presentation
from robustbench_kpca.audit.limits import GAP, GAP_HIGH
from robustbench_kpca.types import Logits, PerSample


def gaps(logits: Logits) -> PerSample:
    """Return the gap between the two largest logits; for logits of pixels, the median over an image's pixels."""
    largest = logits.topk(min(2, logits.shape[1]), dim=1).values
    gap = largest[:, 0] - largest[:, -1]
    return gap if gap.ndim == 1 else gap.flatten(1).median(1).values


def scale_of(of_samples: PerSample) -> float:
    """Return what logits are divided by; 1 if the gaps are zero or not finite."""
    finite = of_samples[torch.isfinite(of_samples)].double()
    if not len(finite):
        return 1.0
    scale = max(float(finite.median()) / GAP, float(finite.quantile(0.95)) / GAP_HIGH)
    return scale if scale > 0 else 1.0


def divided(presentation: Presentation, scale: float) -> Presentation:
    """Return the same presentation with logits divided by `scale`; gradients pass through."""
    return replace(presentation, show=lambda model, x: presentation.show(model, x) / scale)
