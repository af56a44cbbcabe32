"""The bench of an audit: the model, the images, and every attack at its budget, each run at most once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from robustbench_kpca.attack_loop.engine import Engine, Sample, build_attack
from robustbench_kpca.attack_loop.follow import PlainQuery, run_to_end
from robustbench_kpca.attack_loop.success import Success
from robustbench_kpca.attacks.shared.ball import distance
from robustbench_kpca.attacks.shared.losses import pixelwise_cross_entropy
from robustbench_kpca.audit.budgets import budget
from robustbench_kpca.inference.runner import Runner, frozen
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.randomness import sample_key
from robustbench_kpca.tasks.task import Task
from robustbench_kpca.types import IGNORE, Images, Keys, Labels, Logits, Mask, PerSample

T = TypeVar("T")


@dataclass(frozen=True)
class Climb:
    """An attack that was not stopped at success: where it ended, and the loss at every point it asked about."""

    images: Images
    losses: list[PerSample]


@dataclass(frozen=True)
class Slopes:
    """What one backward pass says of every sample.

    `lost` is the share of its right labels whose cross-entropy is rounded to zero, `finite` whether its logits are.
    """

    losses: PerSample
    gradient: Images
    lost: PerSample
    finite: Mask


@dataclass
class Bench:
    """What the checks ask. An attack that fails breaks nothing here; the failure is kept, and flagged at the end.

    What an attack leaves of a sample is the share of its labels that stay right: 0 or 1 where it has one label, and
    anything between, of the worst picture found, where every pixel has one. Samples of which nothing is right are not
    attacked.
    """

    task: Task
    model: nn.Module
    runner: Runner
    images: Images
    labels: Labels
    eps: str | float
    threat: Threat
    seed: int
    sibling: nn.Module | None = None
    failures: dict[str, str] = field(default_factory=dict)
    _left: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clean = self.shares(self.images, self.labels)
        self.right = self.clean > 0

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def success(self) -> Success:
        """What a successful attack is."""
        return self.task.compute.success

    @property
    def few_classes(self) -> bool:
        """Whether there are too few classes for the DLR loss."""
        return self.runner.classes is not None and self.runner.classes < 3

    @property
    def attacks(self) -> list[str]:
        """The attacks that can be run."""
        return [name for name in self.task.compute.audit.attacks if not (name == "apgd-dlr" and self.few_classes)]

    @property
    def keys(self) -> Keys:
        """One random stream a sample."""
        numbers = [sample_key(self.seed, "audit", str(i)) for i in range(len(self))]
        return torch.tensor(numbers, device=self.labels.device)

    def left(self, *names: str) -> PerSample:
        """Return what all of these attacks together leave right."""
        least = self.clean
        for name in names:
            if name not in self._left:
                done = self.attempt(name, partial(self.attack, name, self.images, self.labels))
                self._left[name] = self.clean if done is None else done
            least = torch.minimum(least, self._left[name])
        return least

    def attack(self, name: str, images: Images, labels: Labels) -> PerSample:
        """Run one attack and return what it leaves right."""
        found: dict[int, Sample] = {}
        numbers, size = list(range(len(labels))), self.runner.batch_size
        runner = _beside(self.runner, self.model)
        ids = [str(number) for number in numbers]
        sink = partial(_keep, found)
        engine = Engine(runner, self._scenario(name), self.success, ids, self.seed, sink)
        parts = (part.split(size) for part in (torch.tensor(numbers), images.cpu(), labels.cpu()))
        with frozen(self.model):
            engine.run((rows.tolist(), x, y) for rows, x, y in zip(*parts, strict=True))
        return torch.stack([self._left_of(found[number]) for number in numbers]).to(labels.device)

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
        scenario, rows = self._scenario(name), self.right.nonzero()[:, 0]
        runner = self.runner if model is None else _beside(self.runner, model)
        parts = [self._climb(runner, scenario, part) for part in rows.split(self.runner.batch_size)]
        images = torch.cat([part.images for part in parts])
        assert bool((distance(images, self.images[rows], "linf") <= self.threat.eps + 1e-6).all())
        assert bool(((images >= 0) & (images <= 1)).all())
        return Climb(images, [torch.cat(step) for step in zip(*(part.losses for part in parts), strict=True)])

    def _climb(self, runner: Runner, scenario: Attack, rows: Labels) -> Climb:
        algorithm, query = build_attack(scenario.stage[0]), PlainQuery(runner)
        with frozen(runner.model):
            state = run_to_end(
                algorithm, query, self.images[rows], self.labels[rows], self.threat, self.keys[rows]
            )  # fmt: skip
        return Climb(state["x"], query.losses)

    def _scenario(self, name: str) -> Attack:
        return budget(self.task.compute.audit, name, self.eps)[1]

    def _left_of(self, sample: Sample) -> Tensor:
        """Return what is left right of an attacked sample."""
        if not self.success.graded:
            return torch.tensor(0.0 if sample.broken_by else 1.0, dtype=torch.float64)
        answers = (self.success.join([answer]) for answer in (sample.prediction, sample.label))
        return self.success.share(*answers)[0]

    def ask(self, images: Images, labels: Labels, what: Callable[[Logits, Labels], Tensor]) -> Tensor:
        """Return `what` of logits and labels, batch by batch: whole maps of logits may be too large to be kept."""
        parts = zip(images.split(self.runner.batch_size), labels.split(self.runner.batch_size), strict=True)
        return torch.cat([what(self.runner.logits(x), y) for x, y in parts])

    def shares(self, images: Images, labels: Labels) -> PerSample:
        """Which share of the labels is right (NaN and infinite logits are wrong)."""
        return self.ask(images, labels, lambda logits, own: self.success.share(self.success.judge(logits, own)[0], own))

    def slopes(self, images: Images, labels: Labels, loss: Callable[[Tensor, Tensor], Tensor]) -> Slopes:
        """Return per-sample losses and gradients, whatever the number of images."""
        size, parts = self.runner.batch_size, []
        with frozen(self.model):
            for x, y in zip(images.split(size), labels.split(size), strict=True):
                losses, gradient, logits = self.runner.gradient(x, partial(_swapped, loss, y))
                parts.append((losses, gradient, _lost(logits, y), all_finite(logits, y)))
        return Slopes(*(torch.cat(column) for column in zip(*parts, strict=True)))


def all_finite(logits: Logits, labels: Labels) -> Mask:  # noqa: ARG001 (what `Bench.ask` asks is given both)
    """Which samples have finite logits only."""
    return torch.isfinite(logits).flatten(1).all(1)


def _beside(runner: Runner, model: nn.Module) -> Runner:
    """Return what runs a model as the audited one is run."""
    return Runner(model, runner.batch_size, runner.device, presentation=runner.presentation)


def _swapped(loss: Callable[[Tensor, Tensor], Tensor], labels: Labels, logits: Tensor) -> Tensor:
    return loss(logits, labels)


def _keep(found: dict[int, Sample], sample: Sample) -> None:
    found[sample.index] = sample


def _lost(logits: Logits, labels: Labels) -> PerSample:
    """Return the share of the right labels whose cross-entropy is rounded to zero; 0 if none is right."""
    hits = (logits.argmax(1) == labels) & (labels != IGNORE)
    gone = hits & (pixelwise_cross_entropy(logits, labels) == 0)
    total, lost = (part[:, None].flatten(1).sum(1) for part in (hits, gone))
    return lost / total.clamp_min(1)
