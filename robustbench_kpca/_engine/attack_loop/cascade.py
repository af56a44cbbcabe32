"""Decide what a sample does next: it is broken, searches on, restarts, goes to the next attack or is finished."""

from collections import deque
from collections.abc import Callable

import torch

from robustbench_kpca._core.errors import EvaluationError
from robustbench_kpca._engine.attack_loop.eight_bits import as_stored
from robustbench_kpca._engine.attack_loop.pool import Candidate, Pool, Sample
from robustbench_kpca._engine.attack_loop.success import Answer, Success
from robustbench_kpca.protocols.scenario import Attack as AttackScenario
from robustbench_kpca.types import State


class Cascade:
    """Moves samples through the restarts and stages of a protocol; runs no model.

    Attributes:
        pools: one per stage.
        candidates: images that wait for a confirming forward pass.
    """

    def __init__(
        self,
        scenario: AttackScenario,
        success: Success,
        pools: list[Pool],
        draws: int,
        sink: Callable[[Sample], None],
    ) -> None:
        self.scenario, self.success, self.pools, self.draws, self.sink = scenario, success, pools, draws, sink
        self.stops = scenario.policy == "stop_at_first"
        self.candidates: deque[Candidate] = deque()

    def enter_stage(self, sample: Sample, stage: int) -> None:
        """Queue a sample for a stage. After the last stage the sample is finished."""
        if stage < len(self.pools):
            if self.success.graded:
                self._close_stage(sample)
            sample.stage, sample.restart = stage, 0
            self.pools[stage].waiting.append((sample, None))
        elif self._needs_confirmation(sample):
            self.candidates.append(Candidate(sample, sample.worst, final=True))
        else:
            wrong = self.success.has_reached(sample.prediction, sample.label)
            sample.broken_by = sample.before if wrong else sample.broken_by
            self._finish(sample)

    def confirm(self, candidate: Candidate, prediction: Answer, margin: float, rank: int, *, unanswered: bool) -> None:
        """Use the answer of a confirming forward pass: finish the sample, or continue its search.

        Args:
            candidate: the image that was shown.
            prediction: its answer.
            margin: its score.
            rank: rank of the true label.
            unanswered: whether a logit is NaN or infinite.

        Raises:
            EvaluationError: the logits were NaN or infinite only in the pass that computed a gradient, so gradient
                attacks cannot evaluate this model.
        """
        sample, policy = candidate.sample, self.scenario.policy
        sample.forwards += self.draws
        sample.nonfinite += unanswered
        broken = self._is_broken(sample, prediction)
        if sample.unrounded_by is not None:
            sample.take((candidate.image, margin, prediction, rank, sample.worst_by))
            sample.broken_by = (sample.unrounded_by or sample.before or sample.worst_by) if broken else ""
            self.sink(sample)
            return
        looked_broken = candidate.state is not None or (candidate.final and self._is_broken(sample, sample.prediction))
        if looked_broken and not broken:
            _require_finite(sample)
            sample.retracted += 1
        if (broken or self.success.graded) and (sample.confirmed is None or margin < sample.confirmed[1]):
            by = sample.worst_by if candidate.final else self.pools[sample.stage].name
            sample.confirmed = (candidate.image, margin, prediction, rank, by)
        if candidate.final and not broken and sample.confirmed is not None:  # an earlier image was confirmed: use it
            image, margin, prediction, rank, sample.worst_by = sample.confirmed
            candidate, broken = Candidate(sample, image, final=True), self._is_broken(sample, prediction)
        decides = candidate.final or policy == "last" or (self.stops and (broken or looked_broken))
        if decides or margin < sample.worst_margin:
            by = sample.worst_by if candidate.final else self.pools[sample.stage].name
            sample.take((candidate.image, margin, prediction, rank, by))
        self._continue(candidate, margin, success=broken and decides)

    def _continue(self, candidate: Candidate, margin: float, *, success: bool) -> None:
        """Finish the sample, or send it to the place where its search continues."""
        sample = candidate.sample
        if success:
            sample.broken_by = sample.before or sample.worst_by
            self._finish(sample)
        elif candidate.final and self.success.graded:
            self.enter_stage(sample, sample.stage + 1)
        elif candidate.final:
            self._finish(sample)
        elif candidate.state is not None:
            self._resume_search(candidate, candidate.state, margin)
        else:
            self._next_restart(sample)

    def _resume_search(self, candidate: Candidate, state: State, margin: float) -> None:
        """Continue the search of a sample that was misclassified in a gradient pass, but not in the plain pass."""
        sample = candidate.sample
        state["loop.margin"].fill_(margin)
        if bool(state["finished"]):
            self.candidates.append(Candidate(sample, state["x"][0].cpu()))
        else:
            self.pools[sample.stage].waiting.appendleft((sample, state))

    def _next_restart(self, sample: Sample) -> None:
        """Send a sample that is not broken to the next restart or, after the last one, to the next stage."""
        if sample.restart + 1 < self.pools[sample.stage].restarts:
            sample.restart += 1
            self.pools[sample.stage].waiting.append((sample, None))
        elif self.success.graded and sample.worst_by:
            self.candidates.append(Candidate(sample, sample.worst, final=True))
        else:
            self.enter_stage(sample, sample.stage + 1)

    def _needs_confirmation(self, sample: Sample) -> bool:
        """Whether the worst image decides the sample but may come from a gradient pass, unconfirmed."""
        strongest = self.scenario.policy == "strongest" and not self.success.graded
        return strongest and (sample.worst_margin <= 0 or sample.before != "")

    def _close_stage(self, sample: Sample) -> None:
        """Store the worst image of this stage and reset the sample: every stage of a graded attack starts clean."""
        if sample.worst_by:
            best = sample.worst, sample.worst_margin, sample.prediction, sample.rank, sample.worst_by
            sample.found[sample.stage + 1] = best
        assert sample.given is not None
        sample.take(sample.given)
        sample.confirmed = sample.given

    def _finish(self, sample: Sample) -> None:
        """Pass a sample to the sink; if success is graded, with the worst image of all stages.

        Where images are stored, the image that decides is rounded first. If that changes it, it is judged once more.
        """
        if self.success.graded:
            self._close_stage(sample)
            if sample.found:
                sample.take(min(sample.found.values(), key=lambda candidate: candidate[1]))
        if self.scenario.storage is not None:
            sample.unrounded_by, image = sample.broken_by, as_stored(sample.worst, sample.clean, self.scenario.threat)
            if not torch.equal(image, sample.worst):
                self.candidates.append(Candidate(sample, image, final=True))
                return
        self.sink(sample)

    def _is_broken(self, sample: Sample, prediction: Answer) -> bool:
        """Whether a prediction is a success of the attacker; NaN or infinite logits (-1) always are."""
        return self.success.has_reached(prediction, sample.label)


def _require_finite(sample: Sample) -> None:
    if sample.worst_margin == -float("inf"):
        raise EvaluationError(
            f"the model gave NaN or infinite logits for '{sample.id}' only while gradients were recorded",
            fix="gradient attacks cannot evaluate such a model: make both passes compute the same",
        )
