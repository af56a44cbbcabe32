"""Evaluate a random choice of the samples of many records again, one record after the other, and note what came out."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from robustbench_kpca._core.errors import BenchmarkError
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.spot_check import Entry, SpotCheck
from robustbench_kpca.verification.rerun import rerun
from robustbench_kpca.verification.stated import AS_RECORDED, Conditions


def spot_check(
    records: Sequence[tuple[Record, Sequence[str]]],
    check: SpotCheck,
    *,
    save: Callable[[SpotCheck], None],
    told: Callable[[Entry], None],
    seconds: float | None = None,
    how: Conditions = AS_RECORDED,
) -> SpotCheck:
    """Check every record that `check` has no entry of, or that could not be remade; return all entries.

    Args:
        records: each with the command of the board or pack that shows it (`stated` of `rerun`), or an empty one.
        check: how many samples, by which seed, and the entries so far.
        save: called after each record, so that an interrupted check goes on.
        told: called with what came out.
        seconds: begin no record after so many; default: no end.
    """
    started = time.monotonic()
    for record, stated in records:
        before = check.entry(record)
        if before is not None and before.samples:
            continue
        if seconds is not None and time.monotonic() - started > seconds:
            break
        entry = _entry(record, stated, check, how)
        check = check.model_copy(update={"records": check.records | {record.spec.stem(): entry}})
        save(check)
        told(entry)
    return check


def _entry(record: Record, stated: Sequence[str], check: SpotCheck, how: Conditions) -> Entry:
    spec = record.spec
    about = {
        "model": spec.model.name,
        "protocol": spec.protocol.name,
        "outcomes": record.outcomes_file.sha256,
        "checked": f"{datetime.now(UTC):%Y-%m-%d}",
        "total": spec.data.n,
    }
    try:
        done = rerun(record, samples=check.samples, seed=check.seed, stated=stated, how=how)
    except BenchmarkError as error:
        return Entry(**about, samples=0, rows=0, differing=0, exact=False, why=str(error))
    return Entry(
        **about,
        samples=len(done.samples),
        rows=done.rows,
        differing=len(done.differing),
        exact=done.exact,
        why="; ".join(done.why),
    )
