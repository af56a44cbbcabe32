"""The item `efficiency` of a pack: what its networks cost, as a step, and as a file of what was measured."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.files import write_atomic
from robustbench_kpca._core.strict import STRICT, validate_json
from robustbench_kpca._engine.inference.environment import environment
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.records.spec import Environment
from robustbench_kpca.study.reproduction.measuring import Clock, Pass, clock_of, passes_of, subject_of
from robustbench_kpca.study.reproduction.pack import Efficiency
from robustbench_kpca.study.reproduction.roles import Model, Roles

FILE = "efficiency.json"


class Row(BaseModel):
    """One network, or its attention alone for so many `tokens`. `sample`: the shape of one input."""

    model_config = STRICT
    title: str
    model: str
    tokens: int | None
    sample: tuple[int, ...]
    parameters: int
    test: Pass
    training: Pass


class Costs(BaseModel):
    """What was measured, and where. `clock`: `processor` time on one thread of a CPU, else `elapsed` time."""

    model_config = STRICT
    schema_version: Literal[1] = 1
    environment: Environment
    clock: Clock
    batch_size: int
    rows: tuple[Row, ...]

    def save(self, folder: Path) -> None:
        """Write `efficiency.json`."""
        write_atomic(folder / FILE, (self.model_dump_json(indent=1) + "\n").encode())


def load_costs(folder: Path) -> Costs:
    """Read what was measured.

    Raises:
        BadInputError: the file is missing or damaged.
    """
    path = folder / FILE
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"cannot read {path} ({reason_of(error)})") from None
    return validate_json(Costs, text, str(path))


@dataclass(frozen=True)
class Measure:
    """Measure what the models of an item cost; the numbers are written to `folder`."""

    folder: Path
    models: tuple[Model, ...]
    titles: tuple[str, ...]
    item: Efficiency = field(compare=False)

    @property
    def model(self) -> Model:
        """The first model, without weights or training: none is needed."""
        return replace(self.models[0], name="", training=None, why_not="")

    def __str__(self) -> str:
        return f"measure the cost of {len(self.models)} models"

    @property
    def wanted(self) -> list[tuple[str, ModelRequest, int | None]]:
        """Return title, model and number of tokens of every row."""
        plain = [
            ModelRequest(model.request.model, untrained=True, options=model.request.options) for model in self.models
        ]
        named = zip(self.titles, plain, strict=True)
        return [(title, request, tokens) for title, request in named for tokens in self.item.tokens or (None,)]

    def done(self) -> bool:
        """Tell whether the folder holds what would be measured."""
        try:
            costs = load_costs(self.folder)
        except BadInputError:
            return False
        rows = [(row.title, row.model, row.tokens) for row in costs.rows]
        calls = {len(spent.seconds) for row in costs.rows for spent in (row.test, row.training)}
        wanted = [(title, request.label, tokens) for title, request, tokens in self.wanted]
        return (rows, costs.batch_size, calls) == (wanted, self.item.batch_size, {self.item.repeats})


def step_of(name: str, item: Efficiency, roles: Roles) -> Measure:
    """Return the step of an item. Costs need neither data nor weights, so the models are the paper's at every scale."""
    paper = Roles(roles.name, roles.pack, "paper", roles.out, folders={}, checkpoints={})
    models = tuple(paper.models(arm)[0] for arm in item.arms)
    return Measure(roles.out / name, models, tuple(paper.title(arm) for arm in item.arms), item)


def measure(step: Measure, device: str) -> Costs:
    """Measure all rows of a step on a device; they take turns."""
    item = step.item
    subjects = [subject_of(request, tokens, item.batch_size, device) for _, request, tokens in step.wanted]
    rows = [
        Row(
            title=title,
            model=request.label,
            tokens=tokens,
            sample=tuple(subject.x.shape[1:]),
            parameters=subject.parameters,
            test=test,
            training=training,
        )
        for (title, request, tokens), subject, (test, training) in zip(
            step.wanted, subjects, passes_of(subjects, item.repeats, device), strict=True
        )
    ]
    return Costs(
        environment=environment(torch.device(device)),
        clock=clock_of(device),
        batch_size=item.batch_size,
        rows=tuple(rows),
    )
