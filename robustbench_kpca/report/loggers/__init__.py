"""Loggers: every module of this folder sends records and training curves to one tracker of experiments.

A logger is named as `KIND:TARGET`, such as `mlflow:sqlite:///runs.db`. Its library is imported when it is opened.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from robustbench_kpca._core.errors import BadInputError, EvaluationError, reason_of
from robustbench_kpca._core.registry import Family
from robustbench_kpca.records.record import Record


@runtime_checkable
class Logger(Protocol):
    """What a module of this folder defines as `LOGGER`, a class; it is opened with the target.

    Attributes:
        failures: exceptions of the library that mean that the tracker cannot be reached or refused something.
    """

    failures: tuple[type[Exception], ...]

    def __init__(self, target: str) -> None: ...

    def record(self, record: Record) -> None:
        """Send one record as a run. A record that was sent before is not sent twice."""
        ...

    def scalars(self, run: str, values: Mapping[str, float], step: int) -> None:
        """Send numbers of a training run after an epoch."""
        ...

    def close(self) -> None:
        """Finish all runs, and wait until everything is written."""
        ...


LOGGERS = Family("logger", __name__, "LOGGER", needs=("record", "scalars", "close", "failures"))


@dataclass(frozen=True)
class Loggers:
    """Several loggers as one; what fails in a library becomes an error of one line.

    members: (as it was asked for, the logger).
    """

    members: Sequence[tuple[str, Logger]]

    def record(self, record: Record) -> None:
        """Send one record to all."""
        self._each(lambda logger: logger.record(record), "records are kept; run the same command again to send them")

    def scalars(self, run: str, values: Mapping[str, float], step: int) -> None:
        """Send numbers of a training run to all."""
        self._each(lambda logger: logger.scalars(run, values, step), "the epoch is kept; go on with --resume")

    def close(self) -> None:
        """Close all."""
        self._each(lambda logger: logger.close(), "all results are kept")

    def _each(self, call: Callable[[Logger], None], fix: str) -> None:
        for text, logger in self.members:
            try:
                call(logger)
            except logger.failures as error:
                raise EvaluationError(f"--log {text}: {reason_of(error)}", fix=fix) from None


def open_loggers(texts: Sequence[str]) -> Loggers:
    """Open loggers, each written `KIND:TARGET`.

    Raises:
        BadInputError: an unknown kind, no target, a library that is not installed, or a target that cannot be opened.
    """
    return Loggers([(text, _open(text)) for text in texts])


def _open(text: str) -> Logger:
    kind, _, target = text.partition(":")
    if kind not in LOGGERS and target.count(":"):  # FILE.py:LOGGER:TARGET
        kind, target = f"{kind}:{target.partition(':')[0]}", target.partition(":")[2]
    if not target:
        raise BadInputError(f"--log {text}", expected=f"KIND:TARGET, KIND one of {', '.join(LOGGERS.names())}")
    try:
        logger: type[Logger] = LOGGERS.get(kind)
    except ModuleNotFoundError as error:
        raise BadInputError(
            f"--log {text} needs {error.name}, which is not installed", fix=f"pip install 'robustbench-kpca[{kind}]'"
        ) from None
    try:
        return logger(target)
    except logger.failures as error:
        raise BadInputError(f"--log {text}: {reason_of(error)}", fix="check the target") from None


def parameters(record: Record) -> dict[str, Any]:
    """Return what was evaluated, as loggers list it."""
    model, protocol = record.spec.model, record.spec.protocol
    return {name: value for name, value in record.facts.items() if value is not None} | {
        "model_parameters": model.parameters,
        "model_sha256": model.parameters_sha256,
        "data_digest": record.spec.data.digest,
        "protocol_digest": protocol.digest,
        "audit": record.audit_words or "",
        "flags": "; ".join(record.flags),
    }


def numbers(record: Record) -> dict[str, float]:
    """Return the metrics with the ends of their intervals, and what they cost."""
    estimates = {
        f"{name}{end}": value
        for name, estimate in record.metrics.items()
        for end, value in (("", estimate.value), ("_low", estimate.low), ("_high", estimate.high))
    }
    passes = {"forwards": float(record.passes.forwards), "backwards": float(record.passes.backwards)}
    return estimates | passes | {"seconds": record.seconds}
