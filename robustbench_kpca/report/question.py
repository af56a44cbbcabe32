"""A question that a board asks of two or three of its rows; `report/answers.py` answers it."""

from typing import Annotated

from pydantic import BaseModel, Field, model_validator

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import STRICT


class Question(BaseModel):
    """Whether `subject` is better than `baseline` in a column, and whether `ablation`, the control, is as good.

    All three are titles of rows; a question without a control makes one comparison in place of two. `asks` is the
    question in words. `margin`, in the unit of the column, such as points of percent: rows that differ by less are as
    good as each other. `family`: in a pack, the questions whose p-values are adjusted together, each of one comparison.
    The page answers it: `report/answers.py`.
    """

    model_config = STRICT
    subject: str
    baseline: str
    ablation: str | None = None
    column: str
    asks: str | None = None
    margin: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] | None = None
    family: str | None = None

    @model_validator(mode="after")
    def _check_family(self) -> "Question":
        if self.family is not None and self.ablation is not None:
            raise BadInputError(
                f"a question of the family '{self.family}' with a control, which is a second comparison",
                expected="one comparison, `baseline`, in each question of a family",
            )
        return self

    @property
    def others(self) -> tuple[str, ...]:
        """What the subject is compared with: the baseline, and the control if there is one."""
        return (self.baseline,) if self.ablation is None else (self.baseline, self.ablation)
