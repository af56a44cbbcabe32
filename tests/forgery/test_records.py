"""Forged records: everything stated follows from the forged table, hashes included, and a rule refuses it all the same.

Each case changes one honest record of the committed boards, computes metrics, sums and hashes again, and saves it as
an honest program would.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from robustbench_kpca.cli.main import main
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.metrics import measure
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import OutcomesFile, Passes, ProtocolInfo, load_record
from robustbench_kpca.report.consistency import load_consistent
from robustbench_kpca.tasks import task_named

BOARDS = Path(__file__).parents[2] / "leaderboards"
PGD = "digits/records/vit_digits__*__pgd20-linf-8_255__*.record.json"
CASCADE = "digits-attacks/records/vit_digits_adv__*__autoattack-linf-8_255__*.record.json"
CLEAN = "digits/records/vit_digits__*__clean__*.record.json"
GRID = "digits/records/vit_digits__*__noise-blur-contrast-32px__*.record.json"
SCENE_GRID = "shapes/records/symvit_shapes__*__shapes-c__*.record.json"
SCENES = "shapes/records/symvit_shapes__*__segpgd20-linf-4_255__*.record.json"

pytestmark = pytest.mark.usefixtures("few_resamples")


def honest(pattern):
    (path,) = BOARDS.glob(pattern)
    return load_record(path)


def forge(record, folder, columns=None, *, passes=None, audit=None, **resolved):
    """Save a copy with other columns, protocol, audit or passes, in which everything follows from everything else."""
    spec = record.spec
    scenario = parse_scenario({**spec.protocol.resolved, **resolved}, "forged")
    protocol = ProtocolInfo(
        name=spec.protocol.name, digest=scenario.digest(), resolved=scenario.model_dump(mode="json")
    )
    outcomes = record.outcomes
    if columns is not None:
        changed = {**outcomes.columns, **columns}
        table = outcomes.table
        outcomes = Outcomes.from_columns(table, changed)
    spec = spec.model_copy(update={"protocol": protocol})
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"n": len(set(outcomes["sample"].tolist()))})})
    totals = record.passes
    if passes is not None:
        totals = passes
    elif "forwards" in outcomes.columns:
        totals = Passes(
            forwards=scenario.draws * spec.data.n + int(outcomes["forwards"].sum()),
            backwards=int(outcomes["backwards"].sum()),
        )
    update = {
        "spec": spec, "metrics": measure(outcomes, scenario), "passes": totals,
        "outcomes_file": OutcomesFile.of(outcomes, spec), "audit": record.audit if audit is None else audit,
    }  # fmt: skip
    return record.model_copy(update=update).attach(outcomes).save(folder)


def emptied(outcomes):
    """Count every sample as unbroken."""
    return {"broken_by": np.full(len(outcomes), "", dtype=object)}


def all_right(outcomes):
    """Every answer is right, though the clean ones stay as they were."""
    return emptied(outcomes) | {"prediction": outcomes["label"]}


def changed(name, row, value):
    def forged(outcomes):
        column = outcomes[name].copy()
        column[row] = value
        return {name: column}

    return forged


def standing(outcomes):
    """Row of a sample that is right before and after the attack."""
    return int((outcomes["broken_by"] == "").argmax())


def at_standing(name, value):
    return lambda outcomes: changed(name, standing(outcomes), value)(outcomes)


def at_broken(name, value):
    return lambda outcomes: changed(name, int((outcomes["broken_by"] == "pgd").argmax()), value)(outcomes)


def twice(outcomes):
    """The second sample is a copy of the first."""
    return {name: np.concatenate([column[:1], column[:1], column[2:]]) for name, column in outcomes.columns.items()}


FORGERIES = {
    "broken_by emptied": (PGD, emptied, "broken-fits"),
    "every answer right": (PGD, all_right, "broken-fits"),
    "an attack of another protocol": (PGD, changed("broken_by", 0, "square"), "broken-fits"),
    "beyond eps": (PGD, at_standing("linf", 0.05), "inside-the-ball"),
    "a perturbation that is not a number": (PGD, at_standing("linf", float("nan")), "inside-the-ball"),
    "zero passes": (PGD, at_broken("forwards", 0), "attacked"),
    "a search that stopped early": (PGD, at_standing("forwards", 20), "possible-passes"),
    "gradients that were never taken": (PGD, at_standing("backwards", 0), "possible-passes"),
    "more passes than a search has": (PGD, at_broken("forwards", 22), "possible-passes"),
    "more gradients than a search has": (PGD, at_broken("backwards", 21), "possible-passes"),
    "two attacks of four": (CASCADE, at_standing("backwards", 100), "possible-passes"),
    "a scene's search that stopped early": (SCENES, changed("backwards", 0, 3), "possible-passes"),
    "negative passes": (PGD, at_standing("backwards", -3), "counts-add-up"),
    "negative count": (PGD, at_standing("retracted", -1), "counts-add-up"),
    "a sample twice": (PGD, twice, "one-row-each"),
    "a label that is no class": (CLEAN, changed("label", 5, 10), "known-classes"),
    "a prediction that is no class": (CLEAN, changed("prediction", 5, -2), "known-classes"),
    "a confidence above one": (CLEAN, changed("confidence", 5, 1.5), "confidence-fits"),
    "a rank that does not fit": (CLEAN, lambda o: {"rank": (o["prediction"] != o["label"]) * 0}, "rank-fits"),
    "two labels of one sample": (GRID, changed("label", 0, 9), "one-label-each|rank-fits"),
    "a cell left out": (SCENE_GRID, lambda o: o.where(o["severity"] < 5).columns, "every-cell"),
    "more right pixels than pixels": (SCENES, changed("intersection", 1, 10**6), "pixels-fit"),
    "a scene's passes": (SCENES, changed("forwards", 0, -1), "counts-add-up"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_table_is_refused(name, tmp_path):
    pattern, change, rule = FORGERIES[name]
    record = honest(pattern)
    path = forge(record, tmp_path, change(record.outcomes))
    with pytest.raises(BadInputError, match=f"{path.name} breaks the rule '"):
        load_consistent(path)
    forged = load_record(path)
    scenario, rules = parse_scenario(dict(forged.spec.protocol.resolved), "forged"), task_named(forged.spec.data.task)
    broken = {name for name, check in rules.pages.rules.items() if check(forged, scenario) is not None}
    assert broken & set(rule.split("|"))


@pytest.mark.parametrize("pattern", [PGD, CLEAN, GRID, SCENES])
def test_the_honest_record_passes(pattern, tmp_path):
    """The forging itself is not what is refused."""
    record = honest(pattern)
    assert load_consistent(forge(record, tmp_path, {})).outcomes.digest() == record.outcomes.digest()


def test_a_small_budget_is_not_a_large_one(tmp_path):
    record = honest(PGD.replace("8_255", "2_255"))
    path = forge(record, tmp_path, eps=8 / 255)
    with pytest.raises(BadInputError, match="breaks the rule 'reaches-eps'"):
        load_consistent(path)


def test_a_large_budget_is_not_a_small_one(tmp_path):
    with pytest.raises(BadInputError, match="breaks the rule 'inside-the-ball'"):
        load_consistent(forge(honest(PGD), tmp_path, eps=2 / 255))


def test_passes_that_do_not_add_up(tmp_path):
    path = forge(honest(PGD), tmp_path, passes=Passes(forwards=364, backwards=0))
    with pytest.raises(BadInputError, match=r"'counts-add-up': 364 and 0 passes, but its samples add up to"):
        load_consistent(path)


def test_an_audit_without_checks(tmp_path):
    record = honest(PGD)
    path = forge(record, tmp_path, audit=record.audit.model_copy(update={"checks": ()}))
    with pytest.raises(BadInputError, match="'audited-fully': its audit has no checks"):
        load_consistent(path)


@pytest.mark.parametrize(
    "command", [["records", "show"], ["check", "--fail", "robust_accuracy:-1pp", "--baseline", str(BOARDS)]]
)
def test_every_reader_refuses_in_one_line(command, tmp_path, capsys):
    record = honest(PGD)
    path = forge(record, tmp_path, emptied(record.outcomes))
    assert main([*command, str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "breaks the rule 'possible-passes'" in line
    assert "row " in line


def test_every_rule_is_explained():
    """docs/trust.md lists the rules of all tasks, and no other."""
    text = (BOARDS.parent / "docs" / "trust.md").read_text()
    rules = {name for task in ("classification", "segmentation") for name in task_named(task).pages.rules}
    assert rules == set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE))
