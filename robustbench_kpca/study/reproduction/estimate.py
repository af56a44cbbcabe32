"""How long the steps of a pack will take at most on this machine: passes needed times the measured time of a pass.

The time of a pass is taken from records of the same kind of protocol, architecture, data and device, and from a short
probe where there are none. Trainings are estimated by epochs that were timed on this device, of the same recipe with
any seed, where there are such. Samples that a recorded attack broke are taken as broken at once by another one of at
least its budget that follows gradients; attacks that see no gradient can take all their passes for them.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from robustbench_kpca._engine.attack_loop.cost import Passes, Speed, most_passes, passes_of, speed
from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca._engine.inference.environment import place
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.request import DEIT
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.evaluation.time_left import BACKWARD
from robustbench_kpca.models.source import stated_view
from robustbench_kpca.protocols.scenario import Attack, Stage
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.curves import epochs_in
from robustbench_kpca.study.reproduction.roles import Roles
from robustbench_kpca.study.reproduction.steps import Evaluate, Step, Train
from robustbench_kpca.tasks import task_named
from robustbench_kpca.training.ledger import resume_file
from robustbench_kpca.training.recipe import Recipe, load_recipe


class Estimator:
    """Estimates seconds; architectures are probed once each. Audits and diagnoses are not estimated.

    It knows the records that are there when it is made; `reread` takes note of newer ones.
    """

    def __init__(self, roles: Roles, device: str) -> None:
        self.roles, self.device = roles, device
        self._speeds: dict[str, tuple[Speed, int]] = {}
        self._names: dict[str, set[str]] = {}
        self._records: dict[str, list[Record]] = {}
        self.reread()

    def reread(self) -> None:
        """Take note of the records that are there now, by the names of their models."""
        self._records = {}
        for record in self.roles.records():
            self._records.setdefault(record.spec.model.name, []).append(record)

    def seconds(self, step: Step) -> float | None:
        """Return the most seconds that a step can take; None where that is not known."""
        if isinstance(step, Train):
            return self._training(step)
        if isinstance(step, Evaluate):
            return self._evaluation(step)
        return None

    def _evaluation(self, step: Evaluate) -> float | None:
        data = self.roles.load(step.evaluation.data, step.evaluation.split)
        if isinstance(data, str):
            return None
        scenario = step.evaluation.resolve()[1]
        passes = most_passes(scenario, data.classes, graded=task_named(data.task).compute.success.graded)
        n = min(len(data), step.evaluation.limit or len(data))
        if passes is None:
            return None
        request = step.model.request
        speed = self._recorded(request, scenario.kind, step.evaluation.recorded_data, place(torch.device(self.device)))
        rows = 1 if speed is not None else self._rows(data, request)
        return n * self._unbroken(step) * rows * (speed or self._speed(data, request)).seconds(passes)

    def _recorded(self, request: ModelRequest, kind: str, data: Sequence[str], here: tuple[str, str]) -> Speed | None:
        """Return the time of the passes in records; None where no record says it.

        A backward pass counts as two forward passes. What goes with passes, such as making corruptions, is in it.
        """
        names = self._named_alike(request)
        records = [
            record
            for record in self._of(names)
            if record.kind == kind
            and record.spec.data.name in data
            and (record.environment.device, record.environment.processor) == here
        ]
        passes = sum(record.passes.forwards + BACKWARD * record.passes.backwards for record in records)
        once = sum(record.seconds for record in records) / passes if passes else 0.0
        return Speed(once, BACKWARD * once) if once else None

    def _of(self, models: Iterable[str]) -> list[Record]:
        return [record for name in models for record in self._records.get(name, ())]

    def _named_alike(self, request: ModelRequest) -> set[str]:
        """Return the names of all models of the pack that have the architecture of one."""
        if not self._names:
            for model in (model for arm in self.roles.arms for model in self.roles.models(arm)):
                self._names.setdefault(_architecture(model.request), set()).add(model.name)
        return self._names.get(_architecture(request), set())

    def _unbroken(self, step: Evaluate) -> float:
        """Return the share of samples that may withstand an attack, as records of the same model let one expect.

        It is the upper end of the lowest accuracy without attack, and under attacks of the same norm and space with a
        budget that is not larger: what those broke is broken soon. Without records of the model it is the largest of
        the other seeds of its arm; 1 without those, too, and for all but attacks.
        """
        wanted = step.evaluation.resolve()[1]
        if not isinstance(wanted, Attack):
            return 1.0
        names = {step.model.name, *(model.name for model in self.roles.models(step.model.arm))}
        known: dict[str, list[float]] = {}
        for record in self._of(names):
            if record.spec.data.name in step.evaluation.recorded_data:
                known.setdefault(record.spec.model.name, []).append(_withstood(record, wanted))
        shares = {name: min([1.0, *accuracies]) for name, accuracies in known.items()}
        return shares.get(step.model.name, max(shares.values(), default=1.0))

    def _training(self, step: Train) -> float | None:
        """Return the seconds of the epochs that are left: as measured on trainings of this recipe, else probed."""
        recipe = load_recipe(step.training.recipe, step.training.settings)[1]
        left = max(0, recipe.epochs - epochs_done(self.roles.weights(step.training)))
        here = place(torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu"))
        per_epoch = self.roles.seconds_per_epoch(step.training, here)
        if per_epoch is not None:
            return left * per_epoch
        data = self.roles.load(recipe.data, "train") if not step.training.data else ""
        if isinstance(data, str):
            return None
        attack = Passes(0, 0) if recipe.adversarial is None else _attack_passes(recipe, data.classes)
        passes = Passes(1 + attack.forwards, 1 + attack.backwards)
        recorded = self._recorded(step.model.request, "attack", (recipe.data,), here)
        return left * len(data) * (recorded or self._speed(data, step.model.request)).seconds(passes)

    def _rows(self, data: Dataset, request: ModelRequest) -> int:
        """Return how many inputs of the model cover the first sample: one, or its windows side by side."""
        whole, side = data.form.tensor(data.image(0)).shape[-2:], self._timed(data, request)[1]
        return math.prod(math.ceil(length / side) for length in whole)

    def _speed(self, data: Dataset, request: ModelRequest) -> Speed:
        return self._timed(data, request)[0]

    def _timed(self, data: Dataset, request: ModelRequest) -> tuple[Speed, int]:
        """Return the speed of an architecture, and the longest side of its input."""
        key = _architecture(request)
        if key not in self._speeds:
            model = ModelRequest(request.model, untrained=True, options=request.options).load()
            side = (stated_view(model) or DEIT).size
            self._speeds[key] = speed(model, data.form.tensor(data.image(0))[:, :side, :side], self.device), side
        return self._speeds[key]


def _architecture(request: ModelRequest) -> str:
    return f"{request.model} {sorted(request.options.items())}"


def epochs_done(weights: Path) -> int:
    """Return how many epochs of a training are finished, as its curves say; 0 where it cannot go on after them."""
    if not (weights.is_file() or resume_file(weights).is_file()):
        return 0
    return epochs_in(weights)


def _withstood(record: Record, wanted: Attack) -> float:
    """Return the accuracy in a record, at most, where it bounds that under an attack; else 1."""
    if record.kind == "clean" and "clean_accuracy" in record.metrics:
        return record.metrics["clean_accuracy"].high
    recorded = record.spec.protocol.resolved
    if record.kind != "attack" or "robust_accuracy" not in record.metrics or recorded["eps"] > wanted.eps:
        return 1.0
    if not _follows_gradients(wanted):
        return 1.0
    alike = all(recorded[name] == getattr(wanted, name) for name in ("norm", "space", "clip", "labels", "policy"))
    return record.metrics["robust_accuracy"].high if alike else 1.0


def _follows_gradients(attack: Attack) -> bool:
    """Whether the first attack of a protocol makes backward passes."""
    most = passes_of(build_attack(attack.stage[0]), 2) if attack.stage else None
    return most is not None and most[1] > 0


def _attack_passes(recipe: Recipe, classes: int) -> Passes:
    assert recipe.adversarial is not None
    stage = Stage(attack=recipe.adversarial.attack, restarts=1, **recipe.adversarial.options)
    return Passes(*(passes_of(build_attack(stage), classes) or (0, 0)))
