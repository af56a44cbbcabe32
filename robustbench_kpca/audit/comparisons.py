"""The checks of an audit that set one attack against another: what must find more, must not find less."""

import torch

from robustbench_kpca.audit.answers import by_more, count, does_not_apply, samples, transferred, worse
from robustbench_kpca.audit.bench import Bench
from robustbench_kpca.models.mixing import at_most, rpc_layers
from robustbench_kpca.records.audit import Check
from robustbench_kpca.tasks.audit_plan import GAIN, HUGE_EPS, SLACK
from robustbench_kpca.types import PerSample


def more_steps(bench: Bench) -> Check:
    """Twice the steps."""
    gained = {}
    for name, steps in (("pgd", 20), ("apgd", 20)):
        once, twice = bench.left(name), bench.left(f"{name}-doubled")
        gained[f"{name} {steps} to {2 * steps}"] = worse(twice, once, GAIN) - worse(once, twice, GAIN)
    return samples(
        "more-steps", bench, gained, f"twice the steps break {{}} more{by_more(bench, GAIN)}",
        "an attack that has not converged overstates robustness",
    )  # fmt: skip


def huge_eps(bench: Bench) -> Check:
    """Attack in a ball in which nothing can be robust.

    Grey is in it. One label must be lost there, be it grey's own; of the pixels, grey's own may stay.
    """
    allowed = torch.zeros_like(bench.clean)
    if bench.success.graded:
        allowed = bench.shares(torch.full_like(bench.images, 0.5), bench.labels)
    standing = {"standing": worse(allowed, bench.left("huge-eps"))}
    more = f": more than {100 * SLACK:.0f} % of their {bench.task.unit}s that are wrong on grey"
    more = more if bench.success.graded else ""
    return samples(
        "huge-eps", bench, standing, f"{{}} stand in a ball of eps = {HUGE_EPS}{more}",
        "there every image can be made plain grey, so whatever stands is an attack that fails",
    )  # fmt: skip


def one_step(bench: Bench) -> Check:
    """FGSM against PGD."""
    only = {"fgsm only": worse(bench.left("fgsm"), bench.left("pgd"))}
    return samples(
        "one-step", bench, only, f"one step breaks {{}} that twenty do not{by_more(bench)}",
        "iterations lose to a single step where gradients mislead",
    )  # fmt: skip


def other_loss(bench: Bench) -> Check:
    """Ask of each attack of which more is expected than of any other, whether it finds what they all find together.

    Of one label an image these are the cross-entropy attacks, beside DLR. Of one label a pixel plain cross-entropy
    loses to SegPGD on honest segmenters (Gu et al. 2022, arXiv:2207.12391): it is SegPGD that is not to lose.
    """
    every = white_box(bench)
    strong = bench.task.compute.audit.strongest
    values = {name: worse(every, bench.left(name)) for name in strong}
    return samples(
        "other-loss", bench, values, f"one gradient attack leaves {{}} that another breaks{by_more(bench)}",
        "an attack that misses what its equals find overstates robustness; often its loss saturates",
    )  # fmt: skip


def black_box(bench: Bench) -> Check:
    """Attacks without gradients, and a sibling's adversarial images, against all gradient attacks together."""
    plan, white = bench.task.compute.audit, white_box(bench)
    values = {name: worse(bench.left(name), white) for name in plan.black_box}
    if bench.sibling is not None and bool(bench.right.any()):
        images = bench.climb("apgd-doubled", bench.sibling).images
        values["sibling"] = worse(transferred(bench, images), white)
    missing = f"; {plan.left_out}" if plan.left_out else ""
    saw = "attacks without its gradients break {} that gradient attacks do not"
    return samples(
        "black-box", bench, values, f"{saw}{by_more(bench)}{missing}", "gradients that lose to guesses are masked"
    )


def surrogate(bench: Bench) -> Check:
    """Adversarial images of the model with fewer iterations in its RPC layers, shown to the model itself."""
    most = max((layer.pursuit.iterations for layer in rpc_layers(bench.model)), default=0)
    if most == 0:
        return does_not_apply("surrogate", "does not apply: the model has no RPC layer to smooth")
    if not bool(bench.right.any()):
        return does_not_apply("surrogate", "no image is right")
    values: dict[str, float] = {}
    own = bench.left("apgd", "apgd-doubled")
    for iterations in sorted({0, most // 2}):
        with at_most(bench.model, iterations):
            images = bench.climb("apgd-doubled").images
        values[f"{iterations} iterations"] = worse(transferred(bench, images), own)
    saw = "images made on a smoother copy break {} that the model's own gradients do not"
    return samples(
        "surrogate", bench, values, f"{saw}{by_more(bench)}",
        "then the iterations hide weaknesses instead of removing them",
    )  # fmt: skip


def order(bench: Bench) -> Check:
    """Another order of the images: the same verdicts."""
    other = torch.arange(len(bench) - 1, -1, -1, device=bench.labels.device)
    values: dict[str, float] = {}
    there = bench.left("order")
    back = bench.attempt("order reversed", lambda: bench.attack("order", bench.images[other], bench.labels[other]))
    if back is not None:
        values["verdicts"] = count((there - back[other]).abs() > SLACK)
    return samples(
        "order", bench, values, f"in another order {{}} get another verdict{by_more(bench)}",
        "a verdict that depends on its neighbours is not the model's",
    )  # fmt: skip


def white_box(bench: Bench) -> PerSample:
    """Return what all gradient attacks together leave."""
    return bench.left(*(name for name in bench.task.compute.audit.white_box if name in bench.attacks))
