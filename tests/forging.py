"""What tests of forgeries share: honest records, and copies in which everything follows from what was changed."""

from pathlib import Path

from robustbench_kpca.metrics import measure
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import OutcomesFile, load_record
from robustbench_kpca.records.spec import Passes

BOARDS = Path(__file__).parents[1] / "leaderboards"


def honest(pattern):
    (path,) = BOARDS.glob(pattern)
    return load_record(path)


def saved(record, folder, *, rows=None, columns=None, spec=None, model=None, data=None, **changes):
    """Save a copy in which everything that a reader computes again follows from its table."""
    outcomes = record.outcomes if rows is None else record.outcomes.where(rows)
    if columns is not None:
        outcomes = Outcomes.from_columns(outcomes.table, {**outcomes.columns, **columns(outcomes)})
    made = record.spec
    made = made.model_copy(update={"model": made.model.model_copy(update=model or {}), **(spec or {})})
    n = len(set(outcomes["sample"].tolist()))
    made = made.model_copy(update={"data": made.data.model_copy(update={"n": n, **(data or {})})})
    scenario = parse_scenario(dict(made.protocol.resolved), "forged")
    passes = record.passes
    if "forwards" in outcomes.columns:
        spent = {name: int(outcomes[name].sum()) for name in ("forwards", "backwards")}
        passes = Passes(forwards=scenario.draws * n + spent["forwards"], backwards=spent["backwards"])
    update = {
        "spec": made, "metrics": measure(outcomes, scenario) if n else record.metrics, "passes": passes,
        "outcomes_file": OutcomesFile.of(outcomes, made),
    }  # fmt: skip
    return record.model_copy(update=update | changes).attach(outcomes).save(folder)


def changed(name, row, value):
    """Return what puts a value into a row of a column."""

    def forged(outcomes):
        column = outcomes[name].copy()
        column[row] = value
        return {name: column}

    return forged
