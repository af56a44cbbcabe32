"""Entries of open boards: an honest one is accepted, and each reason against one is a line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from forging import saved

from robustbench_kpca.cli.main import main
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.records.record import load_record
from robustbench_kpca.records.spec import ProtocolInfo
from robustbench_kpca.report.entries import CARD, load_entry
from robustbench_kpca.report.entry_checks import broken_identities, refusals, stale
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.verification import entries

ENTRIES = Path(__file__).parents[3] / "submissions"
HONEST = ENTRIES / "vit_digits_adv"
AUTOATTACK, PGD, CLEAN = "autoattack-fast-linf-8_255", "pgd20-linf-8_255", "clean"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(HONEST, tmp_path / "submissions" / HONEST.name))


def record_of(folder, protocol):
    (path,) = (folder / "records").glob(f"*__{protocol}__*.record.json")
    return load_record(path)


def forged(folder, protocol, **changes):
    """Put a changed copy of a record, in which everything follows from its table, in the place of the record."""
    record = record_of(folder, protocol)
    for path in (record.path, record.path.with_name(record.outcomes_file.file)):
        path.unlink()
    return saved(record, folder / "records", **changes)


def card(folder, **changes):
    lines = (folder / CARD).read_text().splitlines()
    kept = [line for line in lines if line.partition(" =")[0] not in changes]
    text = "\n".join([*(f"{key} = {value}" for key, value in changes.items() if value is not None), *kept])
    (folder / CARD).write_text(text + "\n")


@pytest.mark.parametrize("name", sorted(path.parent.name for path in ENTRIES.glob(f"*/{CARD}")))
def test_every_entry_that_is_here_is_accepted(name):
    assert refusals(ENTRIES / name) == []


def as_weaker_attack(folder):
    """Rows of another attack under the protocol's name."""
    scenario = load_scenario(PGD, {"step_size": "0.1 eps"})[1]
    protocol = ProtocolInfo(name=PGD, digest=scenario.digest(), resolved=scenario.model_dump(mode="json"))
    forged(folder, PGD, spec={"protocol": protocol})


def damaged(folder):
    """A record that cannot be read, and no audits."""
    shutil.rmtree(folder / "records" / "audits")
    record_of(folder, CLEAN).path.write_text("{")


def without_number(folder):
    record = record_of(folder, PGD)
    for path in (record.path, record.path.with_name(record.outcomes_file.file)):
        path.unlink()


CASES = {
    "another attack": (as_weaker_attack, "another attack or version of the protocol"),
    "no audit": (lambda folder: forged(folder, PGD, audit=None), "no full audit (none)"),
    "mended evaluator": (
        lambda folder: forged(folder, PGD, algorithms={"attack pgd": 1, "attack loop": 9}), "version 9 of 'attack loop'"
    ),
    "damaged record": (damaged, "is no record"),
    "undeclared hole": (without_number, "PGD-20 8/255 (pgd20-linf-8_255) is missing"),
    "flag": (lambda folder: forged(folder, CLEAN, flags=("only 300 of 364 are present",)), "flag: only 300"),
    "stranger": (lambda folder: (folder / "records" / "run.sh").write_text("ls"), "records/run.sh is named by neither"),
    "link": (lambda folder: (folder / "link").symlink_to("/etc/passwd"), "link is no file"),
    "size": (lambda folder: card(folder, parameters=7), "the network has 105,178 parameters, and the card says 7"),
    "unknown key": (lambda folder: card(folder, colour='"red"'), "unknown key 'colour'"),
    "loose weights": (lambda folder: card(folder, weights='"hf-hub:A/B@main"'), "with weights = 'hf-hub:A/B@main'"),
    "code elsewhere": (lambda folder: card(folder, model='"../net.py:build"', weights='"w.safetensors"'), "sha256"),
    "closed board": (lambda folder: card(folder, board='"digits"'), "takes no entries"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_entry_is_refused_with_one_line_for_each_reason(folder, case, capsys):
    change, expected = CASES[case]
    change(folder)
    found = refusals(folder)
    assert len([reason for reason in found if expected in reason]) == 1, found
    assert main(["board", "enter", "--check", str(folder)]) == 2
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize("words", ["--check --keep", "--check --plan", "-o x --samples=8"])
def test_options_without_effect_are_refused(folder, words, capsys):
    assert main(["board", "enter", str(folder), *words.split()]) == 2
    assert f"{words.split()[-1].partition('=')[0]} with" in capsys.readouterr().err


def test_the_plan_of_an_entry_is_one_table_though_its_columns_are_planned_apart(tmp_path, capsys):
    words = ["board", "enter", str(HONEST / CARD), "-o", str(tmp_path / HONEST.name), "--plan", "--json", "-q"]
    assert main(words) == 0
    assert len({row["protocol"] for row in json.loads(capsys.readouterr().out)}) == 4


def test_a_declared_hole_costs_nothing(folder):
    without_number(folder)
    with (folder / CARD).open("a") as file:
        file.write('[[hole]]\ncolumn = "PGD-20 8/255"\nreason = "no gradients"\n')
    assert refusals(folder) == []


def moved(rows, count):
    """Let `count` samples withstand the attack that broke them, as the first sample did."""
    broken = np.flatnonzero(rows["broken_by"] == "pgd")[:count]
    changed = {name: rows[name].copy() for name in ("broken_by", "rank", "forwards", "backwards", "prediction")}
    for values in changed.values():
        values[broken] = values[0]
    changed["prediction"][broken] = rows["label"][broken]
    return changed


@pytest.mark.parametrize(
    ("protocol", "columns", "differing", "same", "verdict"),
    [
        (PGD, lambda rows: moved(rows, 2), 2, False, "accepted"),
        (PGD, lambda rows: moved(rows, 1), 1, True, "differs"),
        (PGD, lambda rows: moved(rows, 3), 3, False, "differs"),
        (CLEAN, lambda rows: {"confidence": 0.9 * rows["confidence"]}, 364, False, "differs"),
    ],
)
def test_another_machine_may_move_few_verdicts(
    folder, protocol, columns, differing, same, verdict, capsys, monkeypatch
):
    """1 and 1 % of the samples under attack; none on the same machine, and no other row."""
    again = entries.checked_again
    monkeypatch.setattr(entries, "checked_again", lambda *a, **k: again(*a, **k).model_copy(update={"exact": same}))
    monkeypatch.setattr(entries, "_audited_again", lambda model, runs: [])
    holes = ("Corrupted", "AutoAttack fast 8/255")
    with (folder / CARD).open("a") as file:
        file.writelines(f'[[hole]]\ncolumn = "{column}"\nreason = "for seconds"\n' for column in holes)
    for path in (folder / "records").glob("*_*"):
        if not {PGD, CLEAN} & {*path.name.split("__")}:
            path.unlink()
    machine = record_of(folder, protocol).environment.model_copy(update={"processor": "another"})
    forged(folder, protocol, columns=columns, environment=machine)
    words = ["board", "enter", "--check", str(folder), "--samples", "492", "--other-versions", "--json", "-q"]
    assert main(words) == (0 if verdict == "accepted" else 2)
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["rows"], found["differing"]) == (verdict, 492, differing), found


def test_an_ensemble_leaves_no_more_robust_than_its_member(folder):
    ensemble = record_of(folder, AUTOATTACK)
    resolved = {**ensemble.spec.protocol.resolved, "stage": ensemble.spec.protocol.resolved["stage"][:1]}
    scenario = parse_scenario(resolved, "member")
    protocol = ProtocolInfo(name="member", digest=scenario.digest(), resolved=resolved)
    spec = ensemble.spec.model_copy(update={"protocol": protocol})
    broken = np.where(np.arange(128) < 64, "apgd", "").astype(object)
    path = saved(
        ensemble, folder / "records", spec={"protocol": spec.protocol}, columns=lambda _: {"broken_by": broken}
    )
    (line,) = broken_identities([ensemble, load_record(path)])
    assert "which it contains" in line


def test_the_board_lists_its_entries_and_what_is_stale(folder):
    board = load_board("open/small")
    assert {*board.entries} == {path.parent.name for path in ENTRIES.glob(f"*/{CARD}")}
    assert stale(board) == []
    assert load_board("open/cifar10").entries == {}
    assert load_entry(HONEST).mark(record_of(HONEST, CLEAN)) == "made again here"
