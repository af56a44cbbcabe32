"""MLflow: one run a record in the experiment `robustbench-kpca`; the target is a tracking URI (sqlite:///runs.db)."""

from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from robustbench_kpca.records.record import Record
from robustbench_kpca.report.loggers import numbers, parameters

EXPERIMENT = "robustbench-kpca"
_TAG = "robustbench_kpca.digest"  # of the specification and the time of the record: a record is sent once


class MlflowLogger:
    """Sends records to an MLflow server, or writes them to its database."""

    failures: tuple[type[Exception], ...] = (MlflowException,)

    def __init__(self, target: str) -> None:
        self._client = MlflowClient(target)
        known = self._client.get_experiment_by_name(EXPERIMENT)
        self._experiment: str = self._client.create_experiment(EXPERIMENT) if known is None else known.experiment_id
        self._runs: dict[str, str] = {}

    def record(self, record: Record) -> None:
        """Send one record as a finished run, unless it is there already; one that was sent in part is replaced."""
        digest = f"{record.spec.digest()} {record.created}"
        for sent in self._client.search_runs([self._experiment], f"tags.`{_TAG}` = '{digest}'"):
            if sent.info.status == "FINISHED":
                return
            self._client.delete_run(sent.info.run_id)
        run = self._client.create_run(self._experiment, run_name=record.spec.stem(), tags={_TAG: digest}).info.run_id
        for name, value in parameters(record).items():
            self._client.log_param(run, name, str(value)[:500])
        for name, number in numbers(record).items():
            self._client.log_metric(run, name, number)
        self._client.set_terminated(run)

    def scalars(self, run: str, values: Mapping[str, float], step: int) -> None:
        """Send numbers of a training run."""
        if run not in self._runs:
            self._runs[run] = self._client.create_run(self._experiment, run_name=run).info.run_id
        for name, value in values.items():
            self._client.log_metric(self._runs[run], name, value, step=step)

    def close(self) -> None:
        """Finish the training runs."""
        for run in self._runs.values():
            self._client.set_terminated(run)


LOGGER = MlflowLogger
