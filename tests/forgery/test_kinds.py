"""Kinds of forgeries: the line that refuses each, or why no reader can (tests/forgery/README.md)."""

import re
from pathlib import Path

import numpy as np
import pytest
import test_boards
from board_pages import board_text
from forging import honest, saved

from robustbench_kpca.cli.main import main
from robustbench_kpca.records.names import mistakable
from robustbench_kpca.report.consistency import load_consistent

ROOT = Path(__file__).parents[2]
PGD = "digits/records/vit_digits__*__pgd20-linf-8_255__*.record.json"
ROBUST = "digits/records/vit_digits_adv__*__pgd20-linf-8_255__*.record.json"
CLEAN = "digits/records/vit_digits__*__clean__*.record.json"
PART = "digits-attacks/records/vit_digits__*__clean__*.record.json"

pytestmark = pytest.mark.usefixtures("few_resamples")


def audit(record, *, plan=None, subject=None, **changes):
    found = record.audit
    chosen = found.plan.model_copy(update=plan or {})
    asked = found.subject.model_copy(update=subject or {})
    return found.model_copy(update={"plan": chosen, "plan_digest": chosen.digest(), "subject": asked, **changes})


def emptied(record):
    checks = tuple(
        check.model_copy(update={"values": {}, "flag": False, "limit": 0.0}) for check in record.audit.checks
    )
    return audit(record, checks=checks)


def of_images(record, n):
    from robustbench_kpca.records.audit_versions import limits

    found = {**record.audit.plan.limits, **limits(record.audit.schema_version, n)}
    checks = []
    for check in record.audit.checks:
        limit = found["slopes"] if check.name in ("slope", "reach", "stairs") else found["samples"]
        own = not check.values or check.name in ("neighbours", "finite")
        checks.append(check if own else check.model_copy(update={"limit": limit}))
    return audit(record, checks=tuple(checks), plan={"images": n, "limits": found})


def best_rows(record, n=31):
    order = np.argsort(record.outcomes["broken_by"] != "", kind="stable")
    rows = np.zeros(len(record.outcomes), bool)
    rows[order[:n]] = True
    return rows


ONE = {
    "part-as-whole": (PGD, lambda r, f: saved(r, f, rows=best_rows(r)), "31 samples with the digest of all 364 of"),
    "part-as-whole-renamed": (
        CLEAN, lambda r, f: saved(r, f, rows=np.arange(364) < 31, data={"name": "mine"}), "31 samples with the digest"),
    "other-classes": (CLEAN, lambda r, f: saved(r, f, data={"classes": 1000}), "1000 classes of digits, which has 10"),
    "other-classes-of-a-part": (PART, lambda r, f: saved(r, f, data={"classes": 11}), "11 classes of digits"),
    "no-rows": (CLEAN, lambda r, f: saved(r, f, rows=np.zeros(364, bool)), "its table has no rows"),
    "negative-seconds": (CLEAN, lambda r, f: saved(r, f, seconds=-3.0), "'true-times': -3 seconds"),
    "endless-seconds": (CLEAN, lambda r, f: saved(r, f, seconds=1e999), "seconds"),
    "negative-seconds-of-an-audit": (PGD, lambda r, f: saved(r, f, audit=audit(r, seconds=-1.0)), "-1 seconds"),
    "no-date": (CLEAN, lambda r, f: saved(r, f, created="yesterday"), "created = 'yesterday' is no date"),
    "impossible-date": (CLEAN, lambda r, f: saved(r, f, created="2026-02-30T00:00:00+00:00"), "is no date"),
    "a-later-date": (CLEAN, lambda r, f: saved(r, f, created="2099-01-01T00:00:00+00:00"), "is in the future"),
    "audit-without-values": (PGD, lambda r, f: saved(r, f, audit=emptied(r)), "of its audit has no values"),
    "audit-of-one-image": (PGD, lambda r, f: saved(r, f, audit=of_images(r, 1)), "its audit is of 1 images"),
    "audit-of-two-images": (PGD, lambda r, f: saved(r, f, audit=of_images(r, 2)), "its audit is of 2 images"),
    "audit-at-no-eps": (PGD, lambda r, f: saved(r, f, audit=audit(r, plan={"eps": 1e-9})), "audit is at eps = 1e-09"),
    "audit-at-negative-eps": (PGD, lambda r, f: saved(r, f, audit=audit(r, plan={"eps": -0.03})), "is at eps = -0.03"),
    "audit-of-another-model": (
        PGD, lambda r, f: saved(r, f, audit=honest(ROBUST).audit), "is of another model or other data"),
    "look-alike-letter": (CLEAN, lambda r, f: saved(r, f, model={"name": "v\u0456t_digits"}), "mixes alphabets in"),
    "look-alike-word": (CLEAN, lambda r, f: saved(r, f, model={"name": "\u0441\u043e\u0440"}), "looks like Latin"),
    "zero-width-space": (CLEAN, lambda r, f: saved(r, f, model={"name": "vit\u200b_digits"}), "that are not seen"),
    "turned-writing": (CLEAN, lambda r, f: saved(r, f, model={"name": "vit\u202e_digits"}), "that are not seen"),
    "invisible-letter": (CLEAN, lambda r, f: saved(r, f, model={"name": "vit_digits \u1160"}), "that are not seen"),
    "full-width-letter": (CLEAN, lambda r, f: saved(r, f, model={"name": "vit_digit\uff53"}), "not in the form NFKC"),
    "space-at-the-end": (CLEAN, lambda r, f: saved(r, f, model={"name": "vit_digits "}), "spaces that are not seen"),
    "name-of-the-data": (PART, lambda r, f: saved(r, f, data={"name": "digit\u0455"}), "the data name"),
}  # fmt: skip
"""Kind -> an honest record, what is done to it, and what the reader says."""


@pytest.mark.parametrize("kind", ONE)
def test_a_forged_record_is_refused_in_one_line(kind, tmp_path, capsys):
    pattern, forge, words = ONE[kind]
    path = forge(honest(pattern), tmp_path)
    assert main(["records", "show", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def board(folder, rows, *, robust=False, data="digits"):
    names = ("pgd20-linf-8_255", "robust_accuracy") if robust else ("clean", "clean_accuracy")
    text = board_text([], {"C": names}, data=data)
    text += "".join(f'[[row]]\ntitle = "{title}"\nmodels = {list(models)}\n' for title, models in rows.items())
    (folder / "board.toml").write_text(text)
    return main(["board", "render", str(folder), "--records", str(folder / "records"), "-o", str(folder)])


def labels_turned(outcomes):
    turned = (outcomes["label"] + 1) % 10
    return {"label": turned, "prediction": turned, "rank": 0 * turned}


def equal_weights(folder):
    for name in ("a", "b", "c"):
        saved(honest(CLEAN), folder, model={"name": name})
    return {"row": ("a", "b", "c")}, False


def equal_answers(folder):
    for number, name in enumerate("ab"):
        saved(honest(CLEAN), folder, model={"name": name, "parameters_sha256": str(number) * 64})
    return {"row": ("a", "b")}, False


def two_label_sets(folder):
    mine = {"name": "mine", "digest": "d" * 64}
    saved(honest(CLEAN), folder, model={"name": "a"}, data=mine)
    saved(honest(CLEAN), folder, columns=labels_turned, model={"name": "b", "parameters_sha256": "b" * 64}, data=mine)
    return {"one": ("a",), "two": ("b",)}, False, "mine"


def two_of_one_cell(folder):
    record = honest(CLEAN)
    saved(record, folder, model={"name": "a"})
    wrong = {"prediction": (record.outcomes["label"] + 1) % 10, "rank": record.outcomes["label"] * 0 + 1}
    saved(record, folder, model={"name": "a"}, spec={"batch_size": 63}, columns=lambda _: wrong, created="2026-11-27")
    return {"row": ("a",)}, False


def copied_audit(folder):
    record = honest(PGD)
    saved(record, folder, model={"name": "a"})
    other = {"name": "b", "parameters_sha256": "b" * 64}
    copy = audit(record, subject={"parameters_sha256": "b" * 64, "gradient_sha256": "c" * 64})
    saved(record, folder, model=other, audit=copy)
    return {"one": ("a",), "two": ("b",)}, True


def copied_gradient(folder):
    record = honest(PGD)
    saved(record, folder, model={"name": "a"})
    copy = audit(record, subject={"parameters_sha256": "b" * 64}, seconds=1.0)
    saved(record, folder, model={"name": "b", "parameters_sha256": "b" * 64}, audit=copy)
    return {"one": ("a",), "two": ("b",)}, True


TOGETHER = {
    "equal-weights": (equal_weights, "has the same weights, as another training of row 'row'"),
    "equal-answers": (equal_answers, "has the same answers on the first batch, as another training of row 'row'"),
    "two-label-sets": (two_label_sets, "under one digest of data, dddd"),
    "two-of-one-cell": (two_of_one_cell, "fills the same cell with other outcomes"),
    "copied-audit": (copied_audit, "has the same audit, of other weights"),
    "copied-gradient": (copied_gradient, "has the same gradient, of other weights"),
}
"""Kind -> what makes records of which each is consistent, and what the board says."""


@pytest.mark.parametrize("kind", TOGETHER)
def test_records_that_contradict_one_another_fill_no_board(kind, tmp_path, capsys):
    forge, words = TOGETHER[kind]
    rows, robust, *data = forge(tmp_path / "records")
    for path in (tmp_path / "records").glob("*.record.json"):
        load_consistent(path)
    assert board(tmp_path, rows, robust=robust, data=(*data, "digits")[0]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def verdicts_turned(outcomes):
    """Right before and after, with the passes of a search that failed, for a third of the broken."""
    broken = np.flatnonzero(outcomes["broken_by"] == "pgd")[::3]
    columns = {name: outcomes[name].copy() for name in ("broken_by", "prediction", "forwards", "backwards")}
    standing = int((outcomes["broken_by"] == "").argmax())
    columns["broken_by"][broken] = ""
    columns["prediction"][broken] = outcomes["label"][broken]
    for name in ("forwards", "backwards"):
        columns[name][broken] = outcomes[name][standing]
    return columns


PASSES = {
    "verdicts-and-passes": (PGD, lambda r, f: saved(r, f, columns=verdicts_turned)),
    "another-name": (CLEAN, lambda r, f: saved(r, f, model={"name": "mine"})),
    "another-source": (CLEAN, lambda r, f: saved(r, f, model={"source": "timm:vit_huge"})),
    "weights-that-are-none": (
        CLEAN, lambda r, f: saved(r, f, model={"name": "mine", "parameters_sha256": "0" * 64})),
    "another-device": (
        CLEAN, lambda r, f: saved(r, f, environment=r.environment.model_copy(update={"device": "cuda"}))),
    "flags-taken-away": (CLEAN, lambda r, f: saved(r, f, flags=())),
    "audit-of-zeros": (PGD, lambda r, f: saved(r, f, audit=audit(r, checks=tuple(
        one.model_copy(update={"values": dict.fromkeys(one.values, 0.0), "flag": False}) for one in r.audit.checks)))),
    "no-audit": (PGD, lambda r, f: saved(r, f, audit=None)),
    "a-part-chosen-well": (PGD, lambda r, f: saved(r, f, rows=best_rows(r), data={"digest": "a" * 64})),
}  # fmt: skip
"""Kinds that no reader can refuse: they need the model, or a rerun."""


@pytest.mark.parametrize("kind", PASSES)
def test_what_reading_cannot_find(kind, tmp_path):
    pattern, forge = PASSES[kind]
    load_consistent(forge(honest(pattern), tmp_path))


def test_every_kind_is_listed():
    """tests/forgery/README.md lists the kinds that are refused, and those that pass."""
    text = (ROOT / "tests" / "forgery" / "README.md").read_text()
    listed = {word: set(re.findall(rf"^- `([a-z-]+)` {word}", text, re.MULTILINE)) for word in ("refused", "passes")}
    refused = {*ONE, *TOGETHER, *test_boards.ISSUED, *test_boards.OWN}
    assert listed == {"refused": refused, "passes": {*PASSES, *test_boards.RENDERED}}


PLAIN = ("vit_digits", "m\u00fcnchen", "Sar\u0131ta\u015f", "\u6a21\u578b-1", "timm:vit (a/b) \u03bb=2", "a.py:make")


@pytest.mark.parametrize("name", PLAIN)
def test_names_that_are_plain(name):
    assert mistakable(name) == ""
