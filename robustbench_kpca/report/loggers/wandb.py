"""Weights & Biases: one run a record in a project, the target; WANDB_MODE=offline writes files and sends nothing."""

from collections.abc import Mapping
from typing import Any

import wandb
from wandb.errors import Error

from robustbench_kpca._core.files import sha256
from robustbench_kpca.records.record import Record
from robustbench_kpca.report.loggers import numbers, parameters


class WandbLogger:
    """Sends records to a project; the key and the mode are those of wandb's own settings and environment."""

    failures: tuple[type[Exception], ...] = (Error,)

    def __init__(self, target: str) -> None:
        self._project = target
        self._runs: dict[str, Any] = {}

    def record(self, record: Record) -> None:
        """Send one record; its run has the same id each time, so that it is there once."""
        name, about = record.spec.stem(), parameters(record)
        run = self._begin(name, sha256(f"{record.spec.digest()} {record.created}".encode())[:16], about, "evaluation")
        run.summary.update(numbers(record))
        run.finish()

    def scalars(self, run: str, values: Mapping[str, float], step: int) -> None:
        """Send numbers of a training run."""
        if run not in self._runs:
            self._runs[run] = self._begin(run, None, {}, "training")
        self._runs[run].log(dict(values), step=step)

    def close(self) -> None:
        """Finish the training runs."""
        for run in self._runs.values():
            run.finish()

    def _begin(self, name: str, identity: str | None, about: Mapping[str, Any], kind: str) -> Any:
        return wandb.init(
            project=self._project,
            name=name,
            id=identity,
            resume="allow",
            config=dict(about),
            job_type=kind,
            reinit="create_new",
        )


LOGGER = WandbLogger
