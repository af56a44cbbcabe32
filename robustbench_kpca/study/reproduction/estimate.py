"""How long the open steps of a pack take at most: trainings as timed before, all else by passes and assumed rates."""

from pathlib import Path

import torch

from robustbench_kpca._core.errors import BenchmarkError
from robustbench_kpca._engine.attack_loop.cost import BACKWARD, passes_of
from robustbench_kpca._engine.attack_loop.engine import build_attack
from robustbench_kpca._engine.inference.environment import place
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.data.request import View
from robustbench_kpca.evaluation.execute import foretold
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest, NamedModel
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import Scenario, Stage
from robustbench_kpca.report.curves import epochs_in
from robustbench_kpca.study.reproduction.roles import Roles
from robustbench_kpca.study.reproduction.steps import Evaluate, Step, Train
from robustbench_kpca.training.ledger import resume_file
from robustbench_kpca.training.recipe import Recipe, load_recipe


class Estimator:
    """Estimates seconds as `rbk eval --plan` does; audits and diagnoses are not estimated.

    Attributes:
        device: whose rates are assumed, see `_engine.inference.work.DEVICES`.
    """

    def __init__(self, roles: Roles, options: RunOptions) -> None:
        self.roles, self.options = roles, options
        self.device = "CPU core" if (options.device or "cpu") == "cpu" else "A100"
        self._models: dict[str, NamedModel] = {}
        self._samples: dict[tuple[DataRequest, View | None], Dataset] = {}
        self._seconds: dict[tuple[str, DataRequest, str], float | None] = {}

    def seconds(self, step: Step) -> float | None:
        """Return the most seconds that a step can take; None where that is not known."""
        if isinstance(step, Train):
            return self._training(step)
        if isinstance(step, Evaluate):
            wanted = step.evaluation
            against = None if wanted.against is None else self.roles.source(wanted.against)
            data = DataRequest(self.roles.source(wanted.data), wanted.split, wanted.limit, against)
            return self._evaluation(step.model.request, data, *wanted.resolve())
        return None

    def _evaluation(self, request: ModelRequest, data: DataRequest, label: str, scenario: Scenario) -> float | None:
        key = f"{request.model} {sorted(request.options.items())}"
        if (key, data, label) not in self._seconds:
            self._seconds[key, data, label] = None
            try:
                if key not in self._models:
                    untrained = ModelRequest(request.model, untrained=True, options=request.options)
                    self._models[key] = untrained.named()
                view = data.view_for(self._models[key])
                if (data, view) not in self._samples:  # a folder of many pictures takes long to list
                    self._samples[data, view] = data.load(view)
                known = foretold(self._models[key], self._samples[data, view], label, scenario, self.options)
                self._seconds[key, data, label] = known.seconds.get(self.device)
            except BenchmarkError:  # the step itself says why
                pass
        return self._seconds[key, data, label]

    def _training(self, step: Train) -> float | None:
        """Return the seconds of the epochs that are left: as timed on trainings of this recipe, else by passes."""
        recipe = load_recipe(step.training.recipe, step.training.settings)[1]
        left = max(0, recipe.epochs - epochs_done(self.roles.weights(step.training)))
        here = place(torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu"))
        per_epoch = self.roles.seconds_per_epoch(step.training, here)
        data = "files" if step.training.data else self.roles.load(recipe.data, "train")
        if per_epoch is None and not isinstance(data, str):
            request = DataRequest(self.roles.source(recipe.data), "train")
            shown = self._evaluation(step.model.request, request, *load_scenario("clean"))
            per_epoch = None if shown is None else shown * _passes(recipe, data.classes)
        return None if per_epoch is None else left * per_epoch


def _passes(recipe: Recipe, classes: int) -> float:
    """Return how many forward passes a sample costs in an epoch; a backward pass counts as `BACKWARD` of them."""
    more = 0, 0
    if recipe.adversarial is not None:
        stage = Stage(attack=recipe.adversarial.attack, restarts=1, **recipe.adversarial.options)
        more = passes_of(build_attack(stage), classes) or more
    return 1 + more[0] + BACKWARD * (1 + more[1])


def epochs_done(weights: Path) -> int:
    """Return how many epochs of a training are finished, as its curves say; 0 where it cannot go on after them."""
    if not (weights.is_file() or resume_file(weights).is_file()):
        return 0
    return epochs_in(weights)
