"""Run a cascade of attacks over a data set in full batches; broken samples leave at once and new ones fill their rows.

An attack only proposes images. The engine runs the model, checks the proposals, counts the passes and confirms every
broken sample by a forward pass without gradients. `cascade` decides where a sample goes next.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError, BenchmarkError, EvaluationError, reason_of
from robustbench_kpca._core.randomness import sample_key
from robustbench_kpca._core.strict import validate
from robustbench_kpca._engine.attack_loop.backward import backward_of, require_gradients
from robustbench_kpca._engine.attack_loop.cascade import Cascade
from robustbench_kpca._engine.attack_loop.checks import Checks
from robustbench_kpca._engine.attack_loop.eight_bits import require_levels
from robustbench_kpca._engine.attack_loop.foresight import Layout
from robustbench_kpca._engine.attack_loop.later_runs import LaterRuns
from robustbench_kpca._engine.attack_loop.pool import Candidate, Pool
from robustbench_kpca._engine.attack_loop.pool import Sample as Sample  # re-exported for users of the engine
from robustbench_kpca._engine.attack_loop.query import CountingQuery, Tally, Worst, check_clean
from robustbench_kpca._engine.attack_loop.saved import packed, unpacked
from robustbench_kpca._engine.attack_loop.sets import set_of
from robustbench_kpca._engine.attack_loop.success import Success
from robustbench_kpca._engine.attack_loop.threat import check_budget, threat_for
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.attacks import ATTACKS
from robustbench_kpca.attacks.foreign import build as foreign_attack
from robustbench_kpca.attacks.shared.names import library_of
from robustbench_kpca.protocols.scenario import Attack as AttackScenario
from robustbench_kpca.protocols.scenario import Stage
from robustbench_kpca.records.table import CLAMP, CLEAN
from robustbench_kpca.types import Attack, Foreseen, Images, Labels, Mask, SeparateRuns, State

CleanBatch = tuple[list[int], Images, Labels]


def build_attack(stage: Stage) -> Attack:
    """Return the attack of a stage, built with the options of the protocol.

    Raises:
        BadInputError: unknown attack; unknown, missing or invalid option.
    """
    if library_of(stage.attack):
        return foreign_attack(stage.attack, stage.options)
    kind: Any = ATTACKS.get(stage.attack)
    fits = isinstance(kind, type) and is_dataclass(kind)
    if not fits:
        raise BadInputError(f"attack '{stage.attack}' is no dataclass", expected="one whose fields are its options")
    attack: Attack = validate(kind, stage.options, f"attack '{stage.attack}'")
    for name, value in stage.options.items():  # pydantic takes true for 1.0
        if isinstance(value, bool) and not isinstance(getattr(attack, name), bool):
            raise BadInputError(f"attack '{stage.attack}': {name} = {str(value).lower()}", expected="a number")
    return attack


class Engine:
    """Runs one attack protocol over a stream of clean batches; `sink` receives every sample once, when it is finished.

    By default an attack succeeds if any iterate of any stage and restart is misclassified; the protocol's `policy` can
    change this. Every success is confirmed by a forward pass without gradients in single precision. The
    forward passes on the clean image and on the clipped one are not counted as passes of the attack.
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
        self.threat = threat_for(scenario, runner.model)
        self.allowed = set_of(self.threat)
        self.space = InputSpace.of(runner.model, scenario.space)
        self.pools = [Pool(stage.name, build_attack(stage), stage.restarts) for stage in scenario.stage]
        self.stages = {stage.name: stage for stage in scenario.stage}
        for pool, stage in zip(self.pools, scenario.stage, strict=True):
            self.allowed.require_attack(pool.name, pool.attack)
            require_gradients(stage, pool.attack)
        success.check_protocol(scenario, {pool.name: pool.attack for pool in self.pools})
        self.cascade = Cascade(scenario, success, self.pools, runner.draws, sink)
        self.candidates = self.cascade.candidates
        self.entered = 0
        self.current: Pool | None = None  # that took the last step

    def run(self, source: Iterator[CleanBatch], on_batch: Callable[[], None] = lambda: None) -> None:
        """Attack everything that `source` yields; `on_batch` is called after every batch.

        Full batches run first. Smaller batches, which the runner pads, run only when `source` is exhausted.
        """
        exhausted = False
        while True:
            size = self.runner.batch_size
            ready = next((pool for pool in reversed(self.pools) if len(pool) >= size), None)
            if len(self.candidates) >= size:
                self._confirm_candidates()
            elif ready is not None:
                self._step(ready)
            elif not exhausted:
                batch = next(source, None)
                exhausted = batch is None
                if batch is not None:
                    self._enter_batch(*batch)
            elif remaining := next((pool for pool in self.pools if len(pool)), None):
                self._step(remaining)
            elif self.candidates:
                self._confirm_candidates()
            else:
                return
            on_batch()

    def starting_images(self, images: Images) -> Images:
        """Return the images that attacks start from: in the protocol's space, clipped if the protocol says so."""
        entered = self.space.enter(images)
        return entered.clamp(0, 1) if self.scenario.cut_off else entered

    def _enter_batch(self, indices: list[int], images: Images, labels: Labels) -> None:
        """Run the clean forward pass and queue the samples; with true labels, misclassified ones are not attacked."""
        self.entered += len(indices)
        labels = labels.to(self.runner.device)
        logits = self.runner.clean_logits(images.to(self.runner.device))
        check_clean(logits, labels)
        check_budget(self.threat, self.scenario.space, images)
        if self.scenario.storage is not None:
            require_levels(images)
        predicted, starting = logits.argmax(1), self.starting_images(images)
        targets = predicted if self.scenario.labels == "predicted" else labels
        if self.scenario.cut_off:
            logits = self.runner.logits(self.space.leave(starting).to(self.runner.device))
        prediction, margins = self.success.judge(logits, targets)
        ranks = self.success.rank(logits, labels).tolist()
        wrong_unclipped, wrong = (self.success.reached(answer, labels).tolist() for answer in (predicted, prediction))
        answers = (self.success.split(part) for part in (labels, predicted, targets, prediction))
        for row, (label, first, target, answer, margin) in enumerate(zip(*answers, margins.tolist(), strict=True)):
            before = "" if not wrong[row] else CLEAN if wrong_unclipped[row] else CLAMP
            clean = starting[row].clone()  # a view would keep the whole batch in memory
            sample = Sample(
                indices[row],
                self.ids[indices[row]],
                label,
                clean,
                clean_prediction=first,
                target=target,
                before=before,
                worst=clean,
                worst_margin=margin,
                prediction=answer,
                rank=ranks[row],
            )
            if self.success.graded:
                sample.given = clean, margin, answer, ranks[row], ""
            if self.scenario.labels != "predicted":
                sample.broken_by = before
            if before and self.scenario.labels == "true":
                sample.unrounded_by = None if self.scenario.storage is None else before
                self.sink(sample)
            else:
                self.cascade.enter_stage(sample, 0)

    def _fill(self, pool: Pool) -> None:
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
        clean = torch.stack([sample.clean for sample in samples]).to(device, non_blocking=True)
        begun = all(sample.worst is sample.clean for sample in samples)
        worst_images = clean.clone() if begun else torch.stack([sample.worst for sample in samples]).to(device)
        labels = self.success.join([sample.target for sample in samples], device)
        keys = [sample_key(self.seed, f"{sample.stage}/{pool.name}/{sample.restart}", sample.id) for sample in samples]
        state = pool.attack.start(clean, labels, self.threat, torch.tensor(keys, device=device))
        return state | {
            "loop.clean": clean,
            "loop.label": labels,
            "loop.truth": self.success.join([sample.label for sample in samples], device),
            "loop.worst": worst_images,
            "loop.margin": torch.tensor(
                [sample.worst_margin for sample in samples], device=device, dtype=torch.float64
            ),
            "loop.prediction": self.success.join([sample.prediction for sample in samples], device),
            "loop.rank": torch.tensor([sample.rank for sample in samples], device=device),
        }

    def _step(self, pool: Pool) -> None:
        """Take a step with the samples of a pool; rows that would be empty show what comes later, if the attack can.

        With several draws they stay empty: the noise of a model depends on the whole batch.
        """
        self._fill(pool)
        self.current = pool
        free = self.runner.batch_size - len(pool.active) if self.runner.draws == 1 else 0
        later = LaterRuns(pool, self.threat)
        if free > 0 and not pool.all_begun and isinstance(pool.attack, SeparateRuns):
            later.begin(free)
        before, leaving = pool.state, None
        if free > 0 and isinstance(pool.attack, Foreseen):
            tally = self._step_ahead(pool, pool.attack)
        else:
            try:
                pool.state, tally, leaving = self._advance(pool, pool.state)
            except EvaluationError:
                if not pool.later:
                    raise
                later.drop()  # perhaps rows of later runs have failed: take the step without them
                pool.state, tally, leaving = self._advance(pool, pool.state)
        pool.steps, pool.rows = pool.steps + 1, len(pool.active)
        pool.spend(tally)
        stopped = tally.broken & self.cascade.stops
        if pool.later:
            stopped, leaving = later.settle(before, stopped), None
        self._collect_candidates(pool, stopped, leaving)

    def _advance(self, pool: Pool, state: State) -> tuple[State, Tally, list[bool]]:
        """Take a step with the rows of a state, which are those of the pool or made from them; tell which may leave."""
        of_loop = {key: rows for key, rows in state.items() if key.startswith("loop.")}
        state = {key: rows for key, rows in state.items() if key not in of_loop}
        lowest = Worst(of_loop["loop.worst"], of_loop["loop.margin"], of_loop["loop.prediction"], of_loop["loop.rank"])
        query = CountingQuery(
            self.runner,
            self.space,
            self.success,
            pool.name,
            allowed=self.allowed,
            clean=of_loop["loop.clean"],
            labels=of_loop["loop.label"],
            truth=of_loop["loop.truth"],
            worst=lowest,
            stops=self.cascade.stops,
            stage=self.stages[pool.name],
        )
        try:
            with backward_of(self.stages[pool.name].backward_of, self.runner):
                state = pool.attack.step(state, self.threat, query) | of_loop
        except BenchmarkError:
            raise
        except Exception as error:
            if library_of(pool.name) or not ATTACKS.is_outside(pool.name):
                raise
            raise EvaluationError(f"attack '{pool.name}' failed ({reason_of(error)})") from error
        leaving = (query.broken & self.cascade.stops) | state["finished"]
        return state, query.tally, query.checks.settle(leaving)

    def _step_ahead(self, pool: Pool, attack: Foreseen) -> Tally:
        """Show several proposals of every sample, as if none were kept, and go on from the first that was."""
        layout = Layout.even(len(pool.active), self.runner.batch_size, self.runner.device)
        before = attack.ahead(layout.spread(pool.state, pool.spread), self.threat, layout.ahead)
        after, tally, _ = self._advance(pool, before)
        over = attack.kept(before, after) | after["finished"] | (tally.broken & self.cascade.stops)
        pool.state, tally = layout.fold(pool.state, pool.spread, after, tally, over, stops=self.cascade.stops)
        return tally

    def _collect_candidates(self, pool: Pool, stopped: Mask, leaving: list[bool] | None) -> None:
        """Remove samples that seem broken (if that ends their search) or used up their budget; queue their images.

        All that is read of them comes in one copy for each kind. `leaving` is None where it was not looked at yet.
        """
        leaving = (stopped | pool.state["finished"]).tolist() if leaving is None else leaving
        rows = [row for row, leaves in enumerate(leaving) if leaves]
        if not rows:
            return
        pool.book()
        chosen = torch.tensor(rows).to(stopped.device, non_blocking=True)
        margins, ranks = (pool.state[f"loop.{key}"].index_select(0, chosen).tolist() for key in ("margin", "rank"))
        answers = self.success.split(pool.state["loop.prediction"].index_select(0, chosen))
        broken = stopped.index_select(0, chosen).tolist()
        worst_images, last = (pool.state[key].index_select(0, chosen).cpu() for key in ("loop.worst", "x"))
        for at, (row, margin, rank, answer, stops) in enumerate(
            zip(rows, margins, ranks, answers, broken, strict=True)
        ):
            sample = pool.active[row]
            assert isinstance(sample, Sample)  # later runs never leave here
            if margin < sample.worst_margin or stops:
                sample.take((worst_images[at].clone(), margin, answer, rank, pool.name))  # a view would keep all
            if stops:
                state = {key: rows[row : row + 1].clone() for key, rows in pool.state.items()}
                self.candidates.append(Candidate(sample, sample.worst, state))
            else:
                self.candidates.append(Candidate(sample, last[at].clone()))
        pool.keep([row for row, leaves in enumerate(leaving) if not leaves])

    def _confirm_candidates(self) -> None:
        """Run one batch of candidates through a forward pass without gradients."""
        device, count = self.runner.device, min(self.runner.batch_size, len(self.candidates))
        batch = [self.candidates.popleft() for _ in range(count)]
        images = torch.stack([candidate.image for candidate in batch]).to(device)
        clean = torch.stack([candidate.sample.clean for candidate in batch]).to(device)
        targets = self.success.join([candidate.sample.target for candidate in batch], device)
        labels = self.success.join([candidate.sample.label for candidate in batch], device)
        checks = Checks()
        name = self.pools[batch[0].sample.stage].name if self.pools else "none"  # without stages: the clean image
        self.allowed.check(images, clean, name, checks)
        checks.settle()
        logits = self.runner.logits(self.space.leave(images))
        prediction, margins = self.success.judge(logits, targets)
        answers, ranks = self.success.split(prediction), self.success.rank(logits, labels).tolist()
        unanswered = self.success.unanswered(prediction).tolist()
        judged = zip(batch, answers, margins.tolist(), ranks, unanswered, strict=True)
        for candidate, answer, margin, rank, is_unanswered in judged:
            self.cascade.confirm(candidate, answer, margin, rank, unanswered=is_unanswered)

    def snapshot(self) -> list[dict[str, Any]]:
        """Return all unfinished samples as plain values and tensors, without their clean images (`saved`).

        One entry per sample: its place, the sample, its state if it has one, and the image to be confirmed.
        """

        def entry(place: str, sample: Sample, state: State | None, **more: Any) -> dict[str, Any]:
            content = {"place": place, "sample": vars(sample), "state": _on_cpu(state), **more}
            return {"index": sample.index, "content": packed(content, sample.clean)}

        entries = [
            entry("claims", candidate.sample, candidate.state, image=candidate.image, final=candidate.final)
            for candidate in self.candidates
        ]
        for pool in self.pools:
            pool.book()
            for row, sample in enumerate(pool.active):
                if isinstance(sample, Sample):  # later runs are begun again
                    state = {key: rows[row : row + 1] for key, rows in pool.state.items()}
                    entries.append(entry("active", sample, state))
            entries += [entry("waiting", sample, state) for sample, state in pool.waiting]
        return entries

    def restore(self, entries: list[dict[str, Any]], clean: Mapping[int, Tensor]) -> None:
        """Put the samples of a snapshot back into their places; `clean` holds the `starting_images` of each."""
        for stored in entries:
            entry = unpacked(stored["content"], clean[stored["index"]])
            sample, state = Sample(**entry["sample"]), entry["state"]
            if state is not None:
                state = {key: rows.to(self.runner.device) for key, rows in state.items()}
            if entry["place"] == "claims":
                self.candidates.append(Candidate(sample, entry["image"], state, entry["final"]))
            elif state is not None and entry["place"] == "active":
                self.pools[sample.stage].append([sample], state)
            else:
                self.pools[sample.stage].waiting.append((sample, state))


def _on_cpu(state: State | None) -> State | None:
    """Copy a state to the CPU. Its rows are views, whose whole batch would otherwise be saved."""
    return None if state is None else {key: rows.to("cpu", copy=True) for key, rows in state.items()}
