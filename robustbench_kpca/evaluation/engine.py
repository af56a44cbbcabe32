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
from robustbench_kpca.attacks._foreign import build as foreign_attack
from robustbench_kpca.errors import BadInputError, EvaluationError
from robustbench_kpca.evaluation.meter import Meter, Worst, check_clean, check_proposal, judge
from robustbench_kpca.evaluation.runner import Runner
from robustbench_kpca.evaluation.space import Space
from robustbench_kpca.randomness import generator, sample_key
from robustbench_kpca.scenario import Attack as AttackScenario
from robustbench_kpca.scenario import Stage
from robustbench_kpca.strict import validate
from robustbench_kpca.types import Attack, Images, Labels, Logits, State

CLEAN = "clean"  # what "broke" a sample that was misclassified before any attack
CLAMP = "clamp"  # and one that was once its normalised pixels were cut off at 0 and 1
CleanBatch = tuple[list[int], Images, Labels]


@dataclass
class Sample:
    """One image on its way through the stages, with what is known about it. Its tensors have no batch axis.

    `clean` is the image as attacks are given it, `aim` the class they are to leave (or, targeted, to reach), `before`
    what made the model wrong on it before any attack, and `worst` the image of lowest margin found (or the last one,
    where the protocol judges that), found by `worst_by`.
    """

    index: int
    id: str
    label: int
    clean: Tensor
    clean_prediction: int
    aim: int
    before: str
    worst: Tensor
    worst_margin: float
    prediction: int
    worst_by: str = ""
    confirmed: tuple[Tensor, float, int, str] | None = None  # image, margin, prediction and attack of a sure success
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
    """An image to be answered by a plain forward pass.

    `state` is where the search stood if it looked broken there; `final`: no search follows, this decides the sample.
    """

    sample: Sample
    image: Tensor
    state: State | None = None
    final: bool = False


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
    if ":" in stage.attack:
        return foreign_attack(stage.attack, stage.options)
    attack: Attack = validate(ATTACKS.get(stage.attack), stage.options, f"attack '{stage.attack}'")
    return attack


class Engine:
    """Runs one attack scenario over a stream of clean batches; `sink` receives every sample once, when it is decided.

    Success means misclassified at any iterate of any stage and restart (or what else the protocol's `policy` and
    `target` say), confirmed by a plain forward pass in single precision. Passes are counted from the image on that
    attacks are given: those that look at it, as it is and cut off, are not the attacks'.
    """

    def __init__(
        self, runner: Runner, scenario: AttackScenario, ids: list[str], seed: int, sink: Callable[[Sample], None]
    ) -> None:
        self.runner, self.scenario, self.ids, self.seed, self.sink = runner, scenario, ids, seed, sink
        self.threat = scenario.threat
        self.space = Space.of(runner.model, scenario.space)
        self.stops = scenario.policy == "stop_at_first"
        self.pools = [Pool(stage.attack, build_attack(stage), stage.restarts) for stage in scenario.stage]
        self.claims: deque[_Claim] = deque()

    def run(self, source: Iterator[CleanBatch], pulse: Callable[[], None] = lambda: None) -> None:
        """Attack everything that `source` yields; `pulse` is called after every batch.

        Full batches come first; only when the source is dry are short ones (filled up by the runner) run.
        """
        dry = False
        while True:
            size = self.runner.batch_size
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

    def _admit(self, indices: list[int], images: Images, labels: Labels) -> None:
        """Run the one clean forward pass; with true labels, what is misclassified already is never attacked."""
        logits = self.runner.logits(images.to(self.runner.device))
        check_clean(logits, labels)
        self._check_budget(images)
        predicted, given = logits.argmax(1).tolist(), self.space.enter(images)
        if self.scenario.clip and self.scenario.space == "normalised":
            given = given.clamp(0, 1)
            logits = self.runner.logits(self.space.leave(given).to(self.runner.device))
        aims = self._aims(indices, logits, labels)
        prediction, margins = (part.tolist() for part in judge(logits, torch.tensor(aims, device=logits.device)))
        for row, index in enumerate(indices):
            label = int(labels[row])
            before = "" if prediction[row] == label else CLEAN if predicted[row] != label else CLAMP
            own = given[row].clone()  # not a view that keeps its whole batch
            sample = Sample(
                index, self.ids[index], label, own, predicted[row], aims[row], before,
                worst=own, worst_margin=self.threat.sign * margins[row], prediction=prediction[row],
            )  # fmt: skip
            if before and self.scenario.labels == "true":
                sample.broken_by = before
                self.sink(sample)
            else:
                self._enter(sample, 0)

    def _aims(self, indices: list[int], logits: Logits, labels: Labels) -> list[int]:
        """Return the class that each sample is to leave or, targeted, to reach."""
        target, classes = self.scenario.target, logits.shape[1]
        if target == "random":
            draws = [generator(sample_key(self.seed, "target", self.ids[index])) for index in indices]
            steps = [1 + int(draw.integers(classes - 1)) for draw in draws]
            return [(label + step) % classes for label, step in zip(labels.tolist(), steps, strict=True)]
        if target != "none":
            others = logits.scatter(1, labels.to(logits.device)[:, None], -torch.inf)
            lowest = logits.scatter(1, labels.to(logits.device)[:, None], torch.inf)
            return (others.argmax(1) if target == "runner_up" else lowest.argmin(1)).tolist()
        return (logits.argmax(1) if self.scenario.labels == "predicted" else labels).tolist()

    def _check_budget(self, images: Images) -> None:
        values = images[0].numel()
        furthest = math.sqrt(values) if self.threat.norm == "l2" else values
        bounded = self.scenario.space == "pixel" and self.threat.clip
        if bounded and self.threat.norm != "linf" and self.threat.eps >= furthest:
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
        labels = torch.tensor([sample.aim for sample in samples], device=device)
        keys = [sample_key(self.seed, f"{sample.stage}/{pool.name}/{sample.restart}", sample.id) for sample in samples]
        state = pool.attack.start(clean, labels, self.threat, torch.tensor(keys, device=device))
        return state | {
            "loop.clean": clean,
            "loop.label": labels,
            "loop.worst": torch.stack([sample.worst for sample in samples]).to(device),
            "loop.margin": torch.tensor([sample.worst_margin for sample in samples], device=device),
            "loop.prediction": torch.tensor([sample.prediction for sample in samples], device=device),
        }

    def _step(self, pool: Pool) -> None:
        self._fill(pool)
        own = {key: rows for key, rows in pool.state.items() if key.startswith("loop.")}
        state = {key: rows for key, rows in pool.state.items() if key not in own}
        worst = Worst(own["loop.worst"], own["loop.margin"], own["loop.prediction"])
        meter = Meter(
            self.runner,
            self.space,
            pool.name,
            self.threat,
            own["loop.clean"],
            own["loop.label"],
            worst,
            stops=self.stops,
        )
        state = pool.attack.step(state, self.threat, meter)
        pool.state = state | own
        for count in ("forwards", "backwards", "nonfinite", "zero_gradients"):
            for sample, seen in zip(pool.active, getattr(meter, count).tolist(), strict=True):
                setattr(sample, count, getattr(sample, count) + seen)
        self._release(pool, meter)

    def _release(self, pool: Pool, meter: Meter) -> None:
        """Turn what looks broken (if that ends the search) or has spent its budget into claims."""
        broken = meter.broken & self.stops
        leaving = broken | pool.state["finished"]
        for row in leaving.nonzero()[:, 0].tolist():
            sample, margin = pool.active[row], float(pool.state["loop.margin"][row])
            if margin < sample.worst_margin or bool(broken[row]):
                sample.worst, sample.worst_margin = pool.state["loop.worst"][row].to("cpu", copy=True), margin
                sample.prediction, sample.worst_by = int(pool.state["loop.prediction"][row]), pool.name
            if bool(broken[row]):
                state = {key: rows[row : row + 1].clone() for key, rows in pool.state.items()}
                self.claims.append(_Claim(sample, sample.worst, state))
            else:
                self.claims.append(_Claim(sample, pool.state["x"][row].to("cpu", copy=True)))
        pool.keep(~leaving)

    def _verify(self) -> None:
        """Answer up to one batch of claims by a plain forward pass."""
        device = self.runner.device
        claims = [self.claims.popleft() for _ in range(min(self.runner.batch_size, len(self.claims)))]
        images = torch.stack([claim.image for claim in claims]).to(device)
        clean = torch.stack([claim.sample.clean for claim in claims]).to(device)
        aims = torch.tensor([claim.sample.aim for claim in claims], device=device)
        check_proposal(images, clean, self.threat, self.pools[claims[0].sample.stage].name)
        prediction, margins = judge(self.runner.logits(self.space.leave(images)), aims)
        for row, claim in enumerate(claims):
            margin = float(margins[row])
            self._answer(claim, int(prediction[row]), margin if int(prediction[row]) < 0 else self.threat.sign * margin)

    def _answer(self, claim: _Claim, prediction: int, margin: float) -> None:
        """Decide the sample, or send it on.

        Raises:
            EvaluationError: the logits were NaN or infinite only in the pass that gave a gradient; the attack is blind
                to such a model.

        """
        sample, policy = claim.sample, self.scenario.policy
        sample.forwards += self.runner.draws
        sample.nonfinite += prediction < 0
        broken = self._broken(sample, prediction)
        looked_broken = claim.state is not None or (claim.final and self._broken(sample, sample.prediction))
        if looked_broken and not broken:
            if sample.worst_margin == -float("inf"):
                raise EvaluationError(
                    f"the model gave NaN or infinite logits for '{sample.id}' only while gradients were recorded",
                    fix="a gradient attack cannot judge such a model",
                )
            sample.retracted += 1
        if broken and (sample.confirmed is None or margin < sample.confirmed[1]):
            sample.confirmed = (claim.image, margin, prediction, self.pools[sample.stage].name)
        if claim.final and not broken and sample.confirmed is not None:  # another image is sure to be broken
            image, margin, prediction, sample.worst_by = sample.confirmed
            claim, broken = _Claim(sample, image, final=True), True
        decides = claim.final or policy == "last" or (self.stops and (broken or looked_broken))
        if decides or margin < sample.worst_margin:
            sample.worst, sample.worst_margin, sample.prediction = claim.image, margin, prediction
            sample.worst_by = sample.worst_by if claim.final else self.pools[sample.stage].name
        if broken and decides:
            sample.broken_by = sample.before or sample.worst_by
            self.sink(sample)
        elif claim.final:
            self.sink(sample)
        elif claim.state is not None:
            self._search_on(claim, claim.state, margin)
        else:
            self._go_on(sample)

    def _broken(self, sample: Sample, prediction: int) -> bool:
        """Whether a prediction is what the attacker wants; NaN or infinite logits (-1) always are."""
        return prediction < 0 or (prediction == sample.aim if self.threat.targeted else prediction != sample.label)

    def _search_on(self, claim: _Claim, state: State, margin: float) -> None:
        """Put a sample back where it looked broken: in the pass that gave the gradient it did, in a plain one not."""
        sample = claim.sample
        state["loop.margin"].fill_(margin)
        if bool(state["finished"]):
            self.claims.append(_Claim(sample, state["x"][0].cpu()))
        else:
            self.pools[sample.stage].waiting.appendleft((sample, state))

    def _go_on(self, sample: Sample) -> None:
        """Send a sample that stood its ground to the next restart, the next stage, or home."""
        if sample.restart + 1 < self.pools[sample.stage].restarts:
            sample.restart += 1
            self.pools[sample.stage].waiting.append((sample, None))
        else:
            self._enter(sample, sample.stage + 1)

    def _enter(self, sample: Sample, stage: int) -> None:
        """Put a sample in line for a stage; after the last, it is decided."""
        if stage < len(self.pools):
            sample.stage, sample.restart = stage, 0
            self.pools[stage].waiting.append((sample, None))
        elif self.scenario.policy == "strongest" and (sample.worst_margin <= 0 or sample.before):
            self.claims.append(_Claim(sample, sample.worst, final=True))
        else:
            sample.broken_by = sample.before if sample.prediction != sample.label else ""
            self.sink(sample)

    def snapshot(self) -> list[dict[str, Any]]:
        """Return everything undecided as plain values and tensors.

        One entry a sample: where it is, the sample, its state if it has one and the image that is to be answered.
        """

        def entry(place: str, sample: Sample, state: State | None, **more: Any) -> dict[str, Any]:
            return {"place": place, "sample": vars(sample), "state": _on_cpu(state), **more}

        entries = [
            entry("claims", claim.sample, claim.state, image=claim.image, final=claim.final) for claim in self.claims
        ]
        for pool in self.pools:
            for row, sample in enumerate(pool.active):
                entries.append(entry("active", sample, {key: rows[row : row + 1] for key, rows in pool.state.items()}))
            entries += [entry("waiting", sample, state) for sample, state in pool.waiting]
        return entries

    def restore(self, entries: list[dict[str, Any]]) -> None:
        """Put a snapshot's samples back where they stood."""
        for entry in entries:
            sample, state = Sample(**entry["sample"]), entry["state"]
            if state is not None:
                state = {key: rows.to(self.runner.device) for key, rows in state.items()}
            if entry["place"] == "claims":
                self.claims.append(_Claim(sample, entry["image"], state, entry["final"]))
            elif state is not None and entry["place"] == "active":
                self.pools[sample.stage].append([sample], state)
            else:
                self.pools[sample.stage].waiting.append((sample, state))


def _on_cpu(state: State | None) -> State | None:
    """Copy a state, not the batch that its rows are views of."""
    return None if state is None else {key: rows.to("cpu", copy=True) for key, rows in state.items()}
