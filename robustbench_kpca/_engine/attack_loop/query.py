"""The attack's access to the model: checks what is proposed, counts passes, records broken samples."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.checks import Checks
from robustbench_kpca._engine.attack_loop.counted_model import CountedModel, Counters, nonfinite_gradient
from robustbench_kpca._engine.attack_loop.sets.base import PerturbationSet
from robustbench_kpca._engine.attack_loop.success import Success
from robustbench_kpca._engine.inference.guard import unharmed
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.runner import ANY_LOGITS, Runner
from robustbench_kpca.attacks.shared.ball import finite, per_sample
from robustbench_kpca.attacks.shared.rows import choose, waits
from robustbench_kpca.protocols.scenario import Stage
from robustbench_kpca.types import Images, Labels, Logits, Loss, Mask, PerSample


@dataclass
class Worst:
    """Per sample, the image of lowest margin, that margin, its prediction and rank; written in place."""

    images: Images
    margin: PerSample
    prediction: Labels
    rank: Int64[Tensor, " batch"]


COUNTS = ("forwards", "backwards", "nonfinite", "zero_gradients")


@dataclass(frozen=True)
class Tally:
    """What every row of a step spent and met: one line of `counts` for each of `COUNTS`."""

    counts: Int64[Tensor, "4 row"]
    broken: Mask

    def summed(self, sample: Labels, counted: Mask, samples: int) -> "Tally":
        """Return the sums over the `counted` rows of each sample, `sample[i]` for row i; broken if one of them is."""
        totals = self.counts.new_zeros(len(COUNTS), samples).index_add(1, sample, self.counts * counted)
        broken = sample.new_zeros(samples).index_add(0, sample, (self.broken & counted).long()) > 0
        return Tally(totals, broken)


Rows = Int64[Tensor, " row"] | slice
ALL = slice(None)


class CountingQuery:
    """A `Query` (its docstring explains `outside`) for one step of one batch; it counts per sample.

    Images are in the coordinates of `space`. `labels` are the classes to move away from;
    `truth` are the true labels, whose ranks are noted.
    With `backward_of` in `stage`, each gradient goes back through that twin, whose forward pass is counted, too.
    `worst` holds the images of lowest margin so far; with `stops`, the first broken image of a sample replaces it.
    """

    def __init__(
        self,
        runner: Runner,
        space: InputSpace,
        success: Success,
        attack: str,
        allowed: PerturbationSet,
        clean: Images,
        labels: Labels,
        truth: Labels,
        worst: Worst,
        *,
        stops: bool,
        stage: Stage | None = None,
    ) -> None:
        self.through_twin = stage is not None and stage.backward_of is not None
        self.runner, self.space, self.success, self.attack = runner, space, success, attack
        self.allowed, self.threat = allowed, allowed.threat
        self.clean, self.labels, self.truth, self.worst, self.stops = clean, labels, truth, worst, stops
        self.counts = labels.new_zeros((len(COUNTS), len(labels)))
        self.forwards, self.backwards, self.nonfinite, self.zero_gradients = self.counts
        self.broken = labels.new_zeros(len(labels), dtype=torch.bool)
        self.checks = Checks()
        self.at: Rows = ALL  # the samples that this query is for

    @property
    def classes(self) -> int:
        """Number of classes of the logits; of a language model, of words."""
        if self.runner.classes is None:  # the run was resumed, and nothing was shown yet
            self.runner.logits(self.space.leave(self.clean[:1]))
        assert self.runner.classes is not None
        return self.runner.classes

    @property
    def tally(self) -> Tally:
        """Everything counted so far."""
        return Tally(self.counts, self.broken)

    def logits(self, x: Images, *, outside: bool = False) -> Logits:
        """One forward pass per sample."""
        self._check(x, outside)
        logits = self.runner.logits(self.space.leave(x))
        self._note(x, logits, self._too_far(x, outside))
        return logits

    def logits_of_each(self, proposals: Iterable[Images], *, outside: bool = False) -> Iterator[Logits]:
        """`logits` of every proposal in turn; the rows of different proposals share batches.

        With several draws, or for some samples only, they do not, because noise depends on the whole batch.
        """
        if self.runner.draws > 1 or self.at is not ALL:
            yield from (self.logits(x, outside=outside) for x in proposals)
            return
        unanswered: deque[Images] = deque()

        def checked() -> Iterator[Images]:
            for x in proposals:
                self._check(x, outside)
                unanswered.append(x)
                yield self.space.leave(x)

        for logits in self.runner.logits_of_each(checked()):
            x = unanswered.popleft()
            self._note(x, logits, self._too_far(x, outside))
            yield logits

    def gradient(self, x: Images, loss: Loss, *, outside: bool = False) -> tuple[PerSample, Images]:
        """One forward and one backward pass per sample.

        Raises:
            EvaluationError: a gradient is NaN or infinite where the logits are finite. The attack could not improve,
                and the sample would wrongly count as robust.
        """
        self._check(x, outside)
        losses, gradient, logits = self.runner.gradient(self.space.leave(x), loss)
        self._note(x, logits, self._too_far(x, outside))
        return losses, self._pulled_back(gradient, logits)

    def gradient_of_each(
        self, x: Images, losses: Sequence[Loss], *, outside: bool = False
    ) -> Iterator[tuple[PerSample, Images]]:
        """`gradient` of every loss at the same images, in turn; fewer passes are shown than counted."""
        self._check(x, outside)
        outside_ball = self._too_far(x, outside)
        for values, gradient, logits in self.runner.gradient_of_each(self.space.leave(x), losses):
            self._note(x, logits, outside_ball)
            yield values, self._pulled_back(gradient, logits)

    def rows(self, mask: Mask) -> "CountingQuery":
        """Return a query for the samples where `mask` is true; it writes into the same counts."""
        part = copy(self)
        part.at = mask.nonzero()[:, 0] if isinstance(self.at, slice) else self.at[mask]
        return part

    def module(self) -> nn.Module:
        """Return the model for attacks of other libraries: it counts passes and checks gradients, but no images.

        It shows one draw per pass, in single precision; gradients are from inside the box (`edge`) if the loop's are.

        Raises:
            BadInputError: gradients of the loop are not the model's, which such an attack would not see.
        """
        if self.through_twin:
            raise BadInputError(f"attack '{self.attack}' calls the model itself", expected="no backward_of")

        presentation = self.runner.presentation if self.runner.presentation.inside else ANY_LOGITS

        def answer(x: Tensor) -> Tensor:
            image = self.space.leave(x).clone()
            with unharmed(image):
                logits: Tensor = presentation.show(self.runner.model, image)
            return logits.float()

        rows = torch.arange(len(self.labels), device=self.labels.device)[self.at]
        counters = Counters(self.forwards, self.backwards, self.nonfinite, self.zero_gradients)
        return CountedModel(answer, self.attack, counters, rows)

    def _pulled_back(self, gradient: Images, logits: Logits) -> Images:
        """Count a backward pass; return its gradient in the coordinates of the attack, or 0 where it is not finite.

        A gradient that is not finite is refused, unless the logits are not either: then the sample counts as broken.
        """
        gradient = self.space.pull_back(gradient)
        _add(self.backwards, self.at, self.runner.draws)
        if self.through_twin:
            _add(self.forwards, self.at, self.runner.draws)
        largest = gradient.flatten(1).abs().amax(1)
        if waits(largest.device) or not bool(torch.isfinite(largest).all()):  # do not wait for a GPU
            finite = torch.isfinite(largest)
            self.checks.add(~finite & torch.isfinite(logits).flatten(1).all(1), self._refuse_nonfinite)
            gradient = torch.where(per_sample(finite, gradient), gradient, 0)
        _add(self.zero_gradients, self.at, largest == 0)
        return gradient

    def _refuse_nonfinite(self, *rows: float) -> None:
        if any(rows):
            raise nonfinite_gradient(torch.tensor(rows) != 0, self.attack)

    def _check(self, x: Images, outside: bool) -> None:
        self.allowed.check(x, self.clean[self.at], self.attack, self.checks, outside=outside)

    def _too_far(self, x: Images, outside: bool) -> Mask | None:
        """Tell which images are too far from the clean one to count, if they may be."""
        return self.allowed.beyond(x, self.clean[self.at]) if outside and self.allowed.is_input(x) else None

    def _note(self, x: Images, logits: Logits, too_far: Mask | None) -> None:
        rows = self.at
        _add(self.forwards, rows, self.runner.draws)
        if not self.allowed.is_input(x):
            return
        prediction, margins = self.success.judge(logits, self.labels[rows])
        broken = self.success.reached(prediction, self.labels[rows])
        if too_far is not None:
            broken &= ~too_far
            margins = torch.where(too_far, torch.inf, margins)
        better = margins < self.worst.margin[rows]
        if self.stops:
            better |= broken & ~self.broken[rows]
        self.broken[rows] |= broken
        _add(self.nonfinite, rows, self.success.unanswered(prediction))
        if waits(x.device):  # do not ask how many are better
            new = Worst(x.detach(), margins, prediction, self.success.rank(logits, self.truth[rows]))
            for old, values in zip(vars(self.worst).values(), vars(new).values(), strict=True):
                old[rows] = choose(better, values.to(old.dtype), old[rows])
            return
        at = better.nonzero()[:, 0]
        if len(at):
            where = at if isinstance(rows, slice) else rows[at]
            rank = self.success.rank(logits[at], self.truth[where])
            new = Worst(x.detach().index_select(0, at), margins[at], prediction[at], rank)
            for old, values in zip(vars(self.worst).values(), vars(new).values(), strict=True):
                old.index_copy_(0, where, values.to(old.dtype))


def _add(total: Labels, rows: Rows, number: int | Bool[Tensor, " row"]) -> None:
    if isinstance(rows, slice):
        total += number
    else:
        total[rows] += number


def check_clean(logits: Tensor, labels: Tensor) -> None:
    """Refuse clean logits that cannot be evaluated: wrong shape, too few classes, NaN or infinite values."""
    if logits.shape[2:] != labels.shape[1:]:
        raise BadInputError(
            f"the model returned {tuple(logits.shape)} for labels of shape {tuple(labels.shape)}",
            expected="logits for every label",
            fix="use a segmenter for scenes with masks, a classifier for images with one label",
        )
    if int(labels.max()) >= logits.shape[1]:
        raise BadInputError(
            f"label {int(labels.max())} for a model of {logits.shape[1]} classes",
            expected=f"labels from 0 to {logits.shape[1] - 1}",
            fix="check that the model was trained on the classes of these data",
        )
    require_finite(finite(logits))


def require_finite(finite: Mask) -> None:
    """Refuse a model with NaN or infinite logits on clean images; `finite` tells which images have none.

    Raises:
        BadInputError: some of them have.
    """
    if not bool(finite.all()):
        raise BadInputError(
            f"the model returned NaN or infinite logits on {int((~finite).sum())} of {len(finite)} clean images",
            fix="check its weights",
        )
