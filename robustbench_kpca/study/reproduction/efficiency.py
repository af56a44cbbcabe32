"""The item `efficiency` of a pack: what its networks cost, as a step, a file and a page."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import read_file, write_atomic
from robustbench_kpca._core.strict import STRICT, validate_json
from robustbench_kpca._core.web.document import Block, Document, Figure, Paragraph, Prose, Table
from robustbench_kpca._core.web.figures import drawing, svg_of
from robustbench_kpca._engine.inference.environment import environment
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.records.spec import Environment
from robustbench_kpca.study.reproduction.measuring import Clock, Pass, clock_of, passes_of, subject_of
from robustbench_kpca.study.reproduction.pack import Efficiency
from robustbench_kpca.study.reproduction.roles import Model, Roles

FILE = "efficiency.json"


class Row(BaseModel):
    """One network, or its attention alone on that many `tokens`. `sample`: the shape of one input."""

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
    return validate_json(Costs, read_file(path, "measurement"), str(path))


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
    paper = Roles(roles.name, roles.pack, "paper", roles.out)
    models = tuple(paper.models[arm][0] for arm in item.arms)
    return Measure(roles.out / name, models, tuple(paper.arms[arm].title for arm in item.arms), item)


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


NUMBERS: dict[str, tuple[Callable[[Pass, int], float], str]] = {
    "Operations": (lambda cost, batch: cost.operations / batch, ""),
    "Time": (lambda cost, batch: cost.time / batch, "s"),
    "Memory": (lambda cost, _: cost.peak_bytes, "B"),
}
"""Title -> the number, given the size of the batch, and its unit: of one sample, but for memory."""
_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "µ"))


def document(item: Efficiency, costs: Costs, origin: Block) -> Document:
    """Return the page. `origin`: what is done, and the command that makes it."""
    heads = ["Model", "Input", "Parameters"]
    heads += [f"{title}, {when}" for title in NUMBERS for when in ("test", "training")]
    firsts = {row.sample: row for row in reversed(costs.rows)}
    table = Table(heads, [_cells(row, firsts[row.sample], costs.batch_size) for row in costs.rows])
    drawn: list[Block] = [Figure(curves(costs), "By number of tokens", "tokens.svg")] if item.tokens else []
    return Document(item.title, [table, *drawn, Paragraph(Prose(item.intro)), _note(costs), origin])


def _cells(row: Row, first: Row, batch: int) -> list[str]:
    cells = [row.title, " × ".join(map(str, row.sample)), f"{row.parameters:,}"]
    for value, unit in NUMBERS.values():
        for cost, base in ((row.test, first.test), (row.training, first.training)):
            ratio = "" if row is first else f" (× {value(cost, batch) / value(base, batch):.2f})"
            cells.append(f"{spelled(value(cost, batch))}{unit}{ratio}")
    return cells


def spelled(value: float) -> str:
    """Write a number with three digits and the letter of its thousands: `2.42 G`."""
    scale, letter = next((pair for pair in _SCALES if value >= pair[0]), _SCALES[-1])
    number = value / scale
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f} {letter}"


def _note(costs: Costs) -> Paragraph:
    host, calls = costs.environment, len(costs.rows[0].test.seconds)
    furthest = max(cost.spread for row in costs.rows for cost in (row.test, row.training))
    versions = ", ".join(f"{name} {host.packages[name]}" for name in ("torch", "timm") if name in host.packages)
    text = (
        f"Operations and time are of one sample in a batch of {costs.batch_size}, memory of the batch; in parentheses, "
        f"times the first row of that input. Times are medians of {calls} calls that took turns: {costs.clock} time on "
        f"{host.device}, {host.threads} thread{'s' * (host.threads > 1)}, {host.processor}, {versions}. A call was at "
        f"most {furthest:.0%} from its median. Operations are those of matrix products and convolutions, two a "
        "multiply-add; memory is that of tensors beside parameters and inputs. Training is a forward and a backward "
        "pass, without the optimiser."
    )
    return Paragraph(text, soft=True)


def curves(costs: Costs) -> str:
    """Draw the numbers by tokens: a colour a model, solid at test and dashed in training."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    titles = list(dict.fromkeys(row.title for row in costs.rows))
    tokens = sorted({row.tokens for row in costs.rows if row.tokens})
    with drawing((3.2 * len(NUMBERS), 3.0)) as (figure, buffer):
        for axis, (name, (value, unit)) in zip(figure.subplots(1, len(NUMBERS)), NUMBERS.items(), strict=True):
            for number, title in enumerate(titles):
                same_title = [row for row in costs.rows if row.title == title]
                for when, style in (("test", "-"), ("training", "--")):
                    values = [value(getattr(row, when), costs.batch_size) for row in same_title]
                    axis.plot(
                        [row.tokens for row in same_title],
                        values,
                        style,
                        color=f"C{number}",
                        marker="o",
                        markersize=2.5,
                        label=f"{title}, {when}",
                    )
            axis.set(xscale="log", yscale="log", xlabel="tokens", title=name)
            axis.set_xticks(tokens, [f"{number:,}" for number in tokens])
            axis.yaxis.set_major_formatter(FuncFormatter(lambda number, _, unit=unit: f"{spelled(number)}{unit}"))
            for part in (axis.xaxis, axis.yaxis):
                part.set_minor_formatter(NullFormatter())
        figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=2)
    return svg_of(buffer, "operations, time and memory by number of tokens")
