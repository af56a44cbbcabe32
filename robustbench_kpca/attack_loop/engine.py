"""The attack loop: a queue over the whole data set that keeps every batch full and spends no pass on a broken sample.

Attacks propose; this loop alone runs the model, checks proposals, decides what is broken (and verifies it by a plain
forward pass), refills the places of samples that leave, and cascades the stages on the survivors.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from robustbench_kpca.attack_loop.pool import Claim, Pool
from robustbench_kpca.attack_loop.pool import Sample as Sample  # who takes an engine takes its samples
from robustbench_kpca.attack_loop.query import CountingQuery, Worst, check_clean, check_proposal
from robustbench_kpca.attack_loop.success import Answer, Success
from robustbench_kpca.attack_loop.targets import check_budget, targets_of
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.attacks.foreign import build as foreign_attack
from robustbench_kpca.errors import EvaluationError
from robustbench_kpca.inference.input_space import InputSpace
from robustbench_kpca.inference.runner import Runner
from robustbench_kpca.protocols.scenario import Attack as AttackScenario
from robustbench_kpca.protocols.scenario import Stage
from robustbench_kpca.randomness import sample_key
from robustbench_kpca.strict import validate
from robustbench_kpca.types import Attack, Images, Labels, State

CLEAN = "clean"  # what "broke" a sample that was misclassified before any attack
CLAMP = "clamp"  # and one that was once its normalised pixels were cut off at 0 and 1
CleanBatch = tuple[list[int], Images, Labels]


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
        self,
        runner: Runner,
        scenario: AttackScenario,
        success: Success,
        ids: list[str],
        seed: int,
        sink: Callable[[Sample], None],
    ) -> None:
        self.runner, self.scenario, self.success = runner, scenario, success
        self.ids, self.seed, self.sink = ids, seed, sink
        self.threat = scenario.threat
        self.space = InputSpace.of(runner.model, scenario.space)
        self.stops = scenario.policy == "stop_at_first"
        self.pools = [Pool(stage.attack, build_attack(stage), stage.restarts) for stage in scenario.stage]
        success.check_protocol(scenario, {pool.name: pool.attack for pool in self.pools})
        self.claims: deque[Claim] = deque()

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
        labels = labels.to(self.runner.device)
        logits = self.runner.logits(images.to(self.runner.device))
        check_clean(logits, labels)
        check_budget(self.scenario, images)
        predicted, given = logits.argmax(1), self.space.enter(images)
        if self.scenario.clip and self.scenario.space == "normalised":
            given = given.clamp(0, 1)
            logits = self.runner.logits(self.space.leave(given).to(self.runner.device))
        targets = targets_of(self.scenario, self.seed, [self.ids[index] for index in indices], logits, labels)
        prediction, margins = self.success.judge(logits, targets, self.threat.sign)
        wrong_at_once, wrong = (
            self.success.reached(answer, labels, targeted=False).tolist() for answer in (predicted, prediction)
        )
        answers = (self.success.split(part) for part in (labels, predicted, targets, prediction))
        for row, (label, first, target, answer, margin) in enumerate(zip(*answers, margins.tolist(), strict=True)):
            before = "" if not wrong[row] else CLEAN if wrong_at_once[row] else CLAMP
            own = given[row].clone()  # not a view that keeps its whole batch
            sample = Sample(
                indices[row], self.ids[indices[row]], label, own, first, target, before,
                worst=own, worst_margin=margin, prediction=answer,
            )  # fmt: skip
            if self.success.graded:
                sample.given = own, margin, answer, ""
            if before and self.scenario.labels == "true":
                sample.broken_by = before
                self.sink(sample)
            else:
                self._enter(sample, 0)

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
        labels = self.success.join([sample.target for sample in samples], device)
        keys = [sample_key(self.seed, f"{sample.stage}/{pool.name}/{sample.restart}", sample.id) for sample in samples]
        state = pool.attack.start(clean, labels, self.threat, torch.tensor(keys, device=device))
        return state | {
            "loop.clean": clean,
            "loop.label": labels,
            "loop.worst": torch.stack([sample.worst for sample in samples]).to(device),
            "loop.margin": torch.tensor(
                [sample.worst_margin for sample in samples], device=device, dtype=torch.float64
            ),
            "loop.prediction": self.success.join([sample.prediction for sample in samples], device),
        }

    def _step(self, pool: Pool) -> None:
        self._fill(pool)
        own = {key: rows for key, rows in pool.state.items() if key.startswith("loop.")}
        state = {key: rows for key, rows in pool.state.items() if key not in own}
        worst = Worst(own["loop.worst"], own["loop.margin"], own["loop.prediction"])
        query = CountingQuery(
            self.runner, self.space, self.success, pool.name, self.threat, own["loop.clean"], own["loop.label"], worst,
            stops=self.stops,
        )  # fmt: skip
        state = pool.attack.step(state, self.threat, query)
        pool.state = state | own
        for count in ("forwards", "backwards", "nonfinite", "zero_gradients"):
            for sample, seen in zip(pool.active, getattr(query, count).tolist(), strict=True):
                setattr(sample, count, getattr(sample, count) + seen)
        self._release(pool, query)

    def _release(self, pool: Pool, query: CountingQuery) -> None:
        """Turn what looks broken (if that ends the search) or has spent its budget into claims."""
        stopped = query.broken & self.stops
        leaving = stopped | pool.state["finished"]
        for row in leaving.nonzero()[:, 0].tolist():
            sample, margin = pool.active[row], float(pool.state["loop.margin"][row])
            if margin < sample.worst_margin or bool(stopped[row]):
                sample.worst, sample.worst_margin = pool.state["loop.worst"][row].to("cpu", copy=True), margin
                prediction = self.success.split(pool.state["loop.prediction"][row : row + 1])[0]
                sample.prediction, sample.worst_by = prediction, pool.name
            if bool(stopped[row]):
                state = {key: rows[row : row + 1].clone() for key, rows in pool.state.items()}
                self.claims.append(Claim(sample, sample.worst, state))
            else:
                self.claims.append(Claim(sample, pool.state["x"][row].to("cpu", copy=True)))
        pool.keep(~leaving)

    def _verify(self) -> None:
        """Answer up to one batch of claims by a plain forward pass."""
        device = self.runner.device
        claims = [self.claims.popleft() for _ in range(min(self.runner.batch_size, len(self.claims)))]
        images = torch.stack([claim.image for claim in claims]).to(device)
        clean = torch.stack([claim.sample.clean for claim in claims]).to(device)
        targets = self.success.join([claim.sample.target for claim in claims], device)
        check_proposal(images, clean, self.threat, self.pools[claims[0].sample.stage].name)
        logits = self.runner.logits(self.space.leave(images))
        prediction, margins = self.success.judge(logits, targets, self.threat.sign)
        for claim, answer, margin in zip(claims, self.success.split(prediction), margins.tolist(), strict=True):
            self._answer(claim, answer, margin)

    def _answer(self, claim: Claim, prediction: Answer, margin: float) -> None:
        """Decide the sample, or send it on.

        Raises:
            EvaluationError: the logits were NaN or infinite only in the pass that gave a gradient; the attack is blind
                to such a model.

        """
        sample, policy = claim.sample, self.scenario.policy
        sample.forwards += self.runner.draws
        sample.nonfinite += bool(self.success.unanswered(self.success.join([prediction])))
        broken = self._broken(sample, prediction)
        looked_broken = claim.state is not None or (claim.final and self._broken(sample, sample.prediction))
        if looked_broken and not broken:
            if sample.worst_margin == -float("inf"):
                raise EvaluationError(
                    f"the model gave NaN or infinite logits for '{sample.id}' only while gradients were recorded",
                    fix="a gradient attack cannot judge such a model",
                )
            sample.retracted += 1
        if (broken or self.success.graded) and (sample.confirmed is None or margin < sample.confirmed[1]):
            by = sample.worst_by if claim.final else self.pools[sample.stage].name
            sample.confirmed = (claim.image, margin, prediction, by)
        if claim.final and not broken and sample.confirmed is not None:  # another image is surely as bad, or broken
            image, margin, prediction, sample.worst_by = sample.confirmed
            claim, broken = Claim(sample, image, final=True), self._broken(sample, prediction)
        decides = claim.final or policy == "last" or (self.stops and (broken or looked_broken))
        if decides or margin < sample.worst_margin:
            sample.worst, sample.worst_margin, sample.prediction = claim.image, margin, prediction
            sample.worst_by = sample.worst_by if claim.final else self.pools[sample.stage].name
        if broken and decides:
            sample.broken_by = sample.before or sample.worst_by
            self._decide(sample)
        elif claim.final and self.success.graded:
            self._enter(sample, sample.stage + 1)
        elif claim.final:
            self._decide(sample)
        elif claim.state is not None:
            self._search_on(claim, claim.state, margin)
        else:
            self._go_on(sample)

    def _broken(self, sample: Sample, prediction: Answer) -> bool:
        """Whether a prediction is what the attacker wants; NaN or infinite logits (-1) always are."""
        targeted = self.threat.targeted
        return self._reached(prediction, sample.target if targeted else sample.label, targeted=targeted)

    def _reached(self, prediction: Answer, target: Answer, *, targeted: bool) -> bool:
        """`Success.reached` of one sample."""
        rows = (self.success.join([answer]) for answer in (prediction, target))
        return bool(self.success.reached(*rows, targeted=targeted))

    def _search_on(self, claim: Claim, state: State, margin: float) -> None:
        """Put a sample back where it looked broken: in the pass that gave the gradient it did, in a plain one not."""
        sample = claim.sample
        state["loop.margin"].fill_(margin)
        if bool(state["finished"]):
            self.claims.append(Claim(sample, state["x"][0].cpu()))
        else:
            self.pools[sample.stage].waiting.appendleft((sample, state))

    def _go_on(self, sample: Sample) -> None:
        """Send a sample that stood its ground to the next restart, the next stage, or home."""
        if sample.restart + 1 < self.pools[sample.stage].restarts:
            sample.restart += 1
            self.pools[sample.stage].waiting.append((sample, None))
        elif self.success.graded and sample.worst_by:
            self.claims.append(Claim(sample, sample.worst, final=True))
        else:
            self._enter(sample, sample.stage + 1)

    def _enter(self, sample: Sample, stage: int) -> None:
        """Put a sample in line for a stage; after the last, it is decided."""
        if stage < len(self.pools):
            if self.success.graded:
                self._begin_anew(sample)
            sample.stage, sample.restart = stage, 0
            self.pools[stage].waiting.append((sample, None))
        elif self._unsure(sample):
            self.claims.append(Claim(sample, sample.worst, final=True))
        else:
            wrong = self._reached(sample.prediction, sample.label, targeted=False)
            sample.broken_by = sample.before if wrong else ""
            self._decide(sample)

    def _unsure(self, sample: Sample) -> bool:
        """Whether the worst image, which a gradient pass may have found, decides and needs an answer of its own."""
        strongest = self.scenario.policy == "strongest" and not self.success.graded
        return strongest and (sample.worst_margin <= 0 or sample.before != "")

    def _begin_anew(self, sample: Sample) -> None:
        """Put aside what a stage found of a scene, so that the next one searches as if it were the first."""
        if sample.worst_by:
            sample.found[sample.stage + 1] = sample.worst, sample.worst_margin, sample.prediction, sample.worst_by
        assert sample.given is not None
        sample.take(sample.given)
        sample.confirmed = sample.given

    def _decide(self, sample: Sample) -> None:
        """Hand a sample over; a scene with the worst image of all stages."""
        if self.success.graded:
            self._begin_anew(sample)
            if sample.found:
                sample.take(min(sample.found.values(), key=lambda found: found[1]))
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
                self.claims.append(Claim(sample, entry["image"], state, entry["final"]))
            elif state is not None and entry["place"] == "active":
                self.pools[sample.stage].append([sample], state)
            else:
                self.pools[sample.stage].waiting.append((sample, state))


def _on_cpu(state: State | None) -> State | None:
    """Copy a state, not the batch that its rows are views of."""
    return None if state is None else {key: rows.to("cpu", copy=True) for key, rows in state.items()}
