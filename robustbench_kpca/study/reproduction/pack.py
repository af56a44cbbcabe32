"""What a pack says: `pack.toml` names what tables speak of, and each further TOML file is one table or figure.

The files of a pack use the names of arms (rows), samples and protocols. `pack.toml` says twice what they stand for: at
the scale of the paper, for whoever owns the data, and at the embedded scale, which runs on what the package contains.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, Field, model_validator

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import by_number
from robustbench_kpca._core.registry import unknown_name
from robustbench_kpca._core.strict import STRICT, load_toml, validate
from robustbench_kpca.protocols.presets import pack_path
from robustbench_kpca.protocols.scenario import Scalar
from robustbench_kpca.report.board_spec import AtLeastOne
from robustbench_kpca.report.lead import CORRECTED, LITERAL
from robustbench_kpca.report.question import Question

PACK, STATEMENTS = "pack.toml", "statements.toml"
ScaleName = Literal["embedded", "paper"]
Seed = Annotated[int, Field(ge=0)]


class Samples(BaseModel):
    """A set of samples: `limit` of them, spread over the split, or all.

    `followed`: the splits on which a training is followed over its epochs, where not all of the item's can be loaded.
    """

    model_config = STRICT
    data: str
    split: str
    limit: AtLeastOne | None = None
    followed: tuple[str, ...] = ()


class Arm(BaseModel):
    """One row of a paper's tables: models that exist, or trainings of a recipe, one for each seed.

    `set` replaces fields of the recipe. `keep_every` keeps the weights of every so many epochs. `data` is the data set
    whose folder the recipe reads, for recipes that read files.
    """

    model_config = STRICT
    title: str
    models: tuple[str, ...] = ()
    recipe: str = ""
    seeds: tuple[Seed, ...] = ()
    set: dict[str, Scalar] = {}
    keep_every: Annotated[int, Field(ge=0)] = 0
    data: str = ""

    @model_validator(mode="after")
    def _check(self) -> "Arm":
        if bool(self.models) == bool(self.recipe) or bool(self.recipe) != bool(self.seeds):
            raise ValueError("an arm has either `models`, or a `recipe` with `seeds`")
        return self


class Scale(BaseModel):
    """What the names in a pack stand for. A protocol that is not listed stands for itself.

    `reference` is the arm whose errors corruption errors are divided by, in place of AlexNet's.
    """

    model_config = STRICT
    intro: str
    samples: dict[str, Samples] = {}
    arms: dict[str, Arm] = {}
    protocols: dict[str, str] = {}
    reference: str | None = None


class ItemColumn(BaseModel):
    """A column of a table: a metric under a protocol on samples, or in the worst case of several.

    `corrected` adds a twin under that protocol beside it; the titles of both then end in "literal" and "corrected".
    `against`: the samples of no known class; `reference`: the arm whose errors the metric divides by; `draws`: passes
    that are averaged, which a model that draws noise needs.
    """

    model_config = STRICT
    title: str
    samples: str
    protocol: str | Annotated[tuple[str, ...], Field(min_length=2)]
    metric: str
    corrected: str = ""
    eps: str | None = None
    draws: AtLeastOne | None = None
    corruption: str | None = None
    reference: str | None = None
    against: str | None = None

    @property
    def titles(self) -> tuple[str, ...]:
        """The titles on the page: one, or those of the literal column and of its corrected twin."""
        return (f"{self.title}{LITERAL}", f"{self.title}{CORRECTED}") if self.corrected else (self.title,)


class _Titled(BaseModel):
    """What every table or figure states."""

    model_config = STRICT
    title: str
    intro: str


class _OfArms(_Titled):
    """One that can be made: its rows or curves are arms."""

    arms: Annotated[tuple[str, ...], Field(min_length=1)]


class Table(_OfArms):
    """A table, or a figure of curves over eps: rows are arms. Sorted by the column `rank_by`.

    `question`: asked of arms, and answered on the page. `turn`: under a budget, all steps of a smaller number come
    first. `seeds`: the seeds whose trainings it has, where a table of all would be too dear.
    """

    kind: Literal["table"]
    rank_by: str
    column: Annotated[tuple[ItemColumn, ...], Field(min_length=1)]
    question: tuple[Question, ...] = ()
    turn: Annotated[int, Field(ge=0)] = 0
    seeds: tuple[Seed, ...] = ()


class Claims(_OfArms):
    """Claims about attention, measured on some images of `samples`, for each arm.

    `literal`: measurements of the reproduction study, made as its programs make them, beside the claims.
    """

    kind: Literal["claims"]
    samples: str
    images: Annotated[int, Field(ge=1)]
    claims: Annotated[tuple[str, ...], Field(min_length=1)]
    literal: tuple[str, ...] = ()


class Curves(_OfArms):
    """Curves of training: one line per training of each arm."""

    kind: Literal["curves"]


class Epochs(_OfArms):
    """The projection loss over the epochs of the first training of each arm, which must keep its weights."""

    kind: Literal["epochs"]
    samples: str
    splits: Annotated[tuple[str, ...], Field(min_length=1)]
    images: Annotated[int, Field(ge=1)]


class Cost(_OfArms):
    """Parameters, time of training, and passes and time of all evaluations: one row an arm."""

    kind: Literal["cost"]


class Efficiency(_OfArms):
    """Operations, time and memory of networks, and their parameters: one row an arm, as the paper's scale has it.

    Weights and inputs are random, `batch_size` at once; times are medians of `repeats`. `tokens`: of the attention
    alone, one row for each of these numbers of tokens.
    """

    kind: Literal["efficiency"]
    batch_size: Annotated[int, Field(ge=1)] = 8
    repeats: Annotated[int, Field(ge=1)] = 5
    tokens: tuple[Annotated[int, Field(ge=2)], ...] = ()


class Open(_Titled):
    """A table or figure that cannot be made, and why."""

    kind: Literal["open"]
    reason: str


Item = Table | Claims | Curves | Epochs | Cost | Efficiency | Open
_KINDS: dict[str, type[Item]] = {kind.__name__.lower(): kind for kind in get_args(Item)}


class Pack(BaseModel):
    """One paper, or a plan of one's own.

    `source`: authors, year and where to find it. `families`: how many comparisons each family of questions has.
    """

    model_config = STRICT
    title: str
    source: str
    intro: str
    families: dict[str, Annotated[int, Field(ge=1)]] = {}
    embedded: Scale
    paper: Scale


def load_pack(name: str) -> tuple[str, Pack, dict[str, Item]]:
    """Read a pack: a name of `rbk list packs`, or a folder with a `pack.toml`. Return its name, itself and its items.

    Raises:
        BadInputError: no such pack, an invalid file, or an item that uses a name which `[paper]` does not explain.
    """
    folder = pack_path(name).parent
    pack = validate(Pack, load_toml(folder / PACK), f"pack {folder / PACK}")
    files = [path for path in sorted(folder.glob("*.toml"), key=by_number) if path.name not in (PACK, STATEMENTS)]
    items = {path.stem: _item(path, pack) for path in files}
    if not items:
        raise BadInputError(f"pack {folder} has no table or figure", expected="a TOML file for each of them")
    tables = [item for item in items.values() if isinstance(item, Table)]
    members = Counter(question.family for table in tables for question in table.question)
    for family, planned in pack.families.items():
        if members[family] > planned:
            met = f"{planned} comparisons in family '{family}', and {members[family]} questions of it"
            raise BadInputError(f"pack {folder}: {met}", expected="as many as its plan has, or fewer")
    return folder.name, pack, items


def _item(path: Path, pack: Pack) -> Item:
    where, content = f"pack {path}", load_toml(path)
    if content.get("kind") not in _KINDS:
        raise BadInputError(f"{where}: kind = {content.get('kind')!r}", expected=f"one of {', '.join(_KINDS)}")
    item = validate(_KINDS[content["kind"]], content, where)
    if isinstance(item, Open):
        return item
    _require(item.arms, pack.paper.arms, "arm", where)
    if isinstance(item, Table):
        used = [name for column in item.column for name in (column.samples, column.against) if name is not None]
        _require(used, pack.paper.samples, "samples", where)
        _require([column.reference for column in item.column if column.reference], item.arms, "arm", where)
        arms = [arm for question in item.question for arm in (question.subject, *question.others)]
        _require(arms, item.arms, "arm", where)
        titles = [title for column in item.column for title in column.titles]
        _require([item.rank_by, *(question.column for question in item.question)], titles, "column", where)
        _require(filter(None, (question.family for question in item.question)), pack.families, "family", where)
        _check_seeds(item, pack, where)
    elif not isinstance(item, Curves | Cost | Efficiency):
        _require([item.samples], pack.paper.samples, "samples", where)
    return item


def _check_seeds(table: Table, pack: Pack, where: str) -> None:
    for arm in table.arms:
        for scale in (pack.paper, pack.embedded):
            seeds = scale.arms[arm].seeds if arm in scale.arms else ()
            if seeds and table.seeds and not set(seeds) & set(table.seeds):
                wanted = ", ".join(map(str, table.seeds))
                raise BadInputError(
                    f"{where}: arm {arm!r} has no training of seeds = {wanted}",
                    expected=f"one of {', '.join(map(str, seeds))}",
                )


def _require(names: Iterable[str], accepted: Collection[str], what: str, where: str) -> None:
    for name in names:
        if name not in accepted:
            raise unknown_name(f"{what} (in {where})", name, accepted)
