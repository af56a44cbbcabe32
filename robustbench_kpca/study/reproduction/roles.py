"""What the names in a pack stand for in one run: models, samples and protocols, and why some are not at hand."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from robustbench_kpca._core.files import from_here, name_with_seed
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
from robustbench_kpca.models.bundle import bundled
from robustbench_kpca.models.sources import source_of
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.board_spec import Evaluation
from robustbench_kpca.report.curves import epochs_in
from robustbench_kpca.study.reproduction.pack import Arm, Pack, Samples, ScaleName
from robustbench_kpca.study.reproduction.reader import Reader
from robustbench_kpca.training.ledger import resume_file
from robustbench_kpca.training.recipe import Recipe, load_recipe

NO_STAND_IN = "nothing in the package stands for it"


def default_folder(pack: str, limit: int | None) -> Path:
    """Return where the results of a pack belong; those on few samples are kept apart from those on all."""
    return Path("reproduced") / (pack if limit is None else f"{pack}-limit{limit}")


def data_of(pack: Pack) -> set[str]:
    """Return the names of all data sets that a pack can use: those of its samples, and those of its trainings."""
    scales = (pack.embedded, pack.paper)
    samples = {chosen.data for scale in scales for chosen in scale.samples.values()}
    arms = [arm for scale in scales for arm in scale.arms.values() if arm.recipe]
    return samples | {arm.data or load_recipe(arm.recipe, dict(arm.set))[1].data for arm in arms}


@dataclass(frozen=True)
class Training:
    """One training of a recipe.

    Attributes:
        settings: replace fields of the recipe, also the seed.
        keep_every, data: as in `Arm`.
        weights: the file of its weights, which may also be put there by hand.
    """

    name: str
    recipe: str
    settings: Mapping[str, Any] = field(compare=False)
    keep_every: int
    data: str
    weights: Path

    @cached_property
    def content(self) -> Recipe:
        """The recipe with its settings."""
        return load_recipe(self.recipe, self.settings)[1]

    def epochs_done(self) -> int:
        """Return how many epochs are finished, as the curves say; 0 where the training cannot go on after them."""
        begun = self.weights.is_file() or resume_file(self.weights).is_file()
        return epochs_in(self.weights) if begun else 0

    def ended(self) -> bool:
        """Tell whether it ended: its weights are there, or its curves have all epochs and no state is left."""
        if self.weights.is_file():
            return True
        return not resume_file(self.weights).is_file() and epochs_in(self.weights) == self.content.epochs


@dataclass(frozen=True)
class Model:
    """One model of an arm, and why it cannot be had, if so.

    `order` is its place in the arm: 0 for the first seed. `seed` is that of its training; None: of a finished model.
    """

    arm: str
    name: str
    order: int
    training: Training | None
    request: ModelRequest = field(compare=False)
    why_not: str = ""
    seed: int | None = None


@dataclass(eq=False)
class Roles:
    """What the names of a pack stand for at one scale, in one folder of results.

    Attributes:
        scale: `embedded` or `paper`. What the embedded scale does not name is taken
            from the paper's, and run only where its recipe learns from data of this scale.
        out: folder of the results.
        folders: data set -> folder.
        checkpoints: model -> file of weights.
        limit: in place of every number of samples, where it is smaller.
        called: what a command calls the pack, where that is not its name; see `report.matching.name_of`.
        metrics: metrics that are computed again from the outcomes of every record; None: all.
        chosen: what the pack says at this scale.
        arms: every arm of the pack, as this scale has it where it does.
    """

    name: str
    pack: Pack
    scale: ScaleName
    out: Path
    folders: Mapping[str, Path] = field(default_factory=dict)
    checkpoints: Mapping[str, Path] = field(default_factory=dict)
    limit: int | None = None
    called: str = ""
    metrics: frozenset[str] | None = None

    def __post_init__(self) -> None:
        self.chosen = self.pack.embedded if self.scale == "embedded" else self.pack.paper
        self.arms = {**self.pack.paper.arms, **self.chosen.arms}
        self._data = {samples.data for samples in self.chosen.samples.values()}
        self._reader = Reader()

    @cached_property
    def models(self) -> dict[str, list[Model]]:
        """The models of every arm."""
        return {role: list(self._models_of(role, arm)) for role, arm in self.arms.items()}

    def _models_of(self, role: str, arm: Arm) -> Iterator[Model]:
        why_not = self._why_not(role, arm)
        for order, name in enumerate(arm.models):
            file = self.checkpoints.get(name)
            request = ModelRequest(name) if file is None else ModelRequest(name, str(file), name=_plain(name))
            has_weights = name in bundled() or (":" in name and not source_of(name)[0])  # a factory brings its weights
            missing = "" if file or has_weights else f"no weights: --checkpoint {name}=FILE"
            yield Model(role, request.label, order, None, request, why_not=why_not or missing)
        if not arm.recipe:
            return
        recipe = load_recipe(arm.recipe, dict(arm.set))[1]
        for order, seed in enumerate(arm.seeds):
            training = self._training(arm, recipe.data, seed)
            name, file = training.name, self.checkpoints.get(training.name)
            request = ModelRequest(recipe.model, str(file or training.weights), name=name, options=recipe.model_options)
            yield Model(role, name, order, None if file else training, request, why_not=why_not, seed=seed)

    def _why_not(self, role: str, arm: Arm) -> str:
        """Return why an arm is not run; one of the paper's is run here if it learns from data of this scale."""
        at_hand = role in self.chosen.arms or (arm.recipe and load_recipe(arm.recipe)[1].data in self._data)
        return "" if at_hand else NO_STAND_IN

    def _training(self, arm: Arm, data: str, seed: int) -> Training:
        changed = "".join(f"-{key}{value}" for key, value in sorted(arm.set.items()))
        name = _plain(name_with_seed(f"{arm.recipe}{changed}", seed))
        read = data in self.folders and not arm.data  # the training is given the folder of `arm.data` itself
        settings = {**arm.set, "seed": seed} | ({"data": self.source(data)} if read else {})
        weights = self.out / "trainings" / name / f"{name}.safetensors"
        return Training(name, arm.recipe, settings, arm.keep_every, arm.data, weights=weights)

    @property
    def names(self) -> set[str]:
        """The names of the models of all arms, as `checkpoints` has them."""
        return {
            name
            for role, arm in self.arms.items()
            for name in arm.models or [model.name for model in self.models[role]]
        }

    def protocols(self, names: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """Return the protocol that a name stands for, or those of several names."""
        chosen = self.chosen.protocols
        return chosen.get(names, names) if isinstance(names, str) else tuple(chosen.get(name, name) for name in names)

    def samples(self, role: str) -> Samples:
        """Return the samples of a role; a limit that is not below their number is none."""
        chosen = self.chosen.samples.get(role) or self.pack.paper.samples[role]
        limit = min((most for most in (chosen.limit, self.limit) if most is not None), default=None)
        size = None if limit is None else self.size(chosen.data, chosen.split)
        whole = limit is not None and size is not None and limit >= size
        return chosen.model_copy(update={"limit": None if whole else limit})

    def at_most(self, number: int, data: str, split: str) -> int:
        """Return `number`, or the number of samples of a set where that is smaller."""
        size = self.size(data, split)
        return number if size is None else min(number, size)

    def size(self, data: str, split: str) -> int | None:
        """Return the number of samples of a set; None where it cannot be loaded."""
        loaded = self.load(data, split)
        return None if isinstance(loaded, str) else len(loaded)

    def load(self, data: str, split: str | None) -> Dataset | str:
        """Return a data set, or the reason why it cannot be loaded."""
        if self.scale == "embedded" and data not in self._data:
            return NO_STAND_IN
        return self._reader.data(self.source(data), split)

    @property
    def remarks(self) -> list[tuple[str, str]]:
        """What is to be said of the data that were loaded, such as how many images are missing."""
        return self._reader.remarks()

    def source(self, data: str) -> str:
        """Return the argument of `load_data` for a data set: with its folder, where one was given."""
        return f"{data}:{self.folders[data]}" if data in self.folders else data

    def data_request(self, evaluation: Evaluation) -> DataRequest:
        """Return the samples of an evaluation, with the folders that were given."""
        against = None if evaluation.against is None else self.source(evaluation.against)
        return DataRequest(self.source(evaluation.data), evaluation.split, evaluation.limit, against)

    def records(self) -> list[Record]:
        """Return the records of this run that are there; a folder may hold none yet."""
        return self._reader.records(self.out / "records", self.metrics)

    def digest(self, model: Model) -> str | None:
        """Return the digest of the weights at hand, as records have it; None where there is no file of them."""
        return self._reader.digest(model.request)

    @property
    def command(self) -> str:
        """The command that goes on with this run, folders of data aside.

        A folder of results that is not below the current one is named by its end only, as `file_at_hand` does.
        """
        limit = "" if self.limit is None else f" --limit {self.limit}"
        out = _short(self.out)
        where = "" if out == default_folder(self.name, self.limit) else f" -o {shlex.quote(str(out))}"
        return f"rbk reproduce {self.called or self.name} --scale {self.scale}{limit}{where}"

    def file_at_hand(self, model: Model) -> str | None:
        """Return the file of a training's weights, as a command names it; None where it is not there."""
        if model.training is None or not model.training.weights.is_file():
            return None
        return str(_short(self.out) / model.training.weights.relative_to(self.out))


def _short(folder: Path) -> Path:
    """Return a folder as pages name it: the end of one that is elsewhere, since pages are shown elsewhere, too."""
    short = from_here(folder)
    return Path(short.name) if short.is_absolute() else short


def _plain(name: str) -> str:
    return name.replace(":", "-").replace("/", "-")
