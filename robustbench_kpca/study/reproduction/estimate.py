"""How long the open steps of a pack take at most: what is left of each × the seconds of an epoch or of a pass."""

from contextlib import suppress
from functools import cache

import torch

from robustbench_kpca._core.errors import BenchmarkError
from robustbench_kpca._core.progress import read_spent, time_left
from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca._engine.attack_loop.passes import Passes, passes_of
from robustbench_kpca._engine.inference.environment import place
from robustbench_kpca.evaluation.execute import foretold
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import Scenario, Stage
from robustbench_kpca.study.reproduction.roles import Roles, Training
from robustbench_kpca.study.reproduction.steps import Evaluate, Step, Train
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
                return self._evaluation(step.model.request, data, *step.evaluation.resolve())
        return None

    def _evaluation(self, request: ModelRequest, data: DataRequest, label: str, scenario: Scenario) -> float | None:
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

    def _training(self, step: Train) -> float | None:
        """Return the seconds of the epochs that are left: as measured on trainings of this recipe, else by passes."""
        recipe = step.training.load_recipe()
        left = max(0, recipe.epochs - step.training.epochs_done())
        device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        measured = time_left(left, *timed_epochs(step.training, self.roles, place(device)))
        if measured is not None:
            return measured
        epoch = self._epoch(step, recipe)
        return None if epoch is None else left * epoch

    def _epoch(self, step: Train, recipe: Recipe) -> float | None:
        """Return the seconds of an epoch by its passes; None for a training from files, whose steps are not known."""
        data = "files" if step.training.data else self.roles.load(recipe.data, "train")
        if isinstance(data, str):
            return None
        request = DataRequest(self.roles.source(recipe.data), "train")
        once = self._evaluation(step.model.request, request, *load_scenario("clean"))
        return None if once is None else once * _passes(recipe, data.classes).in_forwards


def timed_epochs(training: Training, roles: Roles, place: tuple[str, str]) -> tuple[int, float]:
    """Return how many epochs of trainings of the same recipe were timed at one place, and their seconds.

    `place`: device and processor, as `environment.place` names them.
    """
    trainings = (model.training for models in roles.models.values() for model in models if model.training)
    spent = (read_spent(other.weights) for other in trainings if _but_seed(other) == _but_seed(training))
    timed = [run for run in spent if run is not None and run.epochs and run.place == place]
    return sum(run.epochs for run in timed), sum(run.seconds for run in timed)


def _but_seed(training: Training) -> tuple[str, dict[str, object]]:
    """Return the recipe of a training, with its settings but for the seed."""
    return training.recipe, {key: value for key, value in training.settings.items() if key != "seed"}


def _passes(recipe: Recipe, classes: int) -> Passes:
    """Return the passes that a sample costs in an epoch, those of the attack of adversarial training included."""
    attack = 0, 0
    if recipe.adversarial is not None:
        stage = Stage(attack=recipe.adversarial.attack, restarts=1, **recipe.adversarial.options)
        attack = passes_of(build_attack(stage), classes) or attack
    return Passes(1 + attack[0], 1 + attack[1])
