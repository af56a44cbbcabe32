"""What a pack needs: trainings, evaluations, diagnoses, costs; which are done, and why some cannot be had."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.passes import most_passes
from robustbench_kpca.data.io.reading import sub_folders
from robustbench_kpca.models.bundle import vocabulary_of
from robustbench_kpca.models.families import ARCHITECTURES, is_stochastic
from robustbench_kpca.models.source import other_words
from robustbench_kpca.protocols.scenario import Scenario
from robustbench_kpca.report.board_spec import Evaluation
from robustbench_kpca.study.diagnostics.diagnosis import load_diagnosis
from robustbench_kpca.study.diagnostics.epochs import load_trajectory
from robustbench_kpca.study.diagnostics.saritas2025 import IMAGES
from robustbench_kpca.study.reproduction.efficiency import Measure, step_of
from robustbench_kpca.study.reproduction.pack import Claims, Efficiency, Epochs, Item, Open, Table
from robustbench_kpca.study.reproduction.roles import Model, Roles, Training
from robustbench_kpca.study.reproduction.tables import board_or_trouble, models_of
from robustbench_kpca.training.recipe import Recipe

_CLASSES, _WHOLE = 10, 10_000  # of a data set that is not loaded to sort steps
_BEST = ("done", "failed", "open", "absent")
LITERALLY = "-as-the-study"
"""End of the name of a diagnosis that was made as the reproduction study makes it."""


@dataclass(frozen=True)
class Train:
    """Train one model."""

    model: Model
    training: Training

    def __str__(self) -> str:
        return f"train {self.training.name}"


@dataclass(frozen=True)
class Evaluate:
    """Evaluate one model under one protocol, which is `scenario`, called `label`, on one set of samples."""

    model: Model
    evaluation: Evaluation
    label: str = field(compare=False)
    scenario: Scenario = field(compare=False)

    def __str__(self) -> str:
        wanted = self.evaluation
        return f"evaluate {self.model.name} under {self.label} on {wanted.recorded_data[0]} ({wanted.split})"


@dataclass(frozen=True)
class Diagnose:
    """Test claims on one model, or make measurements as the study does; the diagnosis is written to `folder`."""

    model: Model
    folder: Path
    data: str
    splits: tuple[str]
    images: int
    claims: tuple[str, ...]
    literal: bool

    @property
    def name(self) -> str:
        """The name of the diagnosis."""
        return f"{self.model.name}{LITERALLY if self.literal else ''}"

    def __str__(self) -> str:
        return f"diagnose {self.name}: {', '.join(self.claims)}"


@dataclass(frozen=True)
class Follow:
    """Measure the projection loss over the epochs of one training; the numbers are written to `folder`."""

    model: Model
    folder: Path
    data: str
    splits: tuple[str, ...]
    images: int

    def __str__(self) -> str:
        return f"follow {self.model.name} over its epochs"


Step = Train | Evaluate | Diagnose | Follow | Measure


@dataclass(frozen=True)
class Planned:
    """A step with the items that need it. `state`: `done`, `open`, or `absent` or `failed` for the reason `why`.

    `turn`: the smallest of its items; `place`: of its arm among all arms, in the order of the items. `ended`: a
    training that is done, or of which something is left (curves, results), and which is open since its weights are not
    here and other steps need them.
    """

    step: Step
    items: tuple[str, ...]
    state: str
    why: str = ""
    turn: int = 0
    place: int = 0
    ended: bool = False

    @property
    def made(self) -> bool:
        """Whether there is something to show of it: it is done, or a training that ended."""
        return self.state == "done" or self.ended


def plan(items: Mapping[str, Item], roles: Roles) -> list[Planned]:
    """Return every step once: of the first seed of every arm before the second; trainings before what needs them."""
    merged: dict[Step, Planned] = {}
    arms = (arm for item in items.values() if not isinstance(item, Open) for arm in item.arms)
    places = {arm: place for place, arm in enumerate(dict.fromkeys(arms))}
    for name, item in items.items():
        for planned in _steps(name, item, roles):
            earlier = merged.get(planned.step)
            turn, place = getattr(item, "turn", 0), places[planned.step.model.arm]
            if earlier is None:
                merged[planned.step] = replace(planned, turn=turn, place=place)
                continue
            best = min(earlier, planned, key=lambda either: _BEST.index(either.state))
            merged[planned.step] = replace(
                earlier, items=(*earlier.items, name), turn=min(earlier.turn, turn), state=best.state, why=best.why
            )
    rest = [planned for planned in merged.values() if not isinstance(planned.step, Train)]
    finished, needed = (
        {planned.step.model.name for planned in rest if planned.state == state} for state in ("done", "open")
    )
    steps = [
        _ended(planned, needed=planned.step.model.name in needed)
        if isinstance(planned.step, Train) and (planned.ended or planned.step.model.name in finished)
        else planned
        for planned in merged.values()
    ]
    return sorted(steps, key=lambda planned: (planned.step.model.order, not isinstance(planned.step, Train)))


def _ended(planned: Planned, *, needed: bool) -> Planned:
    """Return the step of a training that ended: done, unless its weights are not here and other steps need them."""
    if planned.state == "open" and needed:
        return replace(planned, why="to be trained again: its weights are not here, but needed", ended=True)
    return replace(planned, state="done", why="", ended=True)


def most_valuable_first(steps: Iterable[Planned]) -> list[Planned]:
    """Sort steps for a run that may end at any time.

    Whole rows before the next row: a training, then its evaluations, those of few passes first. The first seed of every
    row comes before the second of any, rows in the order in which items name them, and items of a later `turn` last.
    """
    return sorted(
        steps,
        key=lambda p: (p.turn, p.step.model.order, p.place, not isinstance(p.step, Train), passes(p.step)),
    )


def passes(step: Step) -> float:
    """Return about how many passes an evaluation takes at most: enough to sort them; 0 for other steps."""
    if not isinstance(step, Evaluate):
        return 0.0
    most = most_passes(step.scenario, _CLASSES)
    per_sample = math.inf if most is None else most.forwards + most.backwards
    return per_sample * (step.evaluation.limit or _WHOLE)


def _steps(name: str, item: Item, roles: Roles) -> Iterable[Planned]:
    """Yield the steps of one item. A step whose training is absent is absent for the same reason."""
    if isinstance(item, Open):
        return
    if isinstance(item, Efficiency):
        costs = step_of(name, item, roles)
        yield _planned(name, costs, "", done=costs.done())
        return
    models = models_of(item, roles)
    why_not: dict[str, str] = {}
    for model in models:
        why_not[model.name] = model.why_not
        if model.training is not None:
            planned = _training(name, model, model.training, roles)
            why_not[model.name] = planned.why
            yield planned
    if isinstance(item, Table):
        by_name = {model.name: model for model in models}
        board, trouble = board_or_trouble(name, item, roles)
        protocols = {evaluation: evaluation.resolve() for evaluation in board.spec.evaluations}
        for run in board.runs:
            step = Evaluate(by_name[run.model], run.evaluation, *protocols[run.evaluation])
            needed: list[tuple[str, str | None]] = [(run.evaluation.data, run.evaluation.split)]
            needed += [] if run.evaluation.against is None else [(run.evaluation.against, None)]
            yield _planned(
                name,
                step,
                trouble or why_not[run.model] or _noisy(step) or _unreadable(needed, roles) or _unread(step, roles),
                done=run.state == "ready",
            )
    elif isinstance(item, Claims | Epochs):
        for model in models:
            for work in _diagnoses(name, item, model, roles):
                data = [(work.data, split) for split in work.splits]
                why = why_not[model.name] or _unfollowed(work) or _unreadable(data, roles)
                yield _planned(name, work, why, done=_is_done(work, roles))


def _noisy(step: Evaluate) -> str:
    """Return why a model that draws noise has no number under a protocol of one pass; empty for all others."""
    model = step.model.request.model
    noisy = model in ARCHITECTURES and is_stochastic(model) and step.scenario.draws == 1
    return "the model draws noise at test time, and the protocol averages over no draws: draws = 1" if noisy else ""


def _unread(step: Evaluate, roles: Roles) -> str:
    """Return why weights at hand cannot read the words of a text; empty if they can, and for all other data."""
    data, checkpoint = roles.load(step.evaluation.data, step.evaluation.split), step.model.request.checkpoint
    if isinstance(data, str) or data.vocabulary_sha256 is None or checkpoint is None:
        return ""
    error = other_words(vocabulary_of(checkpoint), data.vocabulary_sha256, data.name)
    return "" if error is None else f"{step.model.name}: {error}"


def _training(name: str, model: Model, training: Training, roles: Roles) -> Planned:
    done, ended, recipe = training.weights.is_file(), training.ended(), training.content
    why = model.why_not
    if not why and training.data and training.data not in roles.folders:
        why = f"no folder: --data {training.data}:DIR"
    elif not why and not done:
        why = _untrainable(training, recipe, roles)
    return replace(_planned(name, Train(model, training), why, done=done), ended=ended)


def _untrainable(training: Training, recipe: Recipe, roles: Roles) -> str:
    """Return why a training cannot read its data, as it would say itself when it begins; empty if it can."""
    if not training.data or recipe.images is None:
        parts = ("train", "val") if training.data else ("train",)
        return _unreadable([(training.data or recipe.data, part) for part in parts], roles)
    folder = roles.folders[training.data]
    if (folder / "train.tar").is_file():
        return ""
    train, val = ({*sub_folders(folder / part)} if (folder / part).is_dir() else set() for part in ("train", "val"))
    if not train or not val:
        return f"{folder} has no class folders in train and val"
    odd = sorted(train ^ val)
    return f"train and val of {folder} have different classes: {odd[0]} is in one of them only" if odd else ""


def _diagnoses(name: str, item: Claims | Epochs, model: Model, roles: Roles) -> list[Diagnose | Follow]:
    samples, folder = roles.samples(item.samples), roles.out / name
    images = min(item.images, roles.limit or item.images)
    if isinstance(item, Epochs):
        splits = samples.followed or item.splits
        return [Follow(model, folder / model.name, samples.data, splits, images)] if model.order == 0 else []
    images = roles.at_most(images, samples.data, samples.split)
    corrected = Diagnose(
        model, folder / model.name, samples.data, (samples.split,), images=images, claims=item.claims, literal=False
    )
    twin = replace(corrected, folder=folder / f"{model.name}{LITERALLY}", claims=item.literal, literal=True)
    return [corrected, twin] if item.literal else [corrected]


def _unfollowed(step: Diagnose | Follow) -> str:
    """Return why a training cannot be followed over its epochs, if its weights alone were given."""
    weights_only = isinstance(step, Follow) and step.model.training is None
    return "its training is not here, only its weights" if weights_only else ""


def _is_done(step: Diagnose | Follow, roles: Roles) -> bool:
    """Whether the folder of a step holds the result of the step.

    That is: a diagnosis of the same claims on as many images, of the weights at hand where there are some; or a
    trajectory over the same splits with as many images, of which the weights are not compared.
    """
    try:
        if isinstance(step, Diagnose):
            diagnosis = load_diagnosis(step.folder)
            most = {name: IMAGES.get(name, step.images) if step.literal else step.images for name in step.claims}
            images = {name: min(number, step.images) for name, number in most.items()}
            same_weights = roles.digest(step.model) in (None, diagnosis.model.parameters_sha256)
            return same_weights and (diagnosis.model.name, diagnosis.protocol.images_of) == (step.name, images)
        courses = load_trajectory(step.folder).courses
        wanted = [(split, roles.at_most(step.images, step.data, split)) for split in step.splits]
        return [(course.data.split, course.data.n) for course in courses] == wanted
    except BadInputError:
        return False


def _planned(name: str, step: Step, why: str, *, done: bool) -> Planned:
    state = "done" if done else "absent" if why else "open"
    return Planned(step, (name,), state, "" if done else why)


def _unreadable(wanted: Iterable[tuple[str, str | None]], roles: Roles) -> str:
    """Return why a data set cannot be loaded; empty if all can."""
    loaded = (roles.load(data, split) for data, split in wanted)
    return next((why_not for why_not in loaded if isinstance(why_not, str)), "")
