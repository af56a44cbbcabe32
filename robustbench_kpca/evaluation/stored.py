"""Stored records: whether one is what an evaluation would write today."""

from pathlib import Path

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import METRICS, measure
from robustbench_kpca.protocols.scenario import Scenario
from robustbench_kpca.records.audit import Audit
from robustbench_kpca.records.images import load_images
from robustbench_kpca.records.record import SUFFIX, NewerSchemaError, Record, load_record
from robustbench_kpca.records.spec import Spec
from robustbench_kpca.tasks import task_named


def stored_record(out: Path, spec: Spec, scenario: Scenario, images: int) -> Record | None:
    """Return the record of a specification from a folder; None if there is none, or it must be made again.

    It is made again if it is damaged, if its table lacks a column of today, or if it keeps the images of fewer samples.

    Raises:
        NewerSchemaError: it was written by a newer version of the package.

    """
    path = out / f"{spec.stem()}{SUFFIX}"
    if not path.is_file():
        return None
    try:
        record = load_record(path)
        kept = () if not images or record.images_file is None else load_images(out, record.images_file).samples
    except NewerSchemaError:
        raise
    except BadInputError:
        return None
    columns = task_named(spec.data.task).table(scenario.kind).columns
    same = record.spec.digest() == spec.digest() and record.outcomes_file.columns == columns
    return record if same and len(kept) >= images else None


def renewed(record: Record, scenario: Scenario, audit: Audit | None, out: Path) -> Record:
    """Return a record with what is made anew of a stored one, which is written if that is something else.

    These are metrics from outside, whose code may have changed, and the audit; but a quick one does not replace a full
    one.
    """
    added = measure(record.outcomes, scenario, METRICS.added) if METRICS.added else {}
    current = record.model_copy(update={"metrics": dict(sorted({**record.metrics, **added}.items()))})
    current = record if current.metrics == record.metrics else current
    levels = tuple(one and one.plan.level for one in (record.audit, audit))
    if audit is not None and levels != ("full", "quick"):
        current = current if record.audit == audit else current.audited(audit)
    if current is not record:
        current.save(out)
    return current
