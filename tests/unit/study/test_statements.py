"""Verdicts follow from intervals; every statement of every pack finds its source; the pages say what records say."""

import shutil

import numpy as np
import pytest
from board_pages import CLEAN, pack_text, table_text
from scipy import stats

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import validate
from robustbench_kpca.cli.main import main
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.study.diagnostics.epochs import EpochTerms
from robustbench_kpca.study.reproduction.evidence import Results, Verdict, answer, better, judge, moved, together
from robustbench_kpca.study.reproduction.pack import load_pack
from robustbench_kpca.study.reproduction.roles import Roles
from robustbench_kpca.study.reproduction.statements import Claimed, Compared, Statement

PACK = pack_text(
    ['plain = { title = "Plain", models = ["vit_digits"] }',
     'trained = { title = "Adversarial", models = ["vit_digits_adv"] }'],
    ['plain = { title = "Plain", models = ["timm:vit_tiny_patch16_224"] }',
     'trained = { title = "Adversarial", models = ["timm:vit_small_patch16_224"] }'], limit=24,
)  # fmt: skip
TABLE = table_text(["plain", "trained"], CLEAN | {"FGSM": ("fgsm-linf-8_255", "robust_accuracy")})
STATEMENTS = """
title = "A <b>paper</b> beside us"
intro = "Seen."

[[statement]]
where = "Table 1"
says = "Training against attacks helps | under attack."

[[statement.evidence]]
item = "table-1"
better = "trained"
than = "plain"
columns = ["FGSM"]

[[statement.evidence]]
item = "table-1"
better = "plain"
than = "trained"
columns = ["FGSM"]

[[statement]]
where = "Table 2"
says = "It costs nothing."
open = "No <i>clock</i> here."
"""


def interval(low, high, n=100):
    return Estimate((low + high) / 2, low, high, n, "known")


@pytest.mark.parametrize(
    ("low", "high", "by", "verdict"),
    [
        (0.01, 0.05, 0.0, "agrees"),
        (0.0, 0.05, 0.0, "undecided"),
        (-0.02, 0.05, 0.0, "undecided"),
        (-0.05, -0.01, 0.0, "differs"),
        (-0.05, 0.0, 0.0, "undecided"),
        (-0.05, 0.0, 0.03, "differs"),
        (0.0, 0.0, 0.0, "undecided"),
        (0.01, 0.05, 0.03, "undecided"),
        (0.03, 0.05, 0.03, "agrees"),
        (0.01, 0.02, 0.03, "differs"),
    ],
)
def test_better_by_a_margin(low, high, by, verdict):
    assert better(interval(low, high), by) is Verdict[verdict]


def test_verdicts_of_ranges_samples_and_columns():
    assert judge(interval(0.1, 0.2), None, 0.2) is Verdict.agrees
    assert judge(interval(0.1, 0.2), 0.15, None) is Verdict.undecided
    assert judge(interval(0.1, 0.2), 0.3, 0.4) is Verdict.differs
    assert judge(interval(0.1, 0.2, n=1), 0.0, 1.0) is Verdict.undecided
    # A bootstrap of one loss and no win ends at zero, since some of its draws lack the loss.
    gains = np.zeros(64)
    gains[0] = -50.0
    ends = stats.bootstrap((gains,), np.mean, confidence_level=0.95, method="percentile", rng=0).confidence_interval
    assert ends.high == 0.0 > ends.low
    assert better(interval(ends.low, ends.high, n=64), 0.0) is Verdict.undecided
    yes, no, unsure, missing = Verdict.agrees, Verdict.differs, Verdict.undecided, Verdict.missing
    assert together([yes, yes]) is yes
    assert together([yes, unsure]) is unsure
    assert together([yes, missing, unsure]) is missing
    assert together([missing, no, yes]) is no


def test_a_course_falls_or_rises_in_every_layer_or_not():
    def epochs(*values):
        return [EpochTerms(epoch=k, parameters_sha256="", by_layer={"h": one}) for k, one in enumerate(values)]

    falls = epochs((2.0, 3.0), (9.0, 9.0), (1.0, 2.0))
    mixed = epochs((2.0, 3.0), (1.0, 4.0))
    assert moved(falls, "h", up=False)[0] is moved(falls[::-1], "h", up=True)[0] is Verdict.agrees
    assert moved(falls, "h", up=True)[0] is moved(falls[::-1], "h", up=False)[0] is Verdict.differs
    assert moved(mixed, "h", up=False)[0] is moved(mixed, "h", up=True)[0] is Verdict.undecided
    assert moved(falls[:1], "h", up=False)[0] is Verdict.undecided
    with pytest.raises(BadInputError, match="phi"):
        moved(mixed, "phi", up=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, few_resamples):
    """A pack beside its results: two models on 24 digits."""
    folder = tmp_path_factory.mktemp("packs") / "own"
    folder.mkdir()
    for name, text in (("pack", PACK), ("table-1", TABLE), ("statements", STATEMENTS)):
        (folder / f"{name}.toml").write_text(text)
    data = load_data("digits", limit=24)
    for name in ("vit_digits", "vit_digits_adv"):
        for protocol in ("clean", "fgsm-linf-8_255"):
            evaluate(load_model(name), data, protocol=protocol, name=name, out=folder / "records", audit=False)
    return folder


def results(folder, out=None):
    name, pack, items = load_pack(str(folder))
    return Results(items, Roles(name, pack, "embedded", out or folder, {}, {}))


def test_a_comparison_reads_the_records_of_its_table(folder, tmp_path):
    wanted = Compared(item="table-1", better="trained", than="plain", columns=("FGSM",))
    found = answer(wanted, results(folder))
    assert found.verdict is Verdict.agrees
    assert found.on == "Adversarial against Plain; 24 `digits` images (test)"
    assert found.result.startswith("FGSM: +")
    assert found.result.endswith("] pp")
    turned = answer(wanted.model_copy(update={"better": "plain", "than": "trained"}), results(folder))
    assert turned.verdict is Verdict.differs
    huge = answer(wanted.model_copy(update={"by": 0.999}), results(folder))
    assert huge.verdict is Verdict.differs
    assert answer(wanted, results(folder, tmp_path)).verdict is Verdict.missing


def test_one_training_out_of_several_decides_nothing(folder, tmp_path):
    """As on boards: nobody may take the first of three trainings for the recipe, however large the difference."""
    out = shutil.copytree(folder, tmp_path / "own")
    text, one = (out / "pack.toml").read_text(), 'models = ["vit_digits_adv"]'
    assert one in text
    (out / "pack.toml").write_text(text.replace(one, 'models = ["vit_digits_adv", "symvit_digits", "fan_digits"]'))
    found = answer(Compared(item="table-1", better="trained", than="plain", columns=("FGSM",)), results(out))
    assert found.verdict is Verdict.undecided
    assert found.on == "Adversarial (1 of 3 trainings) against Plain; 24 `digits` images (test)"
    assert "no spread" in found.result


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"item": "table-2"}, "item .*'table-2'"),
        ({"better": "traned"}, "did you mean 'trained'"),
        ({"columns": ("PGD",)}, "column .*'PGD'"),
        ({"item": "", "board": "digits"}, "row .*'trained'"),
    ],
)
def test_a_source_that_is_misspelt_is_an_error(changed, reason, folder):
    wanted = Compared(item="table-1", better="trained", than="plain", columns=("FGSM",))
    with pytest.raises(BadInputError, match=reason):
        answer(wanted.model_copy(update=changed), results(folder))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"open": "so", "evidence": [{"board": "digits", "better": "a", "than": "b", "columns": ["c"]}]},
        {"evidence": [{"board": "digits", "item": "table-1", "better": "a", "than": "b", "columns": ["c"]}]},
        {"evidence": [{"board": "digits", "better": "a", "than": "b", "columns": []}]},
        {"evidence": [{"board": "digits", "model": "a", "claim": "gamma", "statistic": "residual"}]},
        {"evidence": [{"board": "digits", "model": "a", "claim": "gamma", "verdict": "agrees"}]},
        {"evidence": [{"board": "digits", "model": "a", "models": ["b"], "claim": "gamma"}]},
        {"evidence": [{"board": "digits", "models": [], "claim": "gamma"}]},
        {"evidence": [{"board": "digits", "models": "ab", "claim": "gamma"}]},
    ],
)
def test_a_statement_that_says_too_little_or_too_much_is_refused(wrong):
    with pytest.raises(BadInputError):
        validate(Statement, {"where": "Table 1", "says": "It is so."} | wrong, "here")


def test_evidence_of_several_models_and_what_is_not_here(folder, tmp_path):
    same = {"board": "digits", "claim": "gamma"}
    found = validate(Statement, {"where": "", "says": "", "evidence": [same | {"models": ["a", "b"]}]}, "here")
    assert found.evidence == (Claimed(model="a", **same), Claimed(model="b", **same))
    own = results(folder)
    assert answer(Compared(board="nowhere", better="a", than="b", columns=("c",)), own).verdict is Verdict.missing
    assert answer(Claimed(item="table-1", model="nobody", claim="gamma"), own).verdict is Verdict.missing
    bare = shutil.copytree(folder, tmp_path / "bare")
    (bare / "statements.toml").unlink()
    assert main(["reproduce", str(bare), "--statements", "-o", str(tmp_path / "out")]) == 2


def test_the_page_has_the_verdicts_and_no_markup_of_others(folder, tmp_path, capsys):
    out = shutil.copytree(folder, tmp_path / "out")
    assert main(["reproduce", str(folder), "--statements", "-o", str(out)]) == 0
    assert "statements" in capsys.readouterr().out
    text = (out / "statements" / "README.md").read_text()
    assert "**agrees**" in text
    assert "**does not agree**" in text
    assert "helps \\| under" in text
    assert "&lt;i&gt;clock" in text
    page = (out / "statements" / "index.html").read_text()
    assert "<b>paper" not in page
    assert "<i>clock" not in page
    assert 'class="verdict not-supported"' in page
