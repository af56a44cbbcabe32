"""The attack loop: a queue over the whole data set that keeps every batch full and spends no pass on a broken sample.

Attacks propose; this loop alone runs the model, checks proposals, decides what is broken (and verifies it by a plain
forward pass), refills the places of samples that leave, and cascades the stages on the survivors.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.attacks._ball import per_sample
from robustbench_kpca.errors import BadInputError, EvaluationError
from robustbench_kpca.evaluation.meter import Meter, check_clean, check_proposal, judge
from robustbench_kpca.evaluation.runner import Runner
from robustbench_kpca.randomness import sample_key
from robustbench_kpca.scenario import Attack as AttackScenario
from robustbench_kpca.scenario import Stage
from robustbench_kpca.strict import validate
from robustbench_kpca.types import Attack, Images, Labels, State

CLEAN = "clean"  # what "broke" a sample that was misclassified before any attack
CleanBatch = tuple[list[int], Images, Labels]


@dataclass
class Sample:
    """One image on its way through the stages, with what is known about it. Its tensors have no batch axis."""

    index: int
    id: str
    label: int
    clean: Tensor
    clean_prediction: int
    worst: Tensor
    worst_margin: float
    prediction: int
    stage: int = 0
    restart: int = 0
    forwards: int = 0
    backwards: int = 0
    retracted: int = 0
    nonfinite: int = 0
    zero_gradients: int = 0
    broken_by: str = ""


@dataclass
class _Claim:
    """An image to be answered by a plain forward pass. `state` is where the search stood if it looked broken there."""

    sample: Sample
    image: Tensor
    state: State | None = None


@dataclass
class Pool:
    """The samples of one stage: those under attack (row i of `state` is `active[i]`) and those waiting for a place.

    A sample waits with the state to go on from, or with None to be started. `state` holds the attack's own tensors
    and, under `loop.*`, the loop's.
    """

    name: str
    attack: Attack
    restarts: int
    active: list[Sample] = field(default_factory=list)
    state: State = field(default_factory=dict)
    waiting: deque[tuple[Sample, State | None]] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self.active) + len(self.waiting)

    def append(self, samples: list[Sample], state: State) -> None:
        """Add rows."""
        self.state = {key: torch.cat([self.state[key], rows]) for key, rows in state.items()} if self.active else state
        self.active = self.active + samples

    def keep(self, mask: Tensor) -> None:
        """Drop the rows where `mask` is false."""
        if not bool(mask.all()):
            self.active = [sample for sample, kept in zip(self.active, mask.tolist(), strict=True) if kept]
            self.state = {key: rows[mask] for key, rows in self.state.items()}


def build_attack(stage: Stage) -> Attack:
    """Return the algorithm of a stage with its options.

    Raises:
        BadInputError: unknown attack; unknown, missing or unusable option.

    """
    attack: Attack = validate(ATTACKS.get(stage.attack), stage.options, f"attack '{stage.attack}'")
    return attack


class Engine:
    """Runs one attack scenario over a stream of clean batches; `sink` receives every sample once, when it is decided.

    Success means misclassified at any iterate (of any stage and restart), confirmed by a plain forward pass.
    """

    def __init__(
        self, runner: Runner, scenario: AttackScenario, ids: list[str], seed: int, sink: Callable[[Sample], None]
    ) -> None:
        self.runner, self.scenario, self.ids, self.seed, self.sink = runner, scenario, ids, seed, sink
        self.threat = scenario.threat
        self.pools = [Pool(stage.attack, build_attack(stage), stage.restarts) for stage in scenario.stage]
        self.claims: deque[_Claim] = deque()

    def run(self, source: Iterator[CleanBatch], pulse: Callable[[], None] = lambda: None) -> None:
        """Attack everything that `source` yields; `pulse` is called after every batch.

        Full batches come first; only when the source is dry are short ones (filled up by the runner) run.
        """
        size, dry = self.runner.batch_size, False
        while True:
            ready = next((pool for pool in reversed(self.pools) if len(pool) >= size), None)
            if len(self.claims) >= size:
                self._verify()
            elif ready is not None:
                self._step(ready)
            elif not dry:
                batch = next(source, None)
                dry = batch is None
                if batch is not None:
                    self._admit(*batch)
            elif remaining := next((pool for pool in self.pools if len(pool)), None):
                self._step(remaining)
            elif self.claims:
                self._verify()
            else:
                return
            pulse()

    def settle(self) -> None:
        """Answer every open claim, so that the pools hold all that is undecided."""
        while self.claims:
            self._verify()

    def _admit(self, indices: list[int], images: Images, labels: Labels) -> None:
        """Run the one clean forward pass; what is misclassified already is never attacked."""
        logits = self.runner.logits(images.to(self.runner.device))
        check_clean(logits, labels)
        self._check_budget(images)
        prediction, margins = (part.tolist() for part in judge(logits, labels.to(logits.device)))
        for row, index in enumerate(indices):
            own = (index, self.ids[index], int(labels[row]), images[row], prediction[row])
            sample = Sample(*own, worst=images[row], worst_margin=margins[row], prediction=prediction[row])
            if sample.prediction == sample.label:
                self.pools[0].waiting.append((sample, None))
            else:
                sample.broken_by = CLEAN
                self.sink(sample)

    def _check_budget(self, images: Images) -> None:
        values = images[0].numel()
        furthest = math.sqrt(values) if self.threat.norm == "l2" else values
        if self.threat.norm != "linf" and self.threat.eps >= furthest:
            raise BadInputError(
                f"eps = {self.threat.eps:g} in {self.threat.norm.upper()}, while no two images are further apart than "
                f"{furthest:.3g}",
                fix=f"write {self.threat.eps:g}/255 if pixel levels were meant",
            )

    def _fill(self, pool: Pool) -> None:
        """Give free places to waiting samples."""
        free = self.runner.batch_size - len(pool.active)
        arriving = [pool.waiting.popleft() for _ in range(min(free, len(pool.waiting)))]
        fresh = [sample for sample, state in arriving if state is None]
        for sample, state in arriving:
            if state is not None:
                pool.append([sample], state)
        if fresh:
            pool.append(fresh, self._start(pool, fresh))

    def _start(self, pool: Pool, samples: list[Sample]) -> State:
        device = self.runner.device
        clean = torch.stack([sample.clean for sample in samples]).to(device)
        labels = torch.tensor([sample.label for sample in samples], device=device)
        keys = [sample_key(self.seed, f"{sample.stage}/{pool.name}/{sample.restart}", sample.id) for sample in samples]
        state = pool.attack.start(clean, labels, self.threat, torch.tensor(keys, device=device))
        return state | {
            "loop.clean": clean,
            "loop.label": labels,
            "loop.worst": torch.stack([sample.worst for sample in samples]).to(device),
            "loop.margin": torch.tensor([sample.worst_margin for sample in samples], device=device),
        }

    def _step(self, pool: Pool) -> None:
        self._fill(pool)
        own = {key: rows for key, rows in pool.state.items() if key.startswith("loop.")}
        state = {key: rows for key, rows in pool.state.items() if key not in own}
        meter = Meter(self.runner, pool.name, self.threat, own["loop.clean"], own["loop.label"])
        state = pool.attack.step(state, self.threat, meter)
        worse = meter.worst_margin < own["loop.margin"]
        own["loop.worst"] = torch.where(per_sample(worse, meter.worst), meter.worst, own["loop.worst"])
        own["loop.margin"] = torch.where(worse, meter.worst_margin, own["loop.margin"])
        pool.state = state | own
        for count in ("forwards", "backwards", "nonfinite", "zero_gradients"):
            for sample, seen in zip(pool.active, getattr(meter, count).tolist(), strict=True):
                setattr(sample, count, getattr(sample, count) + seen)
        self._release(pool, meter)

    def _release(self, pool: Pool, meter: Meter) -> None:
        """Turn what looks broken or has spent its budget into claims."""
        leaving = meter.broken | pool.state["finished"]
        for row in leaving.nonzero()[:, 0].tolist():
            sample = pool.active[row]
            sample.worst = pool.state["loop.worst"][row].cpu()
            sample.worst_margin = float(pool.state["loop.margin"][row])
            if bool(meter.broken[row]):
                state = {key: rows[row : row + 1].clone() for key, rows in pool.state.items()}
                self.claims.append(_Claim(sample, meter.worst[row].cpu(), state))
            else:
                self.claims.append(_Claim(sample, pool.state["x"][row].cpu()))
        pool.keep(~leaving)

    def _verify(self) -> None:
        """Answer up to one batch of claims by a plain forward pass."""
        device = self.runner.device
        claims = [self.claims.popleft() for _ in range(min(self.runner.batch_size, len(self.claims)))]
        images = torch.stack([claim.image for claim in claims]).to(device)
        clean = torch.stack([claim.sample.clean for claim in claims]).to(device)
        labels = torch.tensor([claim.sample.label for claim in claims], device=device)
        check_proposal(images, clean, self.threat, self.pools[claims[0].sample.stage].name)
        prediction, margins = judge(self.runner.logits(images), labels)
        for row, claim in enumerate(claims):
            self._answer(claim, int(prediction[row]), float(margins[row]))

    def _answer(self, claim: _Claim, prediction: int, margin: float) -> None:
        sample = claim.sample
        sample.forwards += 1
        sample.nonfinite += prediction < 0
        if prediction != sample.label:
            sample.worst, sample.worst_margin, sample.prediction = claim.image, margin, prediction
            sample.broken_by = self.pools[sample.stage].name
            self.sink(sample)
        elif claim.state is not None:
            self._retract(claim, claim.state, margin)
        else:
            if margin < sample.worst_margin:
                sample.worst, sample.worst_margin = claim.image, margin
            self._go_on(sample)

    def _retract(self, claim: _Claim, state: State, margin: float) -> None:
        """Misclassified in the pass that gave the gradient, correct in a plain one: count it, and search on.

        Raises:
            EvaluationError: the logits were NaN or infinite in the former only; the attack is blind to such a model.

        """
        sample = claim.sample
        if sample.worst_margin == -float("inf"):
            raise EvaluationError(
                f"the model gave NaN or infinite logits for '{sample.id}' only while gradients were recorded",
                fix="a gradient attack cannot judge such a model",
            )
        sample.retracted += 1
        sample.worst, sample.worst_margin = claim.image, margin
        state["loop.margin"].fill_(margin)
        if bool(state["finished"]):
            self.claims.append(_Claim(sample, state["x"][0].cpu()))
        else:
            self.pools[sample.stage].waiting.appendleft((sample, state))

    def _go_on(self, sample: Sample) -> None:
        """Send a sample that stood its ground to the next restart, the next stage, or home."""
        if sample.restart + 1 < self.pools[sample.stage].restarts:
            sample.restart += 1
        elif sample.stage + 1 < len(self.pools):
            sample.stage, sample.restart = sample.stage + 1, 0
        else:
            self.sink(sample)
            return
        self.pools[sample.stage].waiting.append((sample, None))

    def snapshot(self) -> list[dict[str, Any]]:
        """Return everything undecided as plain values and tensors: one entry a sample, with its state if it has one."""
        self.settle()
        entries: list[dict[str, Any]] = []
        for pool in self.pools:
            for row, sample in enumerate(pool.active):
                state = {key: rows[row : row + 1].cpu() for key, rows in pool.state.items()}
                entries.append({"sample": vars(sample), "state": state})
            for sample, waiting in pool.waiting:
                cpu = None if waiting is None else {key: rows.cpu() for key, rows in waiting.items()}
                entries.append({"sample": vars(sample), "state": cpu})
        return entries

    def restore(self, entries: list[dict[str, Any]]) -> None:
        """Put a snapshot's samples back where they stood."""
        for entry in entries:
            sample, state = Sample(**entry["sample"]), entry["state"]
            if state is not None:
                state = {key: rows.to(self.runner.device) for key, rows in state.items()}
            self.pools[sample.stage].waiting.append((sample, state))
