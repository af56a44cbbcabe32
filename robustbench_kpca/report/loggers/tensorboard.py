"""TensorBoard: one folder of event files a record or training, below the folder that is the target; no torch."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from tensorboard.summary import Writer

from robustbench_kpca.records.record import Record
from robustbench_kpca.report.loggers import numbers


class TensorBoardLogger:
    """Writes event files; `tensorboard --logdir TARGET` shows them."""

    failures: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, target: str) -> None:
        self._folder = Path(target)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._runs: dict[str, Writer] = {}

    def record(self, record: Record) -> None:
        """Write the numbers of a record at step 0, unless its folder is there already."""
        folder = self._folder / record.spec.stem()
        if folder.exists():
            return
        part = self._folder / f".{folder.name}.part"  # of a record that was written in part, if it is there
        shutil.rmtree(part, ignore_errors=True)
        writer = Writer(str(part))
        for name, value in numbers(record).items():
            writer.add_scalar(name, value, 0)
        writer.close()
        part.rename(folder)

    def scalars(self, run: str, values: Mapping[str, float], step: int) -> None:
        """Write numbers of a training run."""
        if run not in self._runs:
            self._runs[run] = Writer(str(self._folder / run))
        for name, value in values.items():
            self._runs[run].add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is buffered."""
        for writer in self._runs.values():
            writer.close()


LOGGER = TensorBoardLogger
