"""How long the open steps of a pack take at most: what is left of each × the seconds of an epoch or of a pass."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache

import torch

from robustbench_kpca._core.errors import BenchmarkError
from robustbench_kpca._core.progress import read_spent, time_left
from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca._engine.attack_loop.passes import Passes, most_passes, passes_of
from robustbench_kpca._engine.inference.environment import place
from robustbench_kpca._engine.inference.work import DEVICES
from robustbench_kpca.data.known import published
from robustbench_kpca.evaluation.execute import foretold
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
from robustbench_kpca.models.families import ARCHITECTURES, shape_of
from robustbench_kpca.models.operations import operations_of, size_of
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import Scenario, Stage, cells_of
from robustbench_kpca.study.reproduction.roles import Roles, Training
from robustbench_kpca.study.reproduction.steps import Evaluate, Planned, Step, Train
from robustbench_kpca.training.recipe import Recipe


class Estimator:
    """Estimates seconds as `rbk eval --plan` does; audits and diagnoses are not estimated.

    Attributes:
        device: whose rates are assumed where nothing was measured, see `_engine.inference.work.DEVICES`.
    """

    def __init__(self, roles: Roles, options: RunOptions) -> None:
        self.roles, self.options = roles, options
        self.device = "CPU core" if (options.device or "cpu") == "cpu" else "A100"
        self._model = cache(ModelRequest.named)
        self._samples = cache(DataRequest.load)  # a folder of many pictures takes long to list
        self._known: dict[tuple[ModelRequest, DataRequest, str], float | None] = {}

    def seconds(self, step: Step) -> float | None:
        """Return the most seconds that a step can take; None where that is not known."""
        match step:
            case Train():
                return self._training(step)
            case Evaluate():
                data = self.roles.data_request(step.evaluation)
                return self._evaluation(step.model.request, data, step.label, step.scenario)
        return None

    def _evaluation(self, request: ModelRequest, data: DataRequest, label: str, scenario: Scenario) -> float | None:
        if self.roles.scale == "paper" and request.model in ARCHITECTURES:
            return self._by_shape(request, data, scenario)
        untrained = ModelRequest(request.model, untrained=True, options=request.options)
        key = (untrained, data, label)  # the same for all seeds of an arm
        if key not in self._known:
            self._known[key] = None
            with suppress(BenchmarkError):  # the step itself says why
                model = self._model(untrained)
                samples = self._samples(data, data.view_for(model))
                row = foretold(model, samples, label, scenario, self.options)
                self._known[key] = row.seconds.get(self.device)
        return self._known[key]

    def _by_shape(self, request: ModelRequest, data: DataRequest, scenario: Scenario) -> float | None:
        """Return the seconds of an evaluation from the shape of a network; to build one and show it data takes long."""
        operations, images = operations_of(request.model, request.options), self.images(data)
        shape = shape_of(request.model, request.options)
        if operations is None or images is None or "decoder" in shape:  # a scene is several windows
            return None
        passes = most_passes(scenario, shape.get("num_classes", 0))
        return None if passes is None else images * passes.in_forwards * operations / self._rate

    def images(self, data: DataRequest) -> int | None:
        """Return the number of images at hand or, where they are absent, as published; None where it is not known.

        Of a text, the number of its words: each is predicted from a window of its own.
        """
        assert isinstance(data.data, str)
        name = data.data.partition(":")[0]
        loaded = self.roles.load(name, data.split)
        known = published(name, data.split or "") if isinstance(loaded, str) else len(getattr(loaded, "stream", loaded))
        if known is None or data.limit is None:
            beside = 0 if data.against is None else published(data.against.partition(":")[0], "test") or 0
            return None if known is None else known + beside
        return min(known, data.limit)

    def bytes_of(self, step: Step) -> int:
        """Return about how many bytes a training keeps, or the record of an evaluation; 0 where it is not known."""
        if isinstance(step, Train):
            request = step.model.request
            if operations_of(request.model, request.options) is None:
                return 0
            kept = step.training.content.epochs // step.training.keep_every if step.training.keep_every else 0
            return (1 + kept) * _NUMBER_BYTES * size_of(request.model, request.options)
        if not isinstance(step, Evaluate):
            return 0
        cells = len(cells_of(step.scenario))
        return cells * _ROW_BYTES * (self.images(self.roles.data_request(step.evaluation)) or 0)

    @property
    def _rate(self) -> float:
        """The operations of a second that are assumed."""
        return DEVICES[self.device].operations

    def _training(self, step: Train) -> float | None:
        """Return the seconds of the epochs that are left: as measured on trainings of this recipe, else by passes."""
        recipe = step.training.content
        left = max(0, recipe.epochs - step.training.epochs_done())
        device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        measured = time_left(left, *timed_epochs(step.training, self.roles, place(device)))
        if measured is not None:
            return measured
        epoch = self._epoch(step, recipe)
        return None if epoch is None else left * epoch

    def _epoch(self, step: Train, recipe: Recipe) -> float | None:
        """Return the seconds of an epoch by its passes; None where the size of its network or data is not known."""
        if step.training.data:
            operations = operations_of(step.model.request.model, step.model.request.options)
            images = published(step.training.data, "train")
            if recipe.text is not None:
                images = recipe.text.per_epoch or (images or 0) // recipe.text.window
            passes = _passes(recipe, 1000).in_forwards
            return None if operations is None or images is None else images * passes * operations / self._rate
        data = self.roles.load(recipe.data, "train")
        if isinstance(data, str):
            return None
        request = DataRequest(self.roles.source(recipe.data), "train")
        once = self._evaluation(step.model.request, request, *load_scenario("clean"))
        return None if once is None else once * _passes(recipe, data.classes).in_forwards


_ROW_BYTES, _NUMBER_BYTES = 10, 4
"""Of an image under one corruption or attack in packed outcomes (decision 7); of a parameter."""


def decision(steps: Sequence[Planned], seconds: Sequence[float | None], estimator: Estimator, at_once: int = 1) -> str:
    """Say in one sentence what the steps that are not done take, what is missing, and what to type first.

    Hours are of one A100 at the paper's scale, whose steps no core finishes. Each number is the most: a sample that
    breaks leaves. `seconds`: of each step on `estimator.device`; `at_once`: number of devices, each with a training of
    its own or with a part of an evaluation.
    """
    roles, device = estimator.roles, "A100" if estimator.roles.scale == "paper" else estimator.device
    scale = DEVICES[estimator.device].operations / DEVICES[device].operations / 3600
    open_steps = [(own, most) for own, most in zip(steps, seconds, strict=True) if own.state != "done"]
    if not open_steps:
        return "every step is done"
    left = [*{str(own.step): (own, most) for own, most in open_steps}.values()]  # two arms may share a training
    parts, clock = [], 0.0
    for kind, noun in ((Train, "trainings"), (Evaluate, "evaluations")):
        hours = [most for own, most in left if isinstance(own.step, kind)]
        unknown = f", {hours.count(None)} of them without estimate" if None in hours else ""
        total = sum(most or 0 for most in hours) * scale
        clock += total / at_once if kind is Evaluate else _longest_queue(hours, at_once) * scale
        parts += [f"{len(hours)} {noun} of at most {total:,.1f} hours{unknown}"] if hours else []
    items = {name: [own for own, _ in open_steps if name in own.items] for own, _ in open_steps for name in own.items}
    cost = {name: [most for own, most in open_steps if name in own.items] for name in items}
    first = min(items, key=lambda name: (None in cost[name], sum(most or 0 for most in cost[name])))
    missing = _missing([own for own, _ in open_steps], roles)
    needed = _missing(items[first], roles)
    given = [f"{name}:{folder}" for name, folder in roles.folders.items()]
    words = [f"--data {where}" for where in (*given, *(f"{name}:DIR" for name in needed if name not in roles.folders))]
    several = f", {clock:,.1f} hours on {at_once} of them" if at_once > 1 else ""
    size = sum(estimator.bytes_of(own.step) for own, _ in left) / 1e9
    return (
        f"{', '.join(items)}: {' and '.join(parts) or f'{len(left)} steps'} on one {device} "
        f"({DEVICES[device].operations / 1e12:g} TFLOP/s are assumed){several}, "
        f"{size:,.1f} GB of disk beside the data; missing: {', '.join(missing) or 'nothing'}; "
        f"first: {' '.join([roles.command, '--item', first, *words])}"
    )


def _longest_queue(seconds: Iterable[float | None], queues: int) -> float:
    """Return when the last of several queues is empty, each step in turn going to the one that is free first."""
    ends = [0.0] * queues
    for most in seconds:
        ends[ends.index(min(ends))] += most or 0.0
    return max(ends)


def _missing(steps: Iterable[Planned], roles: Roles) -> list[str]:
    """Return the data sets that steps need and that are not at hand."""
    absent = dict[str, None]()
    for step in (planned.step for planned in steps if planned.state == "absent"):
        wanted: list[tuple[str, str | None]] = []
        if isinstance(step, Evaluate):
            wanted = [(step.evaluation.data, step.evaluation.split), (step.evaluation.against or "", None)]
        elif isinstance(step, Train) and step.training.data not in roles.folders:
            absent |= dict.fromkeys(filter(None, [step.training.data]))
        absent |= {name: None for name, split in wanted if name and isinstance(roles.load(name, split), str)}
    return list(absent)


def timed_epochs(training: Training, roles: Roles, place: tuple[str, str]) -> tuple[int, float]:
    """Return how many epochs of trainings of the same recipe were timed at one place, and their seconds.

    `place`: device and processor, as `environment.place` names them.
    """
    trainings = (model.training for models in roles.models.values() for model in models if model.training)
    spent = (read_spent(other.weights) for other in trainings if _but_seed(other) == _but_seed(training))
    timed = [run for run in spent if run is not None and run.epochs and run.place == place]
    return sum(run.epochs for run in timed), sum(run.seconds for run in timed)


def _but_seed(training: Training) -> tuple[str, dict[str, object]]:
    return training.recipe, {key: value for key, value in training.settings.items() if key != "seed"}


def _passes(recipe: Recipe, classes: int) -> Passes:
    """Return the passes that a sample costs in an epoch, those of the attack of adversarial training included."""
    attack = 0, 0
    if recipe.adversarial is not None:
        stage = Stage(attack=recipe.adversarial.attack, restarts=1, **recipe.adversarial.options)
        attack = passes_of(build_attack(stage), classes) or attack
    return Passes(1 + attack[0], 1 + attack[1])
