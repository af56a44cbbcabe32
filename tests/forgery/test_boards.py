"""Boards of forged records: the line that refuses each, or why no reader can (tests/forgery/README.md).

Each begins with honest records of three networks on 64 digits, which fill a board. Some are replaced by copies in which
everything that is computed from a table follows from it.
"""

import shutil

import numpy as np
import pytest
from board_pages import board_text
from forging import BOARDS, honest, saved

from robustbench_kpca.cli.main import main
from robustbench_kpca.protocols.scenario import parse_scenario
from robustbench_kpca.records.record import load_record
from robustbench_kpca.records.table import COUNTS
from robustbench_kpca.report.inferred import infer
from robustbench_kpca.report.notes import explain

HONEST = BOARDS / "digits-attacks" / "records"
PLAIN, ADV, RPC = "vit_digits", "vit_digits_adv", "rpc_symvit_digits_adv"
CLEAN, FGSM, PGD = "clean", "fgsm-linf-8_255", "pgd20-linf-8_255"
PART = {"digest": "a" * 64}
COLUMNS = {"Clean": (CLEAN, "clean_accuracy"), "FGSM": (FGSM, "robust_accuracy"), "PGD-20": (PGD, "robust_accuracy")}

pytestmark = pytest.mark.usefixtures("few_resamples")


def of(model, protocol):
    return honest(f"digits-attacks/records/{model}__digits-test__{protocol}__*.record.json")


class Board:
    def __init__(self, folder):
        self.folder, self.records = folder, folder / "records"
        self.models, self.titles = [PLAIN, ADV, RPC], list(COLUMNS)
        shutil.copytree(HONEST / "audits", self.records / "audits")
        for model in self.models:
            for protocol, _ in COLUMNS.values():
                for path in HONEST.glob(f"{model}__digits-test__{protocol}__*"):
                    shutil.copy(path, self.records)

    def forge(self, whose, protocol, by=None, **changes):
        """Put a forged copy in the place of a record; with `by`, of that model's, under the name of the first."""
        for path in self.records.glob(f"{whose}__digits-test__{protocol}__*"):
            path.unlink()
        own = {} if by is None else {"model": dict(of(whose, protocol).spec.model), "audit": None}
        return saved(of(by or whose, protocol), self.records, **own | changes)

    def forge_all(self, columns, protocols=(CLEAN, FGSM, PGD), **changes):
        for model in self.models:
            for protocol in protocols:
                self.forge(model, protocol, columns=columns, **changes)

    def copy(self, protocol=PGD, *, of_model=ADV, columns=None, **model):
        """Put an attack of the second network into a new row, by default of other weights."""
        self.models[2] = "mine"
        model = {"name": "mine", "parameters_sha256": "c" * 64, "probe_sha256": "c" * 64} | model
        saved(of(of_model, protocol), self.records, model=model, columns=columns, audit=None)

    def render(self):
        text = board_text(self.models, dict(zip(self.titles, COLUMNS.values(), strict=True)), limit=64)
        (self.folder / "board.toml").write_text(text)
        return main(["board", "render", str(self.folder), "--records", str(self.records), "-o", str(self.folder)])


def at(name, value, rows=slice(0, 1)):
    """Put a value into a column, by default in the first row."""

    def change(outcomes):
        chosen, column = rows(outcomes) if callable(rows) else rows, outcomes[name].copy()
        column[chosen] = value(outcomes)[chosen] if callable(value) else value
        return {name: column}

    return change


def by(*names):
    return lambda outcomes: np.isin(outcomes["broken_by"], names)


def together(*changes):
    return lambda outcomes: {name: column for change in changes for name, column in change(outcomes).items()}


unmoved = together(at("linf", 0, by("pgd")), at("l2", 0, by("pgd")))


def invented(outcomes):
    """Samples that are wrong become copies of one that is right, under names that no set has."""
    columns = {name: column.copy() for name, column in outcomes.columns.items()}
    wrong = outcomes["prediction"] != outcomes["label"]
    for row in np.flatnonzero(wrong).tolist():
        for name, column in columns.items():
            column[row] = f"digits/9{row:03d}" if name == "sample" else column[int((~wrong).argmax())]
    return columns


def easier(outcomes):
    """The same, under names of other digits of the split."""
    whole = honest("digits/records/vit_digits__*__clean__*.record.json").outcomes["sample"]
    others, columns = iter(sorted({*whole} - {*outcomes["sample"]})), invented(outcomes)
    columns["sample"] = np.array([next(others) if "/9" in name else name for name in columns["sample"]], object)
    return columns


def labels_as_answered(outcomes):
    """The label of every sample is what the plain network answers."""
    clean = of(PLAIN, CLEAN).outcomes
    answers = dict(zip(clean["sample"], clean["prediction"], strict=True))
    label = np.array([answers[name] for name in outcomes["sample"]])
    return {"label": label, "rank": np.where(outcomes["prediction"] == label, 0, np.maximum(outcomes["rank"], 1))}


def wrong_before(outcomes):
    """What FGSM broke was wrong before: the attack table of another network."""
    own = by("fgsm")
    counts = (at(name, 0, own) for name in COUNTS)
    return together(
        at("clean_prediction", lambda o: o["prediction"], own), at("broken_by", "clean", own), *counts,
        at("linf", 0, own), at("l2", 0, own),
    )(outcomes)  # fmt: skip


def same(model):
    return {name: getattr(of(model, PGD).spec.model, name) for name in ("parameters_sha256", "probe_sha256")}


def permuted(outcomes):
    return {name: column[::-1].copy() for name, column in outcomes.columns.items()}


def jittered(outcomes):
    """The same distances, but for the sixth digit."""
    return {name: (outcomes[name] * (1 - 1e-6)) for name in ("linf", "l2")}


def titled(title, **resolved):
    """The protocol of PGD-20 with another title; with other fields, too, it is no preset any more."""
    protocol = of(ADV, PGD).spec.protocol
    fields = {**protocol.resolved, "title": title, **resolved}
    digest = parse_scenario(dict(fields), "forged").digest()
    return {"protocol": protocol.model_copy(update={"resolved": fields, "digest": digest})}


def own(title):
    return titled(title, policy="last")


def zapped(**code):
    """FGSM's protocol with an attack from outside in its place, and the code of it."""
    protocol = of(ADV, FGSM).spec.protocol
    fields = {**protocol.resolved, "stage": [{"attack": "zap", "restarts": 1, "options": {}}]}
    digest = parse_scenario(dict(fields), "forged").digest()
    return {"protocol": protocol.model_copy(update={"resolved": fields, "digest": digest}), "code": code}


def place(**changes):
    return {"environment": of(ADV, CLEAN).environment.model_copy(update=changes)}


def packages(**versions):
    return place(packages=of(ADV, CLEAN).environment.packages | versions)


ISSUED = {
    "invented-samples": (
        lambda b: b.forge(PLAIN, PGD, columns=invented),
        "sample 'digits/9000' is none of the samples",
    ),
    "invented-everywhere": (lambda b: b.forge_all(invented), "'known-samples': sample 'digits/9"),
    "labels-everywhere": (lambda b: b.forge_all(labels_as_answered, (CLEAN,)), "has the label 5, which is 6 in digits"),
    "attack-of-another": (lambda b: b.forge(PLAIN, PGD, by=ADV), "answers 1 clean samples otherwise, such as 'digits/"),
    "bundled-name": (
        lambda b: b.forge(PLAIN, CLEAN, model={"parameters_sha256": "b" * 64}), "has weights with the digest bbbbbbbb"),
    "two-names": (lambda b: b.copy(**same(ADV)), "is of the network of 'vit_digits_adv'"),
    "copied-table": (
        lambda b: b.copy(),
        "has the same outcomes of 63 samples, such as 'digits/0001', of another network",
    ),
    "two-answers": (lambda b: b.forge(ADV, FGSM, columns=wrong_before), "answers 3 clean samples otherwise, such as"),
    "title-of-a-column": (lambda b: b.titles.__setitem__(2, "AutoAttack"), "'AutoAttack', but the attacks are pgd"),
    "title-of-a-protocol": (
        lambda b: b.forge(ADV, PGD, spec=own("AutoAttack")),
        "'AutoAttack', but the attacks are pgd",
    ),
    "version-to-come": (lambda b: b.forge(ADV, PGD, algorithms={"attack pgd": 99}), "version 99 of 'attack pgd'"),
    "version-of-nothing": (lambda b: b.forge(ADV, PGD, algorithms={"attack zap": 1}), "'attack zap', which is none of"),
    "code-of-ours": (lambda b: b.forge(ADV, PGD, spec={"code": {"attack pgd": "e" * 64}}), "the code of 'attack pgd'"),
    "attack-of-nobody": (
        lambda b: b.forge(ADV, FGSM, columns=at("broken_by", "zap", by("fgsm")), spec=zapped()), "code is not stated"),
    "broken-at-distance": (lambda b: b.forge(ADV, PGD, columns=unmoved), "broken by 'pgd' at distance 0"),
    "l-two-below-linf": (
        lambda b: b.forge(ADV, PGD, columns=at("l2", 0.01, by("pgd"))),
        "L2 0.01, which cannot both be",
    ),
    "negative-integer": (lambda b: b.forge(ADV, PGD, spec={"batch_size": -64}), "batch_size = -64, outside of 1 to"),
    "absurd-integer": (lambda b: b.forge(ADV, CLEAN, model={"parameters": 10**15}), "parameters = 1e+15, outside"),
    "absurd-class": (lambda b: b.forge(PLAIN, PGD, columns=at("prediction", 2**40, by("pgd"))), "= 1099511627776"),
    "year-one": (lambda b: b.forge(ADV, CLEAN, created="0001-01-02T00:00:00+00:00"), "is before this package"),
    "later-year": (lambda b: b.forge(ADV, CLEAN, created="2099-01-01T00:00:00+00:00"), "is in the future"),
    "old-torch": (lambda b: b.forge(ADV, CLEAN, **packages(torch="0.4.1")), "made with torch 0.4.1, but"),
}  # fmt: skip
"""Kind -> how a board is forged, and what the reader says."""

OWN = {
    "near-copy": (lambda b: b.copy(columns=at("l2", 1.0)), "has the same outcomes of 62 samples"),
    "copy-in-another-order": (lambda b: b.copy(columns=permuted), "has the same outcomes of 63 samples"),
    "copy-with-another-option": (lambda b: b.copy(**same(ADV), config={"note": 1}), "has the same outcomes of 63"),
    "easier-samples": (lambda b: b.forge(PLAIN, PGD, columns=easier), "(test) that have its digest"),
    "invented-part": (lambda b: b.forge(PLAIN, PGD, columns=invented, data=PART), "sample 'digits/9000' is none of"),
    "labels-of-a-part": (
        lambda b: b.forge_all(labels_as_answered, (CLEAN,), data=PART), "has the label 5, which is 6 in digits"),
    "answers-at-another-batch-size": (
        lambda b: b.forge(ADV, FGSM, columns=wrong_before, spec={"batch_size": 32}), "answers 3 clean samples"),
    "answers-of-an-accelerator": (
        lambda b: b.forge(ADV, FGSM, columns=wrong_before, **place(device="H100")), "answers 3 clean samples"),
    "clean-table-of-another": (lambda b: b.forge(PLAIN, CLEAN, by=ADV), "answers 1 clean samples otherwise, such as"),
    "other-probe": (lambda b: b.forge(ADV, CLEAN, model={"probe_sha256": "c" * 64}), "other answers on the first"),
    "probe-of-another": (
        lambda b: b.copy(CLEAN, **same(ADV) | {"parameters_sha256": "c" * 64}), "the same answers on the first batch"),
    "steps-in-a-title": (lambda b: b.titles.__setitem__(2, "PGD-50"), "'PGD-50', but no attack has 50 as an option"),
    "eps-in-a-title": (lambda b: b.titles.__setitem__(1, "FGSM 16/255"), "'FGSM 16/255', but eps = 0.0313725"),
    "spaced-title": (lambda b: b.titles.__setitem__(2, "Auto Attack"), "'Auto Attack', but the attacks are pgd"),
    "distance-that-is-no-number": (
        lambda b: b.forge(ADV, PGD, columns=at("l2", np.nan, by("pgd"))), "L2 nan, which cannot both be"),
    "more-gradients-zero-than-taken": (
        lambda b: b.forge(ADV, PGD, columns=at("zero_gradients", 10**6)), "zero_gradients = 1000000, of"),
    "passes-paid-by-retractions": (
        lambda b: b.forge(ADV, PGD, columns=at("retracted", 10**6)), "retracted = 1000000, of"),
    "negative-seed": (lambda b: b.forge(ADV, PGD, spec={"seed": -1}), "seed = -1, outside of 0 to"),
    "old-python": (lambda b: b.forge(ADV, CLEAN, **place(python="2.7.18")), "made with Python 2.7.18, but"),
}  # fmt: skip
"""The same, of our own invention."""

RENDERED = {
    "copy-of-one-step": lambda b: b.copy(FGSM),
    "jittered-copy": lambda b: b.copy(columns=jittered),
    "title-that-is-not-shown": lambda b: b.forge(ADV, PGD, spec=titled("AutoAttack")),
    "ranks-for-the-top-five": lambda b: b.forge(PLAIN, CLEAN, columns=at("rank", 1, lambda o: o["rank"] > 0)),
    "confidences": lambda b: b.forge(PLAIN, CLEAN, columns=at("confidence", 0.5, slice(None))),
    "a-faster-machine": lambda b: b.forge(PLAIN, PGD, seconds=0.001),
    "a-later-torch": lambda b: b.forge(PLAIN, CLEAN, **packages(torch="99.0")),
    "citations": lambda b: b.forge(PLAIN, PGD, citations=("A. Forger (2026), The strongest attack",)),
}
"""Kinds of our own invention that no rule refuses."""


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path)


@pytest.mark.parametrize("kind", [*ISSUED, *OWN])
def test_a_forged_board_is_refused_in_one_line(kind, board, capsys):
    forge, words = (ISSUED | OWN)[kind]
    forge(board)
    assert board.render() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert ".record.json" in line or "column '" in line


@pytest.mark.parametrize("kind", RENDERED)
def test_what_renders_all_the_same(kind, board):
    RENDERED[kind](board)
    assert board.render() == 0
    assert "AutoAttack" not in (board.folder / "README.md").read_text()


def test_a_page_names_code_from_outside(tmp_path):
    spec = zapped(**{"attack zap": "e" * 64})
    record = load_record(saved(of(ADV, FGSM), tmp_path, columns=at("broken_by", "zap", by("fgsm")), spec=spec))
    (found,), _ = infer([record], title="T", command="c")
    assert "; code from outside: attack zap, SHA-256 eeeeeeeeeeee" in explain(found, found.columns[0])
