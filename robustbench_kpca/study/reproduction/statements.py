"""What a paper says, as data: each statement with the records or diagnoses that answer it. `statements.toml` of a pack.

The verdict is computed, never written down: see `evidence.py`.
"""

from typing import Annotated, Any

from pydantic import BaseModel, Field, field_validator, model_validator

from robustbench_kpca._core.strict import STRICT, load_toml, validate
from robustbench_kpca.protocols.presets import pack_path
from robustbench_kpca.study.reproduction.pack import STATEMENTS, ScaleName


class _Source(BaseModel):
    """Where evidence lies: in an item of a pack (by default this one), or with a board.

    `scale` is that at which the pages of another pack were made.
    """

    model_config = STRICT
    pack: str = ""
    scale: ScaleName = "embedded"
    item: str = ""
    board: str = ""

    @model_validator(mode="after")
    def _check(self) -> "_Source":
        if bool(self.item) == bool(self.board) or (self.pack and self.board):
            raise ValueError("evidence has either an `item`, with or without a `pack`, or a `board`")
        return self


class Compared(_Source):
    """The row `better` is better than the row `than` in every one of `columns`, by at least `by`.

    Rows are named by arms in an item, by titles on a board; columns by their titles. `by` is in the metric's own scale:
    0.01 is a percentage point of an accuracy.
    """

    better: str
    than: str
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    by: Annotated[float, Field(ge=0)] = 0.0


class Claimed(_Source):
    """What a diagnosis of `model` says about a claim; or whether a statistic of it lies from `least` to `most`."""

    model: str
    claim: str
    statistic: str = ""
    least: float | None = None
    most: float | None = None

    @model_validator(mode="after")
    def _check_range(self) -> "Claimed":
        if bool(self.statistic) == (self.least is None and self.most is None):
            raise ValueError("a `statistic` needs `least` or `most`, and these need a `statistic`")
        return self


class Followed(_Source):
    """Statistics of the projection loss fall or rise in every layer, from the first kept epoch to the last."""

    model: str
    split: str
    falls: tuple[str, ...] = ()
    rises: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_statistics(self) -> "Followed":
        if not self.falls + self.rises:
            raise ValueError("neither `falls` nor `rises` names a statistic")
        return self


Evidence = Compared | Claimed | Followed


class Statement(BaseModel):
    """One statement of a paper, in our words. Either `evidence` answers it, or `open` says why nothing here can.

    Attributes:
        where: place in the paper, such as "Table 4".
        says: the statement.
        evidence: what answers it; each has a verdict of its own. In a file, `models` of a block stands for as many
            blocks with one `model` each.
        open: why it cannot be tested here.
    """

    model_config = STRICT
    where: str
    says: str
    evidence: tuple[Evidence, ...] = ()
    open: str = ""

    @field_validator("evidence", mode="before")
    @classmethod
    def _of_each_model(cls, blocks: Any) -> Any:
        if not isinstance(blocks, list):
            return blocks
        return [evidence for block in blocks for evidence in _of_each_model(block)]

    @model_validator(mode="after")
    def _check(self) -> "Statement":
        if bool(self.evidence) == bool(self.open):
            raise ValueError("a statement has either [[statement.evidence]], or `open`, which says why there is none")
        return self


def _of_each_model(block: Any) -> list[Any]:
    models = block.get("models") if isinstance(block, dict) else None
    if not isinstance(models, list) or not models or "model" in block:
        return [block]
    rest = {name: value for name, value in block.items() if name != "models"}
    return [rest | {"model": model} for model in models]


class Statements(BaseModel):
    """The statements of one paper."""

    model_config = STRICT
    title: str
    intro: str
    statement: Annotated[tuple[Statement, ...], Field(min_length=1)]


def load_statements(pack: str) -> Statements | None:
    """Read the statements of a pack, given as for `load_pack`; None if it has none.

    Raises:
        BadInputError: no such pack, or an invalid file.
    """
    path = pack_path(pack).parent / STATEMENTS
    return validate(Statements, load_toml(path), f"statements {path}") if path.is_file() else None
