"""A plugin for pytest: the fixtures `assert_robust` and `check_member`, the marker `robustness`, and a summary.

pytest loads it wherever this package is installed, so it imports nothing heavy before it is used.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from robustbench_kpca.records.record import Record

_LINES = pytest.StashKey[list[str]]()  # of the summary, one for each finding


class AssertRobust:
    """The fixture `assert_robust`; each call adds what it measured to `lines`."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def __call__(
        self,
        model: "str | nn.Module",
        data: Any,
        protocol: str | Path,
        *,
        at_least: float | None = None,
        baseline: Path | str | None = None,
        drop: str | None = None,
        metric: str | None = None,
        limit: int | None = None,
        **options: Any,
    ) -> "Record":
        """Evaluate a model, and fail the test where it is not as good as it should be.

        Args:
            model: a module, or the name of a model as in `rbk eval`.
            data: as in `evaluate`: the name of a data set, a pair (images, labels), a loader, or a `Dataset`.
            protocol: name of a protocol, or a TOML file.
            at_least: limit of the metric, such as 0.4 for 40 %. The test fails where the whole 95 % interval lies below
                it (for metrics where lower is better: above it).
            baseline: a record, or a folder with one, to compare with sample by sample, as `rbk check` does.
            drop: the rule of that comparison, such as "robust_accuracy:-2pp". The test fails where the metric dropped
                by more and the paired test has p < 0.05.
            metric: name of the metric for `at_least`; by default the one that stands for the record.
            limit: number of samples of a named data set, evenly spread.
            **options: other arguments of `evaluate`, such as `eps="4/255"` or `audit=False`.

        Returns:
            The record.
        """
        __tracebackhide__ = True
        from robustbench_kpca._core.errors import BadInputError
        from robustbench_kpca.report.compare import against_baseline, against_limit

        if at_least is None and baseline is None:
            raise BadInputError("assert_robust without a limit", expected="at_least=0.4, or baseline=… with drop=…")
        if (baseline is None) != (drop is None):
            raise BadInputError(
                f"baseline = {baseline} with drop = {drop}", expected="both, such as drop='robust_accuracy:-2pp'"
            )
        record = _evaluate(model, data, protocol, limit, options)
        findings = []
        if at_least is not None:
            findings.append(against_limit(record, at_least, metric))
        if baseline is not None and drop is not None:
            findings.append(against_baseline(record, Path(baseline), drop))
        self.lines += [str(finding) for finding in findings]
        failed = [str(finding) for finding in findings if not finding.passed]
        if failed:
            pytest.fail("\n".join(failed), pytrace=False)
        return record


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "robustness: measures a model under attack; choose with `-m robustness`")
    config.stash[_LINES] = []


@pytest.fixture
def assert_robust(request: pytest.FixtureRequest) -> AssertRobust:
    """Evaluate a model in a test, and fail where it is not robust enough; see `AssertRobust`."""
    return AssertRobust(request.config.stash[_LINES])


@pytest.fixture
def check_member() -> "Callable[..., None]":
    """Fail where an attack, a corruption, an attention or a metric breaks a promise: `check_member(MyAttack, steps=5)`.

    It takes the class or the object, or its name or address, and options of an attack or an attention; the checks are
    those of `rbk doctor`.
    """

    def check(member: Any, **options: Any) -> None:
        __tracebackhide__ = True
        from robustbench_kpca.verification.conformance import check_member

        broken = [finding for finding in check_member(member, **options) if finding.broken]
        if broken:
            pytest.fail("\n".join(f"{finding.promise}: {finding.broken}" for finding in broken), pytrace=False)

    return check


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print what was measured."""
    lines = config.stash.get(_LINES, [])
    if lines:
        terminalreporter.section("robustness")
        for line in lines:
            terminalreporter.write_line(line)


def _evaluate(model: Any, data: Any, protocol: str | Path, limit: int | None, options: dict[str, Any]) -> "Record":
    from robustbench_kpca import evaluate, load_model
    from robustbench_kpca.evaluation.requests import DataRequest

    name = options.pop("name", model if isinstance(model, str) else None)
    network = load_model(model) if isinstance(model, str) else model
    if isinstance(data, str):
        sizes = {key: options.pop(key, None) for key in ("size", "crop")}
        data = DataRequest(data, limit=limit, **sizes).load_for(network)
    samples = data if isinstance(data, tuple) else (data,)
    record: Record = evaluate(network, *samples, protocol=protocol, name=name, **options)
    return record
