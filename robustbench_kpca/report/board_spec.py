"""What a `board.toml` says: rows of models, and columns of metrics under protocols."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, StrictBool, model_validator

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import STRICT
from robustbench_kpca._core.web import href
from robustbench_kpca.data.known import PIECES
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.models.bundle import bundled, split_entry
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import Scenario
from robustbench_kpca.records.names import mistakable
from robustbench_kpca.records.proof import norm_of
from robustbench_kpca.report.question import Question

AtLeastOne = Annotated[int, Field(ge=1)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None


@dataclass(frozen=True)
class Evaluation:
    """A protocol and a set of samples: a record fills a cell only if it is of both.

    limit: the number of samples, spread over the split; None: any number.
    against: data whose samples have no known class, for out-of-distribution detection.
    eps: the budget of an attack, where it is not the protocol's own.
    digest: digest of the samples; None: any samples of that name, split and number.
    draws: passes that are averaged into every answer and gradient, where it is not the protocol's own number.
    """

    protocol: str
    data: str
    split: str
    limit: int | None = None
    against: str | None = None
    eps: str | None = None
    digest: str | None = None
    draws: int | None = None

    @property
    def overrides(self) -> dict[str, str | int]:
        """The fields of the protocol that are replaced."""
        eps: dict[str, str | int] = {} if self.eps is None else {"eps": self.eps}
        return eps if self.draws is None else eps | {"draws": self.draws}

    @property
    def replaced(self) -> str:
        """These fields as text, such as `eps = 1/255, draws = 10`; empty where there are none."""
        return ", ".join(f"{key} = {value}" for key, value in self.overrides.items())

    def resolve(self) -> tuple[str, Scenario]:
        """Load the protocol; return its label in records and itself."""
        return load_scenario(self.protocol, {**self.overrides})

    @property
    def samples(self) -> "tuple[str, str, int | None, str | None]":
        """The set of samples: data, split, limit and, if any, the data without a known class."""
        return self.data, self.split, self.limit, self.against

    @property
    def recorded_data(self) -> tuple[str, ...]:
        """The names that records can give the data: their source may be stated (a set) or left out (a folder)."""
        name, _, rest = self.data.partition(":")
        first, _, others = rest.partition(":")
        sizes, source = (first, others) if "=" in first else ("", rest)  # `pixels:side=8:cifar10`: side=8, cifar10
        end = "".join(f"-{size.replace('=', '')}" for size in sizes.split(",") if size)
        end += "" if self.against is None else f"-against-{self.against.partition(':')[0]}"
        names = [name, f"{name}-{source}"] if source else [name]
        return tuple(f"{stem}{kind}{end}" for stem in names for kind in ("", "-jpeg", "-excerpt"))


class Column(BaseModel):
    """One number of the table: a metric under a protocol, or in the worst case of several, sample by sample.

    title: names no attack, number of steps or budget that its protocols do not have.
    data, split, limit: the samples, where they are not those of the board.
    eps: the budget of an attack, where it is not the protocol's own, such as "2/255".
    draws: passes that are averaged, where it is not the protocol's own number; a model that draws noise needs several.
    corruption: only this corruption of the protocol's.
    reference: the model whose errors a corruption error is divided by, in place of AlexNet's where that is a choice.
    against: data whose samples have no known class, for out-of-distribution detection.
    imported: whether images that others found (`rbk board break`) count, too: the worst known case.
    certificate: a protocol of kind `certificate`: cells show [certified, attacked], between which the truth lies.
    digest: digest of the column's own samples, where `data`, `limit` or `against` is stated; see `BoardSpec`.
    """

    model_config = STRICT
    title: str
    protocol: str | Annotated[tuple[str, ...], Field(min_length=2)]
    metric: str
    data: str | None = None
    split: str | None = None
    limit: AtLeastOne | None = None
    eps: str | None = None
    draws: AtLeastOne | None = None
    corruption: str | None = None
    reference: str | None = None
    against: str | None = None
    imported: StrictBool = False
    certificate: str | None = None
    digest: Digest = None

    @model_validator(mode="after")
    def _check_fields(self) -> "Column":
        if self.digest is not None and not self.has_own_samples:
            raise BadInputError(
                f"column '{self.title}' has a digest, but the samples of the board",
                expected="a digest beside `data`, `limit` or `against`, or that of the board",
            )
        if self.certificate is not None and self.metric != "robust_accuracy":
            raise BadInputError(
                f"column '{self.title}': a certificate beside {self.metric}", expected="robust_accuracy"
            )
        if self.imported and self.metric != "robust_accuracy":
            raise BadInputError(f"column '{self.title}': imported images in {self.metric}", expected="robust_accuracy")
        if (self.data is None) != (self.split is None):
            raise BadInputError(
                f"column '{self.title}': data = {self.data!r} with split = {self.split!r}",
                expected="both, or none for those of the board",
            )
        return self

    @property
    def has_own_samples(self) -> bool:
        """Whether it states samples, in place of those of the board."""
        return not (self.data is None and self.limit is None and self.against is None)

    @property
    def proven(self) -> "Column | None":
        """The column of the certificate, on the same samples; None where there is none."""
        if self.certificate is None:
            return None
        changes = {"protocol": self.certificate, "metric": "certified_accuracy", "certificate": None, "draws": None}
        return self.model_copy(update=changes | {"imported": False})

    @property
    def proven_norm(self) -> str | None:
        """The norm of the certificate; None where there is none."""
        return None if self.certificate is None else str(getattr(load_scenario(self.certificate)[1], "norm", ""))

    @property
    def untested(self) -> str:
        """The few pictures from which the images without a known class are cut, in words; empty where there are none.

        Rows are not compared in such a column: a test over the pieces would say nothing of other pictures.
        """
        return PIECES.get((self.against or "").partition(":")[0], "")

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols needed."""
        return (self.protocol,) if isinstance(self.protocol, str) else self.protocol


class Row(BaseModel):
    """Several trainings of one recipe with different seeds; the row shows their mean.

    `seeds` are those of its models, in this order; by default 0, 1, …. Rows are compared on the seeds that they share.
    """

    model_config = STRICT
    title: str
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    seeds: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _check_seeds(self) -> "Row":
        if self.seeds and len(set(self.seeds)) != len(self.models):
            raise BadInputError(
                f"row '{self.title}': seeds = {list(self.seeds)} of {len(self.models)} models",
                expected="another seed for each model",
            )
        return self

    @property
    def by_seed(self) -> dict[int, str]:
        """The models by seed."""
        return dict(zip(self.seeds or range(len(self.models)), self.models, strict=True))


class Described(BaseModel):
    """What a board says about a model: how `rbk eval` loads it, and what its rows can be chosen by.

    Attributes:
        name: the model's name on the board and in its records.
        source: what `rbk eval --model` is given; by default the name.
        checkpoint: file of its weights, for `rbk eval --checkpoint`.
        options: options of the model, for `rbk eval --set model.KEY=VALUE`.
        attention: such as `RPC`.
        backbone: such as `ViT`.
        training: such as `PGD-7, 8/255`.
        adversarial: whether it was trained against attacks.
        paper: address of the paper: http(s), a path from the page, or `arXiv:NUMBER`.
        holes: titles of columns in which it is to have no number.
    """

    model_config = STRICT
    name: str
    source: str | None = None
    checkpoint: str | None = None
    options: dict[str, str | int | float | bool] = {}
    attention: str | None = None
    backbone: str | None = None
    training: str | None = None
    adversarial: bool | None = None
    paper: str | None = None
    holes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_bundled(self) -> "Described":
        if self.name in bundled() and (self.source not in (None, self.name) or self.checkpoint is not None):
            raise BadInputError(
                f"[[model]] {self.name} has another source or checkpoint",
                expected="the bundled weights of that name, or another name",
            )
        return self

    @model_validator(mode="after")
    def _check_paper(self) -> "Described":
        if self.paper is not None and not href(self.paper_address):
            raise BadInputError(
                f"paper = {self.paper!r} of model '{self.name}'",
                expected="an address that begins with https://, a path from the page, or arXiv:NUMBER",
            )
        return self

    @property
    def paper_address(self) -> str:
        """Where the paper is; empty if it is not said."""
        return (self.paper or "").replace("arXiv:", "https://arxiv.org/abs/")

    @property
    def needs_name(self) -> bool:
        """Whether a command must give the name, since records would have another one without it."""
        other = self.source not in (None, self.name) or self.checkpoint is not None or bool(self.options)
        return other or not {":", "/"}.isdisjoint(self.name)


class BoardSpec(BaseModel):
    """What `board.toml` says. Rows are sorted by the column titled `rank_by`, best first.

    `models` are rows of one model each. `data`, `split` and `limit` hold for columns that do not state their own.
    With a `limit`, every number is of so many images, spread over the split. With a `digest`, records of other samples
    fill no cell, whatever they call their data: it is the `digest` of the data in a record of `rbk eval`.
    `entries` is a folder, from that of the board: its folders with an `entry.toml` are rows, too (`report/entries.py`).
    """

    model_config = STRICT
    title: str
    intro: str
    data: str
    split: str
    seed: int
    limit: AtLeastOne | None = None
    digest: Digest = None
    entries: str | None = None
    models: tuple[str, ...] = ()
    row: tuple[Row, ...] = ()
    model: tuple[Described, ...] = ()
    rank_by: str
    column: Annotated[tuple[Column, ...], Field(min_length=1)]
    question: tuple[Question, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> "BoardSpec":
        titles = [column.title for column in self.column]
        if self.rank_by not in titles:
            raise BadInputError(f"rank_by = '{self.rank_by}'", expected=f"one of {', '.join(titles)}")
        if not self.rows and self.entries is None:
            raise BadInputError("a board without rows", expected='models = ["NAME", …], or tables [[row]]')
        for what, names in (
            ("models", list(self.all_models)),
            ("row titles", [row.title for row in self.rows]),
            ("column titles", titles),
            ("tables [[model]]", [model.name for model in self.model]),
        ):
            if len(set(names)) != len(names):
                raise BadInputError(f"{what} {names} repeat themselves", expected="each once")
        for name in (*self.all_models, *(row.title for row in self.rows)):
            if why := mistakable(name):
                raise BadInputError(f"a model or row {why}", expected="a name that cannot be mistaken for another")
        if unknown := {model.name for model in self.model} - set(self.all_models):
            raise BadInputError(
                f"[[model]] tables of {', '.join(sorted(unknown))}", expected="a model of the board each"
            )
        self._check_questions()
        for column in self.column:
            metric_for(column.metric)
            if column.reference is not None and column.reference not in self.all_models:
                raise BadInputError(
                    f"reference = '{column.reference}'", expected=f"one of {', '.join(self.all_models)}"
                )
        return self

    def _check_questions(self) -> None:
        rows = [row.title for row in self.rows]
        columns = [column.title for column in self.column if not column.untested]
        for question in self.question:
            for title in (question.subject, *question.others):
                if title not in rows:
                    raise BadInputError(f"question about '{title}'", expected=f"one of {', '.join(rows)}")
            if question.column not in columns:
                raise BadInputError(
                    f"question about '{question.column}'",
                    expected=f"a column in which rows are compared: {', '.join(columns) or 'there is none'}",
                )

    def located(self, folder: Path) -> "BoardSpec":
        """Return this with the files that lie beside `board.toml` named from the current folder.

        These are protocols (`mine.toml`) and checkpoints that are not found from the current folder.
        """

        def beside_board(name: str) -> str:
            file, _ = split_entry(name)
            return str(folder / name) if not Path(file).is_file() and (folder / file).is_file() else name

        columns = []
        for column in self.column:
            names = tuple(beside_board(name) if name.endswith(".toml") else name for name in column.protocols)
            changes = {"protocol": names if len(names) > 1 else names[0]}
            if column.certificate is not None and column.certificate.endswith(".toml"):
                changes["certificate"] = beside_board(column.certificate)
            columns.append(column.model_copy(update=changes))
        models = []
        for model in self.model:
            changes = {} if model.checkpoint is None else {"checkpoint": beside_board(model.checkpoint)}
            models.append(model.model_copy(update=changes))
        return self.model_copy(update={"column": tuple(columns), "model": tuple(models)})

    def column_of(self, question: Question) -> Column:
        """Return the column that a question is about."""
        return next(column for column in self.column if column.title == question.column)

    def described(self, name: str) -> Described:
        """Return what the board says about a model: its table `[[model]]`, or nothing but the name."""
        return next((model for model in self.model if model.name == name), Described(name=name))

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows: those of one model first."""
        return (*(Row(title=model, models=(model,)) for model in self.models), *self.row)

    @property
    def all_models(self) -> tuple[str, ...]:
        """The models of all rows."""
        return tuple(model for row in self.rows for model in row.models)

    def needed(self, column: Column) -> list[Evaluation]:
        """Return the evaluations that a column needs of each model, one per protocol."""
        data, split = (self.data, self.split) if column.data is None else (column.data, column.split or "")
        limit = column.limit if column.data is not None or column.limit is not None else self.limit
        digest = column.digest if column.has_own_samples else self.digest
        return [
            Evaluation(
                protocol, data, split, limit, against=column.against, eps=column.eps, digest=digest, draws=column.draws
            )
            for protocol in column.protocols
        ]

    @property
    def evaluations(self) -> list[Evaluation]:
        """Every evaluation that the columns need, in order of first use."""
        return self._evaluations(self.column)

    def evaluations_of(self, model: str) -> list[Evaluation]:
        """Return those of the columns that a model needs."""
        return self._evaluations(column for column in self.column if self.needs(model, column))

    def needs(self, model: str, column: Column) -> bool:
        """Tell whether a model is to have a number in a column: not in a hole, nor if certified in another norm."""
        about, proven_norm = self.described(model), column.proven_norm
        return column.title not in about.holes and (not proven_norm or norm_of(about.options) in (None, proven_norm))

    def _evaluations(self, columns: Iterable[Column]) -> list[Evaluation]:
        parts = [part for column in columns for part in (column, column.proven) if part is not None]
        return list(dict.fromkeys(needed for part in parts for needed in self.needed(part)))
