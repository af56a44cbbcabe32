"""What a `board.toml` says: models, and columns of metrics under protocols."""

from typing import Annotated

from pydantic import BaseModel, Field, model_validator

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.strict import STRICT


class Column(BaseModel):
    """One number of the table: a metric under a protocol, or in the worst case of several, sample by sample.

    reference: the model whose errors a corruption error is divided by, in place of AlexNet's where that is a choice.
    against: the data of no known class, for out-of-distribution detection.
    """

    model_config = STRICT
    title: str
    protocol: str | Annotated[tuple[str, ...], Field(min_length=2)]
    metric: str
    reference: str | None = None
    against: str | None = None

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols needed."""
        return (self.protocol,) if isinstance(self.protocol, str) else self.protocol


class BoardSpec(BaseModel):
    """What `board.toml` says. Rows are sorted by the column titled `rank_by`, best first.

    With a `limit`, every number is of so many images, spread over the split.
    """

    model_config = STRICT
    title: str
    intro: str
    data: str
    split: str
    seed: int
    limit: Annotated[int, Field(ge=1)] | None = None
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    rank_by: str
    column: Annotated[tuple[Column, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> "BoardSpec":
        titles = [column.title for column in self.column]
        if self.rank_by not in titles:
            raise BadInputError(f"rank_by = '{self.rank_by}'", expected=f"one of {', '.join(titles)}")
        for what, names in (("models", list(self.models)), ("column titles", titles)):
            if len(set(names)) != len(names):
                raise BadInputError(f"{what} {names} repeat themselves", expected="each once")
        for column in self.column:
            metric_for(column.metric)
            if column.reference is not None and column.reference not in self.models:
                raise BadInputError(f"reference = '{column.reference}'", expected=f"one of {', '.join(self.models)}")
        return self

    @property
    def evaluations(self) -> list[tuple[str, str | None]]:
        """Every (protocol, data of no known class or None) that the columns need, in order of first use."""
        return list(
            dict.fromkeys((protocol, column.against) for column in self.column for protocol in column.protocols)
        )
