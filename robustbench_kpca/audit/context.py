"""What the checks of an audit share: the model, the images and the results of attacks, each attack run at most once."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from robustbench_kpca._core.errors import reason_of
from robustbench_kpca._core.randomness import sample_key
from robustbench_kpca._engine.attack_loop.engine import Engine, Sample, build_attack
from robustbench_kpca._engine.attack_loop.follow import PlainQuery, run_to_end
from robustbench_kpca._engine.attack_loop.passes import Meter, Passes, most_passes
from robustbench_kpca._engine.attack_loop.success import Success
from robustbench_kpca._engine.inference.mode import frozen
from robustbench_kpca._engine.inference.runner import Presentation, Runner
from robustbench_kpca.attacks.shared.ball import distance, finite
from robustbench_kpca.attacks.shared.losses import pixelwise_cross_entropy
from robustbench_kpca.audit.budgets import attacks_of, budget
from robustbench_kpca.audit.limits import GAP, GAP_HIGH
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.records.audit import Level
from robustbench_kpca.tasks.audit_plan import OWN_LOGITS
from robustbench_kpca.tasks.task import Task
from robustbench_kpca.types import IGNORE, Images, Keys, Labels, Logits, Mask, PerSample

T = TypeVar("T")


@dataclass(frozen=True)
class Trajectory:
    """An attack that continued after success: its last images, and the loss at every image it evaluated, in order."""

    images: Images
    losses: list[PerSample]


@dataclass(frozen=True)
class Gradients:
    """Results of one backward pass, per sample.

    `zero_loss` is the fraction of the correct labels whose cross-entropy is rounded to zero; `finite` tells whether all
    logits are finite.
    """

    losses: PerSample
    gradient: Images
    zero_loss: PerSample
    finite: Mask


@dataclass
class AuditContext:
    """The audited model and images, and the result of each attack.

    The result of an attack on a sample is the fraction of its labels that are still correct on the worst image found:
    0 or 1 for one label per image, any value between for one label per pixel. Samples without a correct label are not
    attacked. If an attack raises an exception, it counts as if it changed nothing, and the exception is stored in
    `failures`, which the check `runs` flags.

    `runner` shows the model's own logits, which preflight judges and the attacks `OWN_LOGITS` see; `shown` shows them
    divided by `scale`, which all other attacks and gradients see.
    """

    task: Task
    model: nn.Module
    runner: Runner
    images: Images
    labels: Labels
    eps: str | float
    threat: Threat
    seed: int
    level: Level = "full"
    meter: Meter = field(default_factory=Meter)
    failures: dict[str, str] = field(default_factory=dict)
    _remaining: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scale, self.shown = 1.0, self.runner
        self.scale = scale_of(self.per_batch(self.images, self.labels, lambda logits, _: gaps(logits)))
        self.shown = _runner_like(self.runner, self.model, divided(self.runner.presentation, self.scale))
        self.clean = self.correct_fraction(self.images, self.labels)
        self.correct = self.clean > 0

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def success(self) -> Success:
        """The task's definition of a successful attack."""
        return self.task.compute.success

    @property
    def few_classes(self) -> bool:
        """Whether there are fewer than 3 classes, too few for the DLR loss."""
        return self.shown.classes is not None and self.shown.classes < 3

    @property
    def attacks(self) -> list[str]:
        """The attacks that can be run."""
        names = attacks_of(self.task.compute.audit, self.level)
        return [name for name in names if not (name == "apgd-dlr" and self.few_classes)]

    @property
    def keys(self) -> Keys:
        """The random stream of each sample."""
        numbers = [sample_key(self.seed, "audit", str(i)) for i in range(len(self))]
        return torch.tensor(numbers, device=self.labels.device)

    def remaining(self, *names: str) -> PerSample:
        """Return the fraction of labels that stay correct under the best of these attacks, per sample."""
        least = self.clean
        for name in names:
            if name not in self._remaining:
                done = self.attempt(name, partial(self.attack, name, self.images, self.labels))
                self._remaining[name] = self.clean if done is None else done
            least = torch.minimum(least, self._remaining[name])
        return least

    def attack(self, name: str, images: Images, labels: Labels) -> PerSample:
        """Run one attack; return the fraction of labels that stay correct, per sample."""
        samples: dict[int, Sample] = {}
        numbers, size = list(range(len(labels))), self.shown.batch_size
        runner = _runner_like(self.runner if name in OWN_LOGITS else self.shown, self.model)
        ids = [str(number) for number in numbers]
        sink = partial(_keep, samples)
        engine = Engine(runner, self._scenario(name), self.success, ids, seed=self.seed, sink=sink)
        parts = (part.split(size) for part in (torch.tensor(numbers), images.cpu(), labels.cpu()))
        source = ((rows.tolist(), x, y) for rows, x, y in zip(*parts, strict=True))
        with frozen(self.model):
            engine.run(source, lambda: self.meter.during(runner.forwards + runner.backwards))
        self.meter.after(runner.forwards + runner.backwards, self.most(name))
        return torch.stack([self._remaining_of(samples[number]) for number in numbers]).to(labels.device)

    def attempt(self, what: str, work: Callable[[], T]) -> T | None:
        """Run `work` and return its result; if it raises, store the error in `failures` and return None."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 (the model can raise anything; the audit reports it)
            self.failures[what] = reason_of(error)
            return None

    @cached_property
    def pgd(self) -> Trajectory:
        """The trajectory of PGD, which continues after success."""
        return self.trajectory("pgd")

    def trajectory(self, name: str) -> Trajectory:
        """Run an attack to the end of its budget on the correct samples."""
        scenario, rows = self._scenario(name), self.correct.nonzero()[:, 0]
        runner = _runner_like(self.shown, self.model)
        parts = [self._trajectory(runner, scenario, part) for part in rows.split(self.shown.batch_size)]
        self.meter.after(runner.forwards + runner.backwards, self.most(name))
        images = torch.cat([part.images for part in parts])
        assert bool((distance(images, self.images[rows], "linf") <= self.threat.eps + 1e-6).all())
        assert bool(((images >= 0) & (images <= 1)).all())
        return Trajectory(images, [torch.cat(step) for step in zip(*(part.losses for part in parts), strict=True)])

    def _trajectory(self, runner: Runner, scenario: Attack, rows: Labels) -> Trajectory:
        algorithm, query = build_attack(scenario.stage[0]), PlainQuery(runner)
        with frozen(runner.model):
            state = run_to_end(
                algorithm, query, self.images[rows], self.labels[rows], threat=self.threat, keys=self.keys[rows]
            )
        return Trajectory(state["x"], query.losses)

    def most(self, name: str) -> int:
        """Return the most passes of an attack; a batch that is not full costs as much as a full one."""
        passes = most_passes(self._scenario(name), self.runner.classes or 2, graded=self.success.graded)
        rows = math.ceil(len(self) / self.shown.batch_size) * self.shown.batch_size
        return rows * (passes or Passes(1, 0)).total

    def _scenario(self, name: str) -> Attack:
        return budget(self.task.compute.audit, name, self.eps)[1]

    def _remaining_of(self, sample: Sample) -> Tensor:
        """Return the fraction of labels of an attacked sample that stay correct."""
        if not self.success.graded:
            return torch.tensor(0.0 if sample.broken_by else 1.0, dtype=torch.float64)
        answers = (self.success.join([answer]) for answer in (sample.prediction, sample.label))
        return self.success.share(*answers)[0]

    def per_batch(self, images: Images, labels: Labels, function: Callable[[Logits, Labels], Tensor]) -> Tensor:
        """Apply `function` to logits and labels batch by batch: all logits together may exceed the memory."""
        parts = zip(images.split(self.shown.batch_size), labels.split(self.shown.batch_size), strict=True)
        return torch.cat([function(self.shown.logits(x), y) for x, y in parts])

    def correct_fraction(self, images: Images, labels: Labels) -> PerSample:
        """Return the fraction of correct labels per sample; NaN and infinite logits are wrong."""

        def fraction(logits: Logits, targets: Labels) -> Tensor:
            return self.success.share(self.success.judge(logits, targets)[0], targets)

        return self.per_batch(images, labels, fraction)

    def gradients(self, images: Images, labels: Labels, loss: Callable[[Tensor, Tensor], Tensor]) -> Gradients:
        """Return per-sample losses and gradients, batch by batch."""
        size, parts = self.shown.batch_size, []
        with frozen(self.model):
            for x, y in zip(images.split(size), labels.split(size), strict=True):
                losses, gradient, logits = self.shown.gradient(x, partial(_swapped, loss, y))
                parts.append((losses, gradient, _zero_loss(logits, y), all_finite(logits, y)))
        return Gradients(*(torch.cat(column) for column in zip(*parts, strict=True)))


def all_finite(logits: Logits, labels: Labels) -> Mask:  # noqa: ARG001 (signature of `per_batch`)
    """Tell which samples have only finite logits."""
    return finite(logits)


def _runner_like(runner: Runner, model: nn.Module, presentation: Presentation | None = None) -> Runner:
    """Return a new runner for `model` with the settings of `runner`, or with another presentation."""
    return Runner(model, runner.batch_size, runner.device, presentation=presentation or runner.presentation)


def _swapped(loss: Callable[[Tensor, Tensor], Tensor], labels: Labels, logits: Tensor) -> Tensor:
    return loss(logits, labels)


def _keep(samples: dict[int, Sample], sample: Sample) -> None:
    samples[sample.index] = sample


def _zero_loss(logits: Logits, labels: Labels) -> PerSample:
    """Return the fraction of the correct labels whose cross-entropy is rounded to zero; 0 if none is correct."""
    correct = (logits.argmax(1) == labels) & (labels != IGNORE)
    zero = correct & (pixelwise_cross_entropy(logits, labels) == 0)
    correct_count, zero_count = (part[:, None].flatten(1).sum(1) for part in (correct, zero))
    return zero_count / correct_count.clamp_min(1)


def gaps(logits: Logits) -> PerSample:
    """Return the gap between the two largest logits; for logits of pixels, the median over an image's pixels."""
    largest = logits.topk(min(2, logits.shape[1]), dim=1).values
    gap = largest[:, 0] - largest[:, -1]
    return gap if gap.ndim == 1 else gap.flatten(1).median(1).values


def scale_of(of_samples: PerSample) -> float:
    """Return what an audit divides logits by, so that its answers do not depend on a temperature.

    Dividing changes no prediction, but it changes cross-entropy: small logits make it nearly linear, large ones round
    it to zero. It is the larger of g / `GAP` and h / `GAP_HIGH`, where g and h are the median and the 95th percentile
    of the gaps of clean images, which a common offset does not change; 1 if they are zero or not finite.
    """
    finite = of_samples[torch.isfinite(of_samples)].double()
    if not len(finite):
        return 1.0
    scale = max(float(finite.median()) / GAP, float(finite.quantile(0.95)) / GAP_HIGH)
    return scale if scale > 0 else 1.0


def divided(presentation: Presentation, scale: float) -> Presentation:
    """Return the same presentation with logits divided by `scale`; gradients pass through."""
    return replace(presentation, show=lambda model, x: presentation.show(model, x) / scale)
