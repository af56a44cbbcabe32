"""Adversarial images kept beside a record, shown to the model once more."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.mode import frozen
from robustbench_kpca._engine.inference.runner import Runner, device_for
from robustbench_kpca.attacks.shared.ball import distance
from robustbench_kpca.models.checkpoint import parameters_sha256
from robustbench_kpca.protocols.scenario import IMPORTED, Attack
from robustbench_kpca.records.images import KeptImages
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.rules import ROUNDING


@dataclass(frozen=True)
class Rechecked:
    """How many samples were looked at, and a line for each that the record contradicts."""

    samples: int
    differences: tuple[str, ...]


def recheck(record: Record, images: KeptImages, model: nn.Module, device: str | None = None) -> Rechecked:
    """Show the kept images to the model, and compare its predictions and the perturbations with the record.

    Raises:
        BadInputError: the record is of no attack, or of a model with other weights.
    """
    scenario = record.spec.protocol.scenario
    if not isinstance(scenario, Attack):
        raise BadInputError(f"{record.spec.stem()} is of no attack", expected="a record with adversarial images")
    recorded, actual = record.spec.model.parameters_sha256, parameters_sha256(model)
    if recorded != actual:
        raise BadInputError(
            f"the model has weights {actual[:16]}, that of the record {recorded[:16]}",
            fix="give the same model and weights",
        )
    clean, attacked = map(torch.from_numpy, images.floats())
    where, space = device_for(model, device), InputSpace.of(model, scenario.space)
    runner = Runner(model.to(where), record.spec.batch_size, where, scenario.draws)
    rows = {row["sample"]: row for row in record.outcomes.rows()}
    success = task_named(record.spec.data.task).compute.success
    with frozen(model):
        answers = []
        for first in range(0, len(attacked), runner.batch_size):
            logits = runner.logits(attacked[first : first + runner.batch_size].to(where)).cpu()
            answers += success.judge(logits, torch.zeros(len(logits), dtype=torch.int64))[0].tolist()
    sizes = distance(space.enter(attacked), space.enter(clean), scenario.norm).tolist()
    inside = ((attacked >= -1e-6) & (attacked <= 1 + 1e-6)).flatten(1).all(1) | (scenario.space != "pixel")
    differences: list[str] = []
    for sample, answer, size, valid in zip(images.samples, answers, sizes, inside.tolist(), strict=True):
        differences += _differences(sample, rows.get(sample), answer, size, scenario, valid=valid)
    unkept = (name for name, row in rows.items() if row["broken_by"] == IMPORTED and name not in images.samples)
    differences += [f"{sample}: broken by an image that is not kept" for sample in unkept]
    return Rechecked(len(images.samples), tuple(differences))


def _differences(
    sample: str, row: dict[str, object] | None, answer: int, size: float, scenario: Attack, *, valid: bool
) -> Iterator[str]:
    if row is None:
        yield f"{sample}: not in the record"
        return
    if answer != row["prediction"]:
        yield f"{sample}: predicted {answer}, recorded {row['prediction']}"
    if size > scenario.eps * (1 + 1e-5) + ROUNDING:
        yield f"{sample}: perturbed by {size:.6g}, eps is {scenario.eps:.6g}"
    if not valid:
        yield f"{sample}: values outside [0, 1]"
