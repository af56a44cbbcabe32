"""Options of a run that do not depend on the models, data or protocols: seed, batch size, device, folders."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from robustbench_kpca.errors import BadInputError
from robustbench_kpca.inference.acceleration import PLAIN, Acceleration

EXECUTORS = ("serial", "processes", "ray", "torchrun")
"""Who evaluates: this process, several of this machine, those of a Ray cluster, or those that torchrun started."""
LIMITS = {"seed": (0, 2**63 - 1), "batch_size": (1, 65_536), "processes": (1, 1024)}
"""Smallest and largest value; a larger batch is a slip of the keyboard."""

STALL_MINUTES = 30.0
"""A batch takes seconds, and minutes where large scenes are shown to a large model on a CPU."""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that do not depend on model, data or protocol.

    Attributes:
        seed: seed of all randomness.
        batch_size: batch size of the model; None: the default of the task. It is part of the record, because another
            batch size can change the result of a sample by rounding.
        workers: number of processes that load and corrupt samples; does not change results. None: one a core for grids
            of at least 512 corrupted samples (`inference.loader.workers_for`), else 0.
        device: such as "cuda"; None: the device of the model.
        out: folder of the records. With a folder, an interrupted run can be resumed, and a finished record of the same
            specification is used again.
        fresh: evaluate again even if such a record exists.
        allow: checks of `audit.preflight` that may fail; each failed one is a flag of the record.
        frost_folder: folder of the original frost images, for protocols with `frost = "original"`.
        acceleration: whether models are compiled, and TF32; part of the record's environment.
        keep_adversarial: number of samples whose images are kept beside the record of an attack; 0: none.
        processes: number of processes that evaluate parts of the data at once, one thread each. It does not change
            results. None: the executor's default.
        executor: one of `EXECUTORS`; `ray:ADDRESS` is an existing cluster. `processes` has one process a core of this
            machine by default, or a CUDA device where one is asked for, and `ray` one a core or GPU of the cluster.
            None: `processes` where several are asked for, else `serial`.
        stall_minutes: with several processes, one that finishes no batch for so many minutes is killed, and its shard
            has failed; 0: never. It does not change results.

    Raises:
        BadInputError: seed, batch size or processes is not an integer in its range; `stall_minutes` is negative; there
            is no such executor, or it takes no number of processes; or images are to be kept by several processes or
            without a folder.

    """

    seed: int = 0
    batch_size: int | None = None
    workers: int | None = None
    device: str | None = None
    out: Path | None = None
    fresh: bool = False
    allow: tuple[str, ...] = ()
    frost_folder: Path | None = None
    acceleration: Acceleration = PLAIN
    keep_adversarial: int = 0
    processes: int | None = None
    executor: str | None = None
    stall_minutes: float = STALL_MINUTES

    def __post_init__(self) -> None:
        for name, value in (("seed", self.seed), ("batch_size", self.batch_size), ("processes", self.processes)):
            least, most = LIMITS[name]
            chosen_here = value is None and name != "seed"
            if not chosen_here and (type(value) is not int or not least <= value <= most):
                raise BadInputError(f"{name} = {value!r}", expected=f"an integer from {least} to {most:,}")
        if not 0 <= self.stall_minutes < math.inf:
            raise BadInputError(f"stall_minutes = {self.stall_minutes}", expected="a number of minutes, or 0 for never")
        kind, address = self.engine
        if kind not in EXECUTORS or (address and kind != "ray"):
            raise BadInputError(f"executor '{self.executor}'", expected="serial, processes, ray or ray:ADDRESS")
        if self.processes is not None and (kind == "torchrun" or (kind == "serial" and self.processes > 1)):
            raise BadInputError(
                f"{self.processes} processes with executor '{kind}'", expected="executor processes or ray",
                fix="torchrun --nproc-per-node says how many" if kind == "torchrun" else "leave the executor out",
            )  # fmt: skip
        if kind != "serial" and self.keep_adversarial:
            raise BadInputError(
                f"images of {self.keep_adversarial} samples to keep, and executor '{kind}'",
                expected="one process, where adversarial images are kept",
            )
        if self.keep_adversarial < 0 or (self.keep_adversarial and self.out is None):
            raise BadInputError(
                f"images of {self.keep_adversarial} samples to keep", expected="a number, and a folder for records"
            )

    @property
    def engine(self) -> tuple[str, str]:
        """The executor that is meant, and the address of its cluster, if one is given."""
        if self.executor is None:
            return "processes" if (self.processes or 1) > 1 else "serial", ""
        kind, _, address = self.executor.partition(":")
        return kind, address

    @classmethod
    def of(
        cls,
        seed: int,
        batch_size: int | None,
        workers: int | None,
        device: str | None,
        out: Path | str | None,
        fresh: bool,
        allow: Collection[str],
        frost_folder: Path | str | None,
        acceleration: Acceleration = PLAIN,
        keep_adversarial: int = 0,
        processes: int | None = None,
        executor: str | None = None,
        stall_minutes: float = STALL_MINUTES,
    ) -> "RunOptions":
        """Build options from the arguments of a call; paths may be strings."""
        record_folder, frost = (None if folder is None else Path(folder) for folder in (out, frost_folder))
        return cls(
            seed, batch_size, workers, device, record_folder, fresh, tuple(allow), frost, acceleration,
            keep_adversarial, processes, executor, stall_minutes,
        )  # fmt: skip
