"""How evaluations are run: what one command or call asks for, whatever the models and protocols."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from robustbench_kpca.errors import BadInputError

Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all)."""


@dataclass(frozen=True)
class RunOptions:
    """What does not depend on model, data or protocol.

    Attributes:
        seed: of all randomness.
        batch_size: the one size at which the model runs; None is the task's default. Part of the record, since another
            size may flip a verdict.
        workers: processes that load and corrupt samples; no influence on the result.
        device: such as "cuda"; None is the model's own.
        out: folder of the records; a run with one can be stopped and resumed. A finished record of the same
            specification is not made again.
        fresh: evaluate again even if there is such a record.
        allow: checks of `audit.preflight` that may fail; each that does is a flag of the record.
        frost_folder: of the original frost pictures, for protocols with `frost = "original"`.

    Raises:
        BadInputError: a seed or batch size that is no whole number.

    """

    seed: int = 0
    batch_size: int | None = None
    workers: int = 0
    device: str | None = None
    out: Path | None = None
    fresh: bool = False
    allow: tuple[str, ...] = ()
    frost_folder: Path | None = None

    def __post_init__(self) -> None:
        for name, value in (("seed", self.seed), ("batch_size", 1 if self.batch_size is None else self.batch_size)):
            if type(value) is not int:
                raise BadInputError(f"{name} = {value!r}", expected="a whole number")

    @classmethod
    def of(
        cls,
        seed: int,
        batch_size: int | None,
        workers: int,
        device: str | None,
        out: Path | str | None,
        fresh: bool,
        allow: Collection[str],
        frost_folder: Path | str | None,
    ) -> "RunOptions":
        """Make options of what a caller gives: paths may be text."""
        record_folder, frost = (None if folder is None else Path(folder) for folder in (out, frost_folder))
        return cls(seed, batch_size, workers, device, record_folder, fresh, tuple(allow), frost)
