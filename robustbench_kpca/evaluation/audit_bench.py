"""The bench of an audit: the model, the images, and every attack at its budget, each run at most once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from robustbench_kpca.attacks._ball import distance
from robustbench_kpca.audit import Budget
from robustbench_kpca.evaluation.engine import build_attack
from robustbench_kpca.evaluation.preflight import CHECKS
from robustbench_kpca.evaluation.run import attack, prepare
from robustbench_kpca.evaluation.runner import Runner, frozen
from robustbench_kpca.randomness import sample_key
from robustbench_kpca.scenario import Attack, Override
from robustbench_kpca.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Logits, Loss, Mask, PerSample

T = TypeVar("T")
HUGE_EPS = 0.5  # in L-infinity every image can be turned into plain grey: nothing can stand

BUDGETS: dict[str, tuple[str, dict[str, Override]]] = {
    "fgsm": ("fgsm-linf-8_255", {}),
    "pgd": ("pgd20-linf-8_255", {"steps": 20}),
    "pgd-doubled": ("pgd20-linf-8_255", {"steps": 40}),
    "apgd": ("apgd-ce-linf-8_255", {"steps": 20}),
    "apgd-doubled": ("apgd-ce-linf-8_255", {"steps": 40}),
    "apgd-dlr": ("apgd-ce-linf-8_255", {"steps": 40, "loss": "dlr"}),
    "huge-eps": ("pgd20-linf-8_255", {"steps": 20, "random_start": False, "eps": HUGE_EPS}),
    "noise": ("noise-linf-8_255", {"restarts": 10}),
    "square": ("square-linf-8_255", {"queries": 300}),
    "spsa": ("spsa-linf-8_255", {"steps": 10, "samples": 32}),
    "order": ("pgd20-linf-8_255", {"steps": 10, "random_start": False}),
}
"""Protocol and what is set in it; all but `huge-eps` take the audit's eps. `huge-eps` and `order` start at the clean
image: there noise must not do the attack's work, here no stream may belong to a place in the order."""
WHITE_BOX = ("pgd", "pgd-doubled", "apgd", "apgd-doubled", "apgd-dlr")


@dataclass(frozen=True)
class Climb:
    """An attack that was not stopped at success: where it ended, and the loss at every point it asked about."""

    images: Images
    losses: list[PerSample]


class _Listener:
    """A `Query` that keeps the losses and stops nothing."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.losses = runner, list[Tensor]()

    def logits(self, x: Images, *, outside: bool = False) -> Logits:  # noqa: ARG002
        return self.runner.logits(x)

    def gradient(self, x: Images, loss: Loss, *, outside: bool = False) -> tuple[PerSample, Images]:  # noqa: ARG002
        losses, gradient, _ = self.runner.gradient(x, loss)
        self.losses.append(losses)
        return losses, gradient

    def rows(self, mask: Mask) -> "_Listener":  # noqa: ARG002
        return self

    def module(self) -> nn.Module:
        return self.runner.model


@dataclass
class Bench:
    """What the checks ask. An attack that fails breaks nothing here; the failure is kept, and flagged at the end."""

    model: nn.Module
    runner: Runner
    images: Images
    labels: Labels
    eps: str | float
    threat: Threat
    seed: int
    sibling: nn.Module | None = None
    failures: dict[str, str] = field(default_factory=dict)
    _broken: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.right = self.verdicts(self.images, self.labels).logical_not()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def few_classes(self) -> bool:
        """Whether there are too few classes for the DLR loss."""
        return self.runner.classes is not None and self.runner.classes < 3

    @property
    def white_box(self) -> list[str]:
        """The gradient attacks that black boxes are compared with."""
        return [name for name in WHITE_BOX if not (name == "apgd-dlr" and self.few_classes)]

    @property
    def keys(self) -> Keys:
        """One random stream a sample."""
        numbers = [sample_key(self.seed, "audit", str(i)) for i in range(len(self))]
        return torch.tensor(numbers, device=self.labels.device)

    def broken(self, *names: str) -> Mask:
        """Which samples any of these attacks breaks (clean errors included)."""
        found = ~self.right
        for name in names:
            if name not in self._broken:
                done = self.attempt(name, partial(self.attack, name, self.images, self.labels))
                self._broken[name] = ~self.right if done is None else done
            found = found | self._broken[name]
        return found

    def attack(self, name: str, images: Images, labels: Labels) -> Mask:
        """Run one attack of `BUDGETS` and return what it breaks."""
        protocol, overrides = budget(name, self.eps)
        done = attack(
            self.model, images, labels, protocol, seed=self.seed, batch_size=self.runner.batch_size,
            device=str(self.runner.device), allow=list(CHECKS), **overrides,
        )  # fmt: skip
        return done.broken.to(self.right.device)

    def attempt(self, what: str, work: Callable[[], T]) -> T | None:
        """Do it, or keep why it failed."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 (foreign code may fail in any way, and to say so is the audit's work)
            text = " ".join(str(error).split()) or "no message"
            self.failures[what] = f"{type(error).__name__}: {text[:200]}"
            return None

    @cached_property
    def path(self) -> Climb:
        """PGD, not stopped at success."""
        return self.climb("pgd")

    def climb(self, name: str, model: nn.Module | None = None) -> Climb:
        """Run the attack of a budget to its end on the samples that are right, against `model` (or the audited one)."""
        protocol, overrides = budget(name, self.eps)
        scenario = prepare(protocol, overrides)[1]
        assert isinstance(scenario, Attack)
        rows = self.right.nonzero()[:, 0]
        runner = self.runner if model is None else Runner(model, self.runner.batch_size, self.runner.device)
        parts = [self._climb(runner, scenario, part) for part in rows.split(self.runner.batch_size)]
        images = torch.cat([part.images for part in parts])
        assert bool((distance(images, self.images[rows], "linf") <= self.threat.eps + 1e-6).all())
        assert bool(((images >= 0) & (images <= 1)).all())
        return Climb(images, [torch.cat(step) for step in zip(*(part.losses for part in parts), strict=True)])

    def _climb(self, runner: Runner, scenario: Attack, rows: Labels) -> Climb:
        algorithm, query = build_attack(scenario.stage[0]), _Listener(runner)
        with frozen(runner.model):
            state = algorithm.start(self.images[rows], self.labels[rows], self.threat, self.keys[rows])
            while not bool(state["finished"].all()):
                state = algorithm.step(state, self.threat, query)
        return Climb(state["x"], query.losses)

    def logits(self, images: Images) -> Logits:
        """Logits, whatever the number of images."""
        return torch.cat([self.runner.logits(part) for part in images.split(self.runner.batch_size)])

    def verdicts(self, images: Images, labels: Labels) -> Mask:
        """Which images are misclassified (NaN and infinite logits are)."""
        logits = self.logits(images)
        return (logits.argmax(1) != labels) | ~torch.isfinite(logits).all(1)

    def gradients(
        self, images: Images, labels: Labels, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[PerSample, Images, Logits]:
        """Return per-sample losses, gradients and logits, whatever the number of images."""
        size, parts = self.runner.batch_size, []
        with frozen(self.model):
            for x, y in zip(images.split(size), labels.split(size), strict=True):
                parts.append(self.runner.gradient(x, partial(_swapped, loss, y)))
        losses, gradients, logits = (torch.cat(column) for column in zip(*parts, strict=True))
        return losses, gradients, logits


def _swapped(loss: Callable[[Tensor, Tensor], Tensor], labels: Labels, logits: Tensor) -> Tensor:
    return loss(logits, labels)


def budget(name: str, eps: str | float) -> tuple[str, dict[str, Override]]:
    """Return protocol and overrides of an attack of the audit."""
    protocol, overrides = BUDGETS[name]
    return protocol, {"eps": eps} | overrides


def budgets(eps: str | float) -> dict[str, Budget]:
    """Resolve every attack of the audit, as its plan states it."""
    found = {}
    for name in BUDGETS:
        label, scenario = prepare(*budget(name, eps))
        found[name] = Budget(protocol=label, digest=scenario.digest())
    return found
