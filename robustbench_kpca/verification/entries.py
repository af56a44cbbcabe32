"""An entry of an open board, made and made again: weights by digest, evaluations, and a random part of its rows."""

import math
import os
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPException
from pathlib import Path

from torch import nn

from robustbench_kpca._core.errors import BadInputError, BenchmarkError, reason_of
from robustbench_kpca._core.files import read_file, sha256, write_atomic
from robustbench_kpca.audit.run import audit
from robustbench_kpca.evaluation.options import RunOptions
from robustbench_kpca.evaluation.plan import Job, Plan, make_plan
from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest
from robustbench_kpca.models.checkpoint import parameters_sha256
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.spot_check import Entry as Checked
from robustbench_kpca.records.spot_check import SpotCheck
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_spec import Evaluation
from robustbench_kpca.report.entries import RECORDS, WEB, Entry
from robustbench_kpca.report.entry_checks import rounded
from robustbench_kpca.verification.rerun import checked_again
from robustbench_kpca.verification.stated import Conditions

SAMPLES = 298
"""Random samples, over all records, that find 1 % of forged ones with 95 %: 1 - 0.99^298 = 0.95."""
MOST_BYTES = 4 * 10**9
"""Of a file of weights."""
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "robustbench-kpca"


class GoneError(BadInputError):
    """Weights that cannot be fetched any more."""


def weights_of(entry: Entry) -> str | None:
    """Return the weights as `load_model` takes them, fetched into the cache if they lie at an address.

    Raises:
        GoneError: nothing is there.
        BadInputError: their SHA-256 is not that of the card.
    """
    card, place = entry.card, entry.checkpoint
    if card.weights is None or card.sha256 is None:
        return place
    if card.weights.startswith(WEB):
        cached = _CACHE / f"{card.sha256}.safetensors"
        place = str(cached)
        if not cached.is_file():
            content = _fetched(card.weights)
            _require_digest(card.weights, content, card.sha256)
            write_atomic(cached, content)
    assert place is not None
    _require_digest(card.weights, read_file(Path(place), "weights"), card.sha256)
    return place


def _fetched(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310 (a card has https:// alone)
            content: bytes = answer.read(MOST_BYTES + 1)
    except (OSError, ValueError, HTTPException) as error:
        raise GoneError(
            f"weights {address} cannot be fetched ({reason_of(error)})", fix="give another address"
        ) from None
    return content


def _require_digest(where: str, content: bytes, digest: str) -> None:
    if sha256(content) != digest:
        raise BadInputError(f"weights {where} have the SHA-256 {sha256(content)[:12]}", expected=digest[:12])


def request_for(entry: Entry) -> ModelRequest:
    """Return how the model is loaded, once its weights are at hand."""
    name = None if entry.source == entry.name else entry.name
    return ModelRequest.of(entry.source, weights_of(entry), name=name, options=entry.card.options)


def plans(entry: Entry, board: Board, options: RunOptions) -> Iterator[Plan]:
    """Yield what makes the records of an entry: one plan for each set of samples and of replaced fields."""
    groups: dict[tuple[object, ...], list[Evaluation]] = {}
    for needed in board.spec.evaluations_of(entry.name):
        groups.setdefault((needed.samples, needed.replaced), []).append(needed)
    request = request_for(entry)
    options = replace(options, seed=board.spec.seed, out=entry.folder / RECORDS)
    for group in groups.values():
        job = Job(request, [needed.protocol for needed in group], {**group[0].overrides})
        yield make_plan([job], _data(group[0]), options, audit="full")


def _data(needed: Evaluation) -> DataRequest:
    return DataRequest(needed.data, needed.split, needed.limit, needed.against)


@dataclass(frozen=True)
class Again:
    """What came out of making an entry again.

    Attributes:
        check: an entry of each record that was made again.
        reasons: why it is not accepted; none if all rows are equal, but for few verdicts that another machine moves,
            and a quick audit raises no flag.
        unfinished: whether the time was up before all records were made again.
    """

    check: SpotCheck
    reasons: Sequence[str]
    unfinished: bool

    @property
    def rows(self) -> int:
        """Rows that were compared."""
        return sum(entry.rows for entry in self.check.records.values())

    @property
    def differing(self) -> int:
        """Of them, those that differ."""
        return sum(entry.differing for entry in self.check.records.values())


def make_again(
    entry: Entry, board: Board, samples: int, how: Conditions, seconds: float, report: Callable[[Checked], None]
) -> Again:
    """Make random samples of all records again, in proportion to their number, and audit the model quickly.

    Nobody knows the choice beforehand. It is drawn here, after the entry was handed in. On another machine than the
    record's (`how.other_versions`) a search follows its own rounding. If a row under attack differs there, `samples`
    samples of that record alone are made again, of which as many may differ as `rounded` says. No other row may.

    Raises:
        BadInputError: weights are gone or of another digest; code may not run, or the model cannot be loaded.
    """
    request = request_for(entry)
    if entry.card.code is not None and not how.run_code:
        raise BadInputError(f"the card names code: {entry.source} would be run", fix="read it, then add --run-code")
    began, model = time.monotonic(), request.load()
    runs = [(run.evaluation, run.record) for run in board.runs if run.record is not None]
    total = sum(record.spec.data.n for _, record in runs)
    check, reasons, unfinished = SpotCheck.begin(samples, None), list[str](), False
    for needed, record in runs:
        if time.monotonic() - began > seconds:
            unfinished = True
            break
        part = math.ceil(samples * record.spec.data.n / total)
        images = _data(needed).load_for(model)
        again = partial(checked_again, record, seed=check.seed, model=model, images=images, how=how)
        made = again(samples=part)
        searched = record.kind == "attack" and not made.exact
        if searched and made.differing:
            made = again(samples=samples)
        check = check.model_copy(update={"records": check.records | {record.spec.stem(): made}})
        report(made)
        if made.differing > (rounded(made.rows) if searched else 0) or not made.samples:
            reasons.append(f"{made.protocol}: {made.verdict}")
    reasons += [] if unfinished else _audited_again(model, runs)
    return Again(check, reasons, unfinished)


def _audited_again(model: nn.Module, runs: Sequence[tuple[Evaluation, Record]]) -> list[str]:
    """Audit the model quickly, at the largest budget of the recorded audits, and say what is flagged."""
    audits = [(needed, record.audit) for needed, record in runs if record.audit is not None]
    if not audits:
        return []
    needed, before = max(audits, key=lambda pair: pair[1].plan.eps)
    if before.subject.parameters_sha256 != parameters_sha256(model):
        return ["the audit is of other weights"]
    try:
        done = audit(
            model, _data(needed).load_for(model), eps=before.plan.eps, seed=before.plan.seed,
            batch_size=before.plan.batch_size, level="quick", quiet=True,
        )  # fmt: skip
    except BenchmarkError as error:
        return [f"the audit cannot be made again: {error}"]
    return [f"the audit, made again, flags {check.name}" for check in done.flags]
