"""Foretell what a plan of evaluations will take at most: passes of its models, and seconds by assumed rates."""

from collections.abc import Mapping
from dataclasses import dataclass

from robustbench_kpca._engine.attack_loop.cost import BACKWARD, Passes, most_passes
from robustbench_kpca._engine.inference.runner import device_for
from robustbench_kpca._engine.inference.work import DEVICES, MOST, Rates, Work, larger, work_of
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.evaluation.evaluation import batch_on, require_fit, runner_for
from robustbench_kpca.evaluation.execute import load_data, require_possible
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.plan import Evaluate, Plan
from robustbench_kpca.evaluation.reporter import Reporter
from robustbench_kpca.evaluation.requests import NamedModel
from robustbench_kpca.models.source import class_names_of
from robustbench_kpca.protocols.scenario import Attack, Scenario
from robustbench_kpca.tasks import task_named

USUAL = 64
MEMORY = 80 * 10**9  # bytes of the GPUs in `DEVICES`


@dataclass(frozen=True)
class Foretold:
    """What one model takes under one protocol.

    Attributes:
        model: its name.
        protocol: its label.
        samples: their number.
        forwards: the most forward passes of a sample, draws included; None where that is not known.
        backwards: the same of backward passes.
        operations: of a forward pass of one row, two for each multiply-add.
        batch_size: with which it will be evaluated.
        seconds: device -> estimate; empty where the passes are not known.
    """

    model: str
    protocol: str
    samples: int
    forwards: int | None
    backwards: int | None
    operations: int
    batch_size: int
    seconds: Mapping[str, float]


def foretell(plan: Plan, reporter: Reporter) -> list[Foretold]:
    """Load the models and data of a plan, show each model one row, and return a row for each evaluation.

    Corruptions and clean pictures of scenes and texts take as many passes as windows: there they are not known.

    Raises:
        BadInputError: a model or data cannot be loaded, the model fails, or model, data and protocol are incompatible.
    """
    models = [model.named() for model in plan.models]
    require_possible(plan, models)
    data = load_data(plan, models, reporter)
    steps = [step for step in plan.steps if isinstance(step, Evaluate)]
    return [
        foretold(models[number], data[number], step.label, step.scenario, plan.options)
        for step in steps
        for number in step.models
    ]


def foretold(named: NamedModel, data: Dataset, label: str, scenario: Scenario, options: RunOptions) -> Foretold:
    """Return what one model takes under one protocol, from one row that it is shown."""
    require_fit(named.model, data, scenario)
    compute = task_named(data.task).compute
    where = device_for(named.model, options.device)
    row = compute.first_inputs(named.model, data, scenario, 1)
    runner = runner_for(named.model, data, scenario, 1, where)
    classes = runner.logits(row.to(where)).shape[1]
    compute.match_classes(data, classes, class_names_of(named.model))
    work = work_of(runner, row).once(scenario.draws)
    graded = compute.success.graded
    passes = None if graded and not isinstance(scenario, Attack) else most_passes(scenario, classes, graded=graded)
    usual = compute.batch_size(named.model, data, scenario)
    return Foretold(
        model=named.label,
        protocol=label,
        samples=len(data),
        forwards=None if passes is None else passes.forwards,
        backwards=None if passes is None else passes.backwards,
        operations=work.operations,
        batch_size=options.batch_size or batch_on(where, usual, named.model, data, scenario),
        seconds={} if passes is None else estimates(work, passes, len(data)),
    )


def estimates(work: Work, passes: Passes, samples: int) -> dict[str, float]:
    """Return the most seconds of so many samples on each of `DEVICES`, by the batch size that is chosen there."""
    batch = larger(USUAL, work, MEMORY, min(samples, MOST))

    def seconds(rates: Rates) -> float:
        return samples * (passes.forwards + BACKWARD * passes.backwards) * work.seconds(batch, rates)

    return {name: seconds(rates) for name, rates in DEVICES.items()}
