"""What the names in a pack stand for in one run: models, samples and protocols, and why some are not at hand."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from robustbench_kpca._core.files import from_here, name_with_seed
from robustbench_kpca.data.base import Dataset
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.models.bundle import bundled
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.curves import epochs_in
from robustbench_kpca.study.reproduction.pack import Arm, Pack, Samples, Scale, ScaleName
from robustbench_kpca.study.reproduction.reader import Reader
from robustbench_kpca.training.ledger import resume_file
from robustbench_kpca.training.recipe import load_recipe
from robustbench_kpca.training.spent import Spent, read_spent

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
    """One training of a recipe; `settings` replace fields of the recipe, also the seed. For the rest see `Arm`."""

    name: str
    recipe: str
    settings: Mapping[str, Any] = field(compare=False)
    keep_every: int
    data: str


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


@dataclass(frozen=True)
class Roles:
    """The names of a pack at one scale.

    Attributes:
        scale: `embedded` or `paper`. What the embedded scale does not name is taken
            from the paper's, and run only where its recipe learns from data of this scale.
        out: folder of the results.
        folders: data set -> folder.
        checkpoints: model -> file of weights.
        limit: in place of every number of samples, where it is smaller.
        called: what a command calls the pack, where that is not its name; see `report.matching.name_of`.
        metrics: metrics that are computed again from the outcomes of every record; None: all.
        reader: reader of records, data sets and weights.
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
    reader: Reader = field(default_factory=Reader, compare=False)

    def weights(self, training: Training) -> Path:
        """Return the file of a training's weights, which may also be put there by hand."""
        return self.out / "trainings" / training.name / f"{training.name}.safetensors"

    def ended(self, training: Training) -> bool:
        """Tell whether a training ended: its weights are there, or its curves have all epochs and no state is left."""
        weights = self.weights(training)
        if weights.is_file():
            return True
        epochs = load_recipe(training.recipe, dict(training.settings))[1].epochs
        return not resume_file(weights).is_file() and epochs_in(weights) == epochs

    def digest(self, model: Model) -> str | None:
        """Return the digest of the weights at hand, as records have it; None where there is no file of them."""
        return self.reader.digest(model.request)

    def records(self) -> list[Record]:
        """Return the records of this run that are there; a folder may hold none yet."""
        return self.reader.records(self.out / "records", self.metrics)

    def spent(self, training: Training) -> Spent | None:
        """Return the time that a training took so far; None where it is not written."""
        return read_spent(self.weights(training))

    def seconds_per_epoch(self, training: Training, place: tuple[str, str]) -> float | None:
        """Return the mean seconds of an epoch over the trainings of this recipe that were timed at one place.

        None where there are none. `place`: device and processor, as `environment.place` names them.
        """
        seeds = (model.training for arm in self._arms_of(training) for model in self.models(arm))
        spent = (self.spent(seed) for seed in seeds if seed is not None)
        timed = [run for run in spent if run is not None and run.epochs and run.place == place]
        epochs = sum(run.epochs for run in timed)
        return sum(run.seconds for run in timed) / epochs if epochs else None

    def _arms_of(self, training: Training) -> list[str]:
        """Return the arms whose trainings are of the same recipe with the same settings, but for the seed."""
        named = {key: value for key, value in training.settings.items() if key not in ("seed", "data")}
        return [role for role, arm in self.arms.items() if arm.recipe == training.recipe and dict(arm.set) == named]

    @property
    def command(self) -> str:
        """Return the command that goes on with this run, folders of data aside.

        A folder of results that is not below the current one is named by its end only, as `file_at_hand` does.
        """
        limit = "" if self.limit is None else f" --limit {self.limit}"
        out = self._short(self.out)
        where = "" if out == default_folder(self.name, self.limit) else f" -o {shlex.quote(str(out))}"
        return f"rbk reproduce {self.called or self.name} --scale {self.scale}{limit}{where}"

    def file_at_hand(self, model: Model) -> str | None:
        """Return the file of a training's weights, as a command names it; None where it is not there."""
        if model.training is None or not self.weights(model.training).is_file():
            return None
        return str(self._short(self.out) / self.weights(model.training).relative_to(self.out))

    @staticmethod
    def _short(folder: Path) -> Path:
        """Return a folder as pages name it: the end of one that is elsewhere, since pages are shown elsewhere, too."""
        short = from_here(folder)
        return Path(short.name) if short.is_absolute() else short

    @property
    def intro(self) -> str:
        """Return what the pack says about this scale."""
        return self._chosen.intro.strip()

    @property
    def _chosen(self) -> Scale:
        return self.pack.embedded if self.scale == "embedded" else self.pack.paper

    @property
    def arms(self) -> dict[str, Arm]:
        """Return every arm of the pack, as this scale has it where it does."""
        return {**self.pack.paper.arms, **self._chosen.arms}

    def samples(self, role: str) -> Samples:
        """Return the samples of a role; a limit that is not below their number is none."""
        chosen = self._chosen.samples.get(role) or self.pack.paper.samples[role]
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

    def protocols(self, names: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """Return the protocol that a name stands for, or those of several names."""
        chosen = self._chosen.protocols
        return chosen.get(names, names) if isinstance(names, str) else tuple(chosen.get(name, name) for name in names)

    @property
    def reference(self) -> str | None:
        """Return the arm whose errors corruption errors are divided by; None: AlexNet's."""
        return self._chosen.reference

    def title(self, role: str) -> str:
        """Return the title of an arm."""
        return self._arm(role)[0].title

    def models(self, role: str) -> list[Model]:
        """Return the models of an arm."""
        return self._models[role]

    @cached_property
    def _models(self) -> dict[str, list[Model]]:
        return {role: self._models_of(role) for role in self.arms}

    def _models_of(self, role: str) -> list[Model]:
        arm, why_not = self._arm(role)
        if arm.models:
            return [self._existing(role, name, order, why_not) for order, name in enumerate(arm.models)]
        return [self._trained(role, arm, seed, order, why_not) for order, seed in enumerate(arm.seeds)]

    @property
    def names(self) -> set[str]:
        """Return the names of the models of all arms, as `checkpoints` has them."""
        named_models = ((arm.models, self.models(role)) for role, arm in self.arms.items())
        return {name for named, models in named_models for name in named or [model.name for model in models]}

    def source(self, data: str) -> str:
        """Return the argument of `load_data` for a data set: with its folder, where one was given."""
        return f"{data}:{self.folders[data]}" if data in self.folders else data

    def load(self, data: str, split: str | None) -> Dataset | str:
        """Return a data set, or the reason why it cannot be loaded."""
        if self.scale == "embedded" and data not in self._data:
            return NO_STAND_IN
        return self.reader.data(self.source(data), split)

    @property
    def _data(self) -> set[str]:
        return {samples.data for samples in self._chosen.samples.values()}

    def _arm(self, role: str) -> tuple[Arm, str]:
        """Return an arm, and why it is not run. The paper's is run at this scale if it learns from data of it."""
        arm = self._chosen.arms.get(role)
        if arm is not None:
            return arm, ""
        arm = self.pack.paper.arms[role]
        return arm, "" if arm.recipe and load_recipe(arm.recipe)[1].data in self._data else NO_STAND_IN

    def _existing(self, role: str, name: str, order: int, why_not: str) -> Model:
        file = self.checkpoints.get(name)
        request = ModelRequest(name, None if file is None else str(file))
        if file is None and name not in bundled() and not why_not:
            why_not = f"no weights: --checkpoint {name}=FILE"
        return Model(
            role,
            request.label if file is None else _plain(name),
            order,
            None,
            request=_named(request, name),
            why_not=why_not,
        )

    def _trained(self, role: str, arm: Arm, seed: int, order: int, why_not: str) -> Model:
        changed = "".join(f"-{key}{value}" for key, value in sorted(arm.set.items()))
        name = _plain(name_with_seed(f"{arm.recipe}{changed}", seed))
        recipe = load_recipe(arm.recipe, dict(arm.set))[1]
        settings = {**arm.set, "seed": seed} | (
            {"data": self.source(recipe.data)} if recipe.data in self.folders else {}
        )
        training = Training(name, arm.recipe, settings, arm.keep_every, arm.data)
        file = self.checkpoints.get(name, self.weights(training))
        request = ModelRequest(recipe.model, str(file), name=name, options=recipe.model_options)
        return Model(
            role,
            name,
            order,
            None if name in self.checkpoints else training,
            request=request,
            why_not=why_not,
            seed=seed,
        )


def _named(request: ModelRequest, name: str) -> ModelRequest:
    return request if request.checkpoint is None else ModelRequest(name, request.checkpoint, name=_plain(name))


def _plain(name: str) -> str:
    return name.replace(":", "-").replace("/", "-")
