"""Whether a search in another precision is faster than one in single precision, as measured."""

import copy
import time

import torch

from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.attacks.shared.losses import cross_entropy
from robustbench_kpca.types import Images, Labels

_PASSES = 3  # timed of each precision; the fastest counts


def remark(runner: Runner, x: Images, labels: Labels) -> str:
    """Return a remark for the record if the precision of the search makes gradients slower than single precision.

    Costs four forward and backward passes in each precision, which are not counted.

    Args:
        runner: of the evaluation.
        x: one batch.
        labels: its labels.
    """
    if runner.search == torch.float32:
        return ""
    exact, rough = copy.copy(runner), copy.copy(runner)
    exact.search = torch.float32
    times: list[list[float]] = [[], []]
    for _ in range(_PASSES + 1):  # the first is warm-up
        for timed, own in zip((exact, rough), times, strict=True):
            started = time.perf_counter()
            _, gradient, _ = timed.gradient(x, lambda logits: cross_entropy(logits, labels))
            gradient.sum().item()
            own.append(time.perf_counter() - started)
    ratio = min(times[1][1:]) / min(times[0][1:])
    if ratio <= 1:
        return ""
    return (
        f"the search in bfloat16 does not pay here: a gradient takes {ratio:.1f} times as long as in single precision"
    )
