import json
import os
import re
import shlex
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from attack_checks import USUAL
from board_pages import board_text

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.metrics.accuracy import correct
from robustbench_kpca.models import bundled
from robustbench_kpca.protocols import presets
from robustbench_kpca.records.audit import Audit, Check, Plan, Subject
from robustbench_kpca.records.audit_versions import CHECKS, LATEST, limits
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.report.board_spec import Evaluation
from robustbench_kpca.report.matching import load_board, read
from robustbench_kpca.report.render import html, json_text, markdown, write_board
from robustbench_kpca.report.table import audit_lines, frame, without_numbers

TOML = board_text(
    ["vit_digits", "vit_digits_adv", "nobody"],
    {"Clean": ("clean", "clean_accuracy"), "PGD": ("pgd20-linf-8_255", "robust_accuracy")},
    title="A <b>board</b> & more", intro='Said "so".', rank_by="PGD",
)  # fmt: skip
SOON = (datetime.now(UTC) + timedelta(hours=12)).isoformat(timespec="seconds")
"""Later than all that is made here, and no later than clocks may differ."""

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.mark.parametrize("source", ["retrieval:length=16,test=3", "pixels:side=4:digits"])
def test_a_set_of_other_sizes_has_a_name_of_its_own(source):
    assert load_data(source, "test").name in Evaluation("clean", source, "test").recorded_data


@pytest.fixture(scope="module")
def records(few_resamples, tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    data = load_data("digits", limit=40)
    for name in ("vit_digits", "vit_digits_adv"):
        made_of(name, name, folder, data)
    return folder


def made_of(network, name, folder, data=None):
    """Both records of the board, of a network of the package under a name."""
    for protocol in ("clean", "pgd20-linf-8_255"):
        shown = data or load_data("digits", limit=40)
        evaluate(load_model(network), shown, protocol=protocol, name=name, out=folder, audit=False)


@pytest.fixture
def board(tmp_path, records):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "board.toml").write_text(TOML)
    return load_board(str(tmp_path / "mine"), find_records(records))


def test_rows_are_ranked_and_bold_needs_a_paired_test(board, tmp_path, records):
    table = frame(board)
    assert table["Model"].tolist() == ["vit_digits_adv", "vit_digits"], "a mark that all have tells nothing"
    assert table["PGD"][0].startswith("**")  # 90 % against 3 % of 40 images: no chance
    assert not any(cell.startswith("**") for cell in table["Clean"])  # 98 % against 98 %
    assert board.ranks == {"vit_digits_adv": 1, "vit_digits": 2, "nobody": None}
    again = TOML.replace('rank_by = "PGD"', 'rank_by = "Clean"')
    (tmp_path / "board.toml").write_text(again)
    tied = load_board(str(tmp_path), find_records(records))
    assert tied.ranks == {"vit_digits_adv": 1, "vit_digits": 1, "nobody": None}
    assert "no row is clearly better than another (" in markdown(tied)


def test_a_row_of_which_nothing_was_run_is_named_below_the_table(board):
    assert without_numbers(board) == ["nobody"]
    assert all("“nobody”" in page for page in (markdown(board), html(board)))
    assert '"nobody"' in json_text(board), "for programs, with empty cells"
    empty = replace(board, runs=())
    assert len(frame(empty)) == 3
    assert "“nobody”" not in markdown(empty)


def test_runs_are_ready_missing_or_stale(board, tmp_path, records, monkeypatch):
    assert [run.state for run in board.runs] == ["ready"] * 4 + ["missing"] * 2
    (tmp_path / "p" / "attacks").mkdir(parents=True)
    (tmp_path / "p" / "attacks" / "pgd20-linf-8_255.toml").write_text(
        USUAL + '[[stage]]\nattack = "pgd"\nrestarts = 1\nsteps = 21\nstep_size = "0.25 eps"\nrandom_start = true\n'
    )
    monkeypatch.setenv("RBK_PRESETS", str(tmp_path / "p"))
    again = load_board(str(tmp_path / "mine"), find_records(records))
    assert [run.state for run in again.runs] == ["ready", "stale", "ready", "stale", "missing", "missing"]


def filled(board):
    return [(run.state, run.record and run.record.spec) for run in board.runs]


@pytest.mark.parametrize("created", ["2026-01-02T00:00:00+00:00", SOON], ids=["older", "newer"])
def test_a_row_is_of_one_network_that_of_its_newest_record(created, board, tmp_path, records):
    """As after a model was trained again, and only some of its evaluations were made again."""
    more = shutil.copytree(records, tmp_path / "more")
    made_of("symvit_digits_adv", "nobody", more)
    before = load_board(str(tmp_path / "mine"), find_records(more))
    data, other = load_data("digits", limit=40), load_model("symvit_digits")
    again = evaluate(other, data, protocol="clean", name="nobody", out=tmp_path / "again", audit=False)
    again.model_copy(update={"created": created}).attach(again.outcomes).save(more)
    mixed = load_board(str(tmp_path / "mine"), find_records(more))
    first, second = mixed.runs[4:]
    assert [run.evaluation.protocol for run in (first, second)] == ["clean", "pgd20-linf-8_255"]
    if created != SOON:
        assert filled(mixed) == filled(before)
        assert mixed.left_out == ""
    else:
        assert (first.state, second.state, second.record) == ("ready", "another network", None)
        assert first.record.spec == again.spec
        assert f"{again.spec.stem()}.record.json of {SOON}" in unescape(html(mixed))


def test_a_record_that_fits_no_cell_says_nothing_about_a_row(board, tmp_path, records):
    more = shutil.copytree(records, tmp_path / "more")
    data, other = load_data("digits", limit=16), load_model("symvit_digits")
    stray = evaluate(other, data, protocol="clean", name="vit_digits", out=tmp_path / "o", audit=False, seed=7)
    stray.model_copy(update={"created": SOON}).attach(stray.outcomes).save(more)
    assert filled(load_board(str(tmp_path / "mine"), find_records(more))) == filled(board)


def test_a_network_of_the_same_weights_and_other_options_is_another(board, tmp_path, records):
    other = shutil.copytree(records, tmp_path / "other")
    path = next(one for one in find_records(other) if "vit_digits__" in one.name and "clean" in one.name)
    record = load_record(path)
    model = record.spec.model.model_copy(update={"config": record.spec.model.config | {"lam": 9.0}})
    changed = record.model_copy(update={"spec": record.spec.model_copy(update={"model": model}), "created": SOON})
    path.unlink()
    changed.attach(record.outcomes).save(other)
    states = [run.state for run in load_board(str(tmp_path / "mine"), find_records(other)).runs]
    assert states == ["ready", "another network", "ready", "ready", "missing", "missing"]


def test_a_smaller_set_that_all_models_have_is_taken_where_not_all_have_the_larger(tmp_path, records):
    (tmp_path / "board.toml").write_text(TOML)
    more = shutil.copytree(records, tmp_path / "more")
    for name in ("vit_digits", "vit_digits_adv"):
        evaluate(load_model(name), load_data("digits", limit=8), protocol="clean", name=name, out=more, audit=False)
    whole = load_board(str(tmp_path), find_records(more))
    assert {run.record.spec.data.n for run in whole.runs if run.record} == {40}
    for path in find_records(more):
        if path.name.startswith("vit_digits_adv__digits-test__clean") and load_record(path).spec.data.n == 40:
            path.unlink()
    clean = [run for run in load_board(str(tmp_path), clean_only(more)).runs if run.record]
    assert [run.record.spec.data.n for run in clean] == [8, 8]


def clean_only(folder):
    return [path for path in find_records(folder) if "__clean__" in path.name]


def test_options_that_a_configuration_leaves_out_are_not_held_against_a_record(tmp_path, records):
    model, column = '\n[[model]]\nname = "vit_digits"\noptions = { fused = false }\n', '\n[[column]]\ntitle = "Clean"'
    (tmp_path / "board.toml").write_text(TOML.replace(column, model + column))
    assert [run.state for run in load_board(str(tmp_path), find_records(records)).runs][:2] == ["ready", "ready"]


WORST = """
[[column]]
title = "Worst"
protocol = ["pgd20-linf-8_255", "fgsm-linf-8_255"]
metric = "robust_accuracy"
"""


def test_a_worst_case_takes_each_image_at_its_worst(tmp_path, records):
    shutil.copytree(records, tmp_path / "more")
    data, model = load_data("digits", limit=40), load_model("vit_digits_adv")
    fgsm = evaluate(model, data, protocol="fgsm-linf-8_255", name="vit_digits_adv", out=tmp_path / "more", audit=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "board.toml").write_text(TOML.replace('rank_by = "PGD"', 'rank_by = "Worst"') + WORST)
    board = load_board(str(tmp_path / "mine"), find_records(tmp_path / "more"))
    pgd = board.record("vit_digits_adv", Evaluation("pgd20-linf-8_255", "digits", "test"))
    both = (correct(fgsm.outcomes) & correct(pgd.outcomes)).mean()
    column = board.spec.column[2]
    assert board.estimate("vit_digits_adv", column).value == both
    assert board.estimate("vit_digits", column) is None  # no FGSM there
    assert board.ranked()[0] == "vit_digits_adv"
    assert f"{100 * both:.1f} [" in frame(board)["Worst"][0]


@pytest.mark.parametrize(("limit", "state"), [(40, "ready"), (30, "missing")])
def test_a_limit_is_of_every_number(limit, state, tmp_path, records):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "board.toml").write_text(TOML.replace("seed = 0", f"seed = 0\nlimit = {limit}"))
    assert load_board(str(tmp_path / "mine"), find_records(records)).runs[0].state == state


def test_eps_is_said_in_both_spaces(board):
    """ImageNet's deviations are 0.229, 0.224 and 0.225: 8/255 is 0.137 to 0.14 of them."""
    assert "linf 8/255 in pixel space, 0.137 to 0.14 in normalised space, by channel" in markdown(board)


def test_pages_show_the_recorded_numbers_and_escape_text(board, tmp_path):
    pages = write_board(board, tmp_path / "out")
    assert [page.name for page in pages] == ["README.md", "index.html", "board.csv", "board.json"]
    page = html(board)
    assert "<b>board" not in page
    assert "A &lt;b&gt;board&lt;/b&gt; &amp; more" in page
    assert not re.search(r"src\s*=|<link|@import|url\((?!#)", page), "the page must not reach out"
    for model, protocol, metric in (
        ("vit_digits", "clean", "clean_accuracy"),
        ("vit_digits_adv", "pgd20-linf-8_255", "robust_accuracy"),
    ):
        record = board.record(model, Evaluation(protocol, "digits", "test"))
        remade = np.mean(correct(record.outcomes))
        assert record.metrics[metric].value == remade
        assert f'data-value="{remade}"' in page
        assert f"{100 * remade:.1f} [" in markdown(board)


NONE = ("preflight", "mechanism", "surrogate", "finite", "runs", "untouched")
"""Checks that have no values where they find nothing."""
LIMIT = {"slope": 14, "reach": 14, "stairs": 14, "neighbours": 1e-4, **dict.fromkeys(NONE, 0)}


def audit_of(record, *checks):
    """An audit with these checks, and with the others of its version, which found nothing."""
    spec = record.spec
    plan = Plan(
        norm="linf", eps=8 / 255, images=60, seed=0, batch_size=64, attacks={}, limits=limits(LATEST, 60),
    )  # fmt: skip
    others = {*CHECKS[LATEST]["full"]} - {one.name for one in checks}
    checks += tuple(
        Check(name=name, limit=LIMIT.get(name, 2), values={} if name in NONE else {"n": 0}, flag=False, saw="", why="")
        for name in sorted(others)
    )
    subject = Subject(
        model=spec.model.name, parameters_sha256=spec.model.parameters_sha256, probe_sha256="",
        gradient_sha256="", data=spec.data.name, split=spec.data.split, data_digest="",
    )  # fmt: skip
    return Audit(
        subject=subject,
        plan=plan,
        plan_digest=plan.digest(),
        checks=checks,
        version="",
        revision=None,
        seconds=len(spec.model.name),
    )


def audited_board(tmp_path, records, checks):
    """Give the audit `checks[model]` to the attack records of that model."""
    shutil.copytree(records, tmp_path / "audited")
    for path in find_records(tmp_path / "audited"):
        record = load_record(path)
        model = record.spec.model.name
        if record.outcomes.kind == "attack" and model in checks:
            record.audited(audit_of(record, *checks[model])).save(tmp_path / "audited")
    (tmp_path / "mine").mkdir(exist_ok=True)
    (tmp_path / "mine" / "board.toml").write_text(TOML)
    return load_board(str(tmp_path / "mine"), find_records(tmp_path / "audited"))


FLAG = Check(name="slope", values={"n": 20}, limit=14, flag=True, saw="9 <script>alert(1)</script> | of\n60", why="&")
FINE = Check(name="ascent", values={"n": 0}, limit=2, flag=False, saw="nothing", why="w")


def test_a_flagged_model_is_marked_and_its_flags_are_spelled_out(tmp_path, records):
    board = audited_board(tmp_path, records, {"vit_digits": [FLAG, FINE], "vit_digits_adv": [FINE]})
    assert frame(board)["Model"].tolist() == ["vit_digits_adv", "vit_digits ⚠"]
    escaped = "slope: 9 &lt;script&gt;alert(1)&lt;/script&gt; | of 60 (&amp;)"
    in_markdown = escaped.replace("|", "\\|").replace("&amp;", "&")  # no entity begins there
    assert f"- ⚠ vit_digits: {in_markdown}" in markdown(board).splitlines()
    assert f"<li>⚠ vit_digits: {escaped}</li>" in html(board)
    for page in (markdown(board), html(board)):
        assert "<script>alert" not in page
        assert "ascent" not in page
        assert "not audited" not in page


def test_what_was_not_audited_or_in_part_is_shown(tmp_path, records, board):
    for page in (markdown(board), html(board)):
        assert "vit_digits; vit_digits_adv" in page
        assert "not audited" in page
    half = audited_board(tmp_path, records, {"vit_digits": [FINE]})
    assert frame(half)["Model"].tolist() == ["vit_digits_adv ○", "vit_digits"]
    assert "- ○ vit_digits_adv: not audited" in markdown(half).splitlines()
    share = json.loads(json_text(half))["audited"]
    assert (share["rows"], share["full"] + share["quick"]) == (2, 1)


def test_a_model_audited_for_some_of_its_attacks_is_told_from_one_without_audit(tmp_path, records, board):
    half = audited_board(tmp_path, records, {"vit_digits": [FINE]})
    audit = half.audits(half.spec.rows[0])
    half._audits["vit_digits_adv"] = [*audit, None]
    assert audit_lines(half) == [("○", "vit_digits_adv", "not audited for at least one of its attacks")]


def test_a_row_whose_mechanism_is_inactive_is_marked(tmp_path, records):
    said = {"predictions on clean images": 60, "changed on clean images": 0, "predictions after PGD": 40}
    idle = Check(name="mechanism", values=said, limit=None, flag=False, saw="", why="")
    board = audited_board(tmp_path, records, {"vit_digits": [FINE, idle], "vit_digits_adv": [FINE]})
    line = ("∅", "vit_digits", "the mechanism is inactive: switched off, it changes 0 of 100 predictions")
    assert audit_lines(board) == [line]
    assert "vit_digits ∅" in frame(board)["Model"].tolist()


def test_audits_in_full_and_boards_without_attacks_say_so(tmp_path, records, board):
    board = audited_board(tmp_path, records, {"vit_digits": [FINE], "vit_digits_adv": [FINE]})
    assert "was audited for masked gradients, and no flag was raised" in markdown(board)
    assert "○" not in markdown(board)
    page = markdown(load_board(str(tmp_path / "mine"), clean_only(records)))
    assert "was audited" not in page
    assert "nothing to audit" in page


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('rank_by = "PGD"', 'rank_by = "PDG"', "rank_by = 'PDG'.*Clean, PGD"),
        ("robust_accuracy", "robust_acuracy", "did you mean 'robust_accuracy'"),
        ("pgd20-linf-8_255", "pgd20-linf-9_255", "no protocol named"),
        ('"nobody"', '"vit_digits"', "repeat"),
        ('models = ["vit_digits", "vit_digits_adv", "nobody"]', "", "without rows"),
        ("seed = 0", "seed = 0\nsede = 1", "'sede'.*did you mean 'seed'"),
        ("intro", "= intro", "TOML"),
        (
            "[[column]]",
            '[[question]]\nsubject = "nobody"\nbaseline = "vit_digits"\ncolumn = "PGD"\nfamily = "one"\n[[column]]',
            "family 'one', which nothing adjusts",
        ),
    ],
)
def test_bad_boards(tmp_path, old, new, message):
    (tmp_path / "board.toml").write_text(TOML.replace(old, new, 1))
    with pytest.raises(BadInputError, match=message):
        load_board(str(tmp_path), [])


def test_records_of_other_images_are_not_ranked_together(tmp_path, records):
    (tmp_path / "board.toml").write_text(TOML)
    few = load_data("digits", limit=20)
    evaluate(load_model("vit_digits"), few, protocol="clean", name="vit_digits", out=tmp_path / "few", audit=False)
    others = [path for path in find_records(records) if not path.name.startswith("vit_digits__digits-test__clean")]
    assert len(others) == 3
    with pytest.raises(BadInputError, match=r"vit_digits.*n = 20"):
        load_board(str(tmp_path), [*others, *find_records(tmp_path / "few")])


def test_no_records_no_pages_and_no_metric_that_a_record_does_not_have(tmp_path, records):
    (tmp_path / "board.toml").write_text(TOML)
    with pytest.raises(BadInputError, match="has no records"):
        write_board(load_board(str(tmp_path), []), tmp_path)
    assert not (tmp_path / "README.md").exists()
    (tmp_path / "board.toml").write_text(TOML.replace('metric = "clean_accuracy"', 'metric = "robust_accuracy"'))
    with pytest.raises(BadInputError, match=r"'Clean'.*robust_accuracy"):
        load_board(str(tmp_path), find_records(records))


SEEDS = """
[[row]]
title = "both"
models = ["vit_digits", "vit_digits_adv", "third"]
"""


def test_a_row_of_several_trainings_shows_their_mean_and_each_of_them(tmp_path, records):
    text = TOML.replace('models = ["vit_digits", "vit_digits_adv", "nobody"]', 'models = ["nobody"]') + SEEDS
    (tmp_path / "board.toml").write_text(text)
    board = load_board(str(tmp_path), find_records(records))
    column = board.spec.column[1]
    single = [board.estimate_of(model, column) for model in ("vit_digits", "vit_digits_adv")]
    found = board.estimate("both", column)
    assert found.value == pytest.approx(np.mean([one.value for one in single]))
    assert (found.low, found.high, found.method) == (0, 1, "2 trainings"), "two trainings that differ so say little"
    assert board.estimate("nobody", column) is None
    shown = frame(board)["PGD"][0]
    assert shown.endswith("(2 of 3)")
    for one in single:
        shown = f"{100 * one.value:.1f} [{100 * one.low:.1f}, {100 * one.high:.1f}]"
        assert all(shown in page for page in (markdown(board), html(board)))


def test_a_column_can_have_samples_of_its_own(tmp_path, records):
    copies = shutil.copytree(records, tmp_path / "more")
    train = load_data("digits", "train", limit=30)
    evaluate(load_model("vit_digits"), train, protocol="clean", name="vit_digits", out=copies, audit=False)
    text = TOML + '[[column]]\ntitle = "Seen, again"\nprotocol = "clean"\nmetric = "clean_accuracy"\ndata = "digits"\n'
    (tmp_path / "board.toml").write_text(text + 'split = "train"\nlimit = 30\n')
    board = load_board(str(tmp_path), find_records(copies))
    assert board.estimate("vit_digits", board.spec.column[2]).n == 30
    assert board.estimate("vit_digits", board.spec.column[0]).n == 40
    assert "30 `digits` images (train) in “Seen, again”; 40 `digits` images (test) in all other" in markdown(board)
    (tmp_path / "board.toml").write_text(text + 'split = "train"\nlimit = 31\n')
    without = load_board(str(tmp_path), find_records(copies))  # no record of the column's own samples
    assert "Percent of 40 `digits` images (test) in “Clean” and “PGD”; with" in markdown(without)
    (tmp_path / "board.toml").write_text(text)
    with pytest.raises(BadInputError, match=r"'Seen, again'.*split = None"):
        load_board(str(tmp_path), [])


CURVE = """
[[column]]
title = "{title}"
protocol = "{path}"
metric = "robust_accuracy"
"""


def test_curves_that_differ_in_more_than_eps_have_panels_of_their_own(tmp_path):
    from robustbench_kpca.report.plots import eps_panels

    text = TOML.replace("PGD", "FGSM").replace("pgd20-linf-8_255", "fgsm-linf-8_255")
    for steps in (1, 2):
        for eps in (1, 2):
            path = tmp_path / f"pgd{steps}-{eps}.toml"
            stage = f'restarts = 1\nsteps = {steps}\nstep_size = "0.25 eps"\nrandom_start = true\n'
            path.write_text(USUAL.replace("8/255", f"{eps}/255") + f'[[stage]]\nattack = "pgd"\n{stage}')
            text += CURVE.format(title=f"{steps} steps, {eps}/255", path=path)
    (tmp_path / "board.toml").write_text(text)
    panels = eps_panels(load_board(str(tmp_path), []))
    assert [title.removeprefix("pgd, linf, pixel space") for title in panels] == [" (1)", " (2)"]
    drawn = [[(round(eps * 255), column.title) for eps, column in panel.columns] for panel in panels.values()]
    wanted = [[(0, "Clean"), *((eps, f"{steps} steps, {eps}/255") for eps in (1, 2))] for steps in (1, 2)]
    assert sorted(drawn) == wanted


def test_figures_join_numbers_of_the_same_samples_only(tmp_path, records, monkeypatch):
    """Clean numbers of other samples than the attacked ones are not in a curve: the attack's records hold their own."""
    from robustbench_kpca.report import plots

    evaluate(load_model("vit_digits"), load_data("digits", limit=4), protocol="clean", name="vit_digits", out=tmp_path)
    text = TOML.replace('metric = "clean_accuracy"', 'metric = "clean_accuracy"\nlimit = 4')
    text += CURVE.format(title="PGD 16/255", path="pgd20-linf-8_255") + 'eps = "16/255"\n'
    text += CURVE.format(title="PGD, few", path="pgd20-linf-8_255") + "limit = 4\n"
    (tmp_path / "board.toml").write_text(text)
    board = load_board(str(tmp_path), [*find_records(records), *find_records(tmp_path)])
    clean = {one.spec.model.name: one.metrics["clean_accuracy"] for one in map(load_record, find_records(records))}
    drawn, points = [], []
    monkeypatch.setattr(plots, "lines", lambda curves, axis, title: drawn.append(curves) or "")
    monkeypatch.setattr(plots, "_scatter", lambda found, *more: points.append(found) or "")
    panels = plots.eps_panels(board)
    assert [[column.title for _, column in panel.columns] for panel in panels.values()] == [["PGD", "PGD 16/255"]]
    plots.against_eps(board)
    assert {row: curve.get(0.0) for row, curve in drawn[0].items()} == {**clean, "nobody": None}
    plots.clean_and_robust(board)
    assert {row: x for row, (x, _) in points[0].items()} == clean
    assert {estimate.n for estimate in clean.values()} == {40}


OWN = board_text(["mine", "here:make"], {"Attacked": ("own.toml", "robust_accuracy")}, limit=12)
OWN += '[[model]]\nname = "mine"\nsource = "vit_digits"\ncheckpoint = "weights.safetensors"\nattention = "Softmax"\n'


def test_the_plan_says_that_a_folder_is_not_there_and_refuses_a_file(tmp_path, capsys):
    assert main(["board", "plan", "digits", "--records", str(tmp_path / "none")]) == 0
    assert "there is no folder" in capsys.readouterr().err
    (tmp_path / "one").touch()
    assert main(["board", "plan", "digits", "--records", str(tmp_path / "one")]) == 2
    assert "is a file; expected a folder" in capsys.readouterr().err


def test_the_plan_of_a_board_of_ones_own_prints_commands_that_fill_it(tmp_path, monkeypatch, capsys):
    """Weights and a protocol beside its board.toml, a model of one's own code, from another folder."""
    home = tmp_path / "somewhere" / "mine"
    home.mkdir(parents=True)
    stage = '[[stage]]\nattack = "fgsm"\nrestarts = 1\n'
    (home / "own.toml").write_text(USUAL + stage)
    (home / "board.toml").write_text(OWN)
    shutil.copy(bundled()["vit_digits"], home / "weights.safetensors")
    code = "from robustbench_kpca import load_model\n\n\ndef make():\n    return load_model('vit_digits')\n"
    (tmp_path / "here.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["board", "plan", "somewhere/mine"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rbk eval")]
    assert len(lines) == 2
    for line in lines:
        assert main([*shlex.split(line)[1:], "--audit", "none", "-q"]) == 0
    capsys.readouterr()
    assert main(["board", "plan", "somewhere/mine"]) == 0
    assert "2 of 2 runs are finished." in capsys.readouterr().out
    assert main(["board", "render", "somewhere/mine", "-q"]) == 0
    assert {"README.md", "index.html", "board.csv", "board.json"} <= {path.name for path in home.iterdir()}


def test_a_board_of_the_installed_package_is_rendered_into_the_current_folder(tmp_path, monkeypatch, records, capsys):
    shipped = tmp_path / "site" / "_presets"
    (shipped / "leaderboards" / "mine").mkdir(parents=True)
    (shipped / "leaderboards" / "mine" / "board.toml").write_text(TOML)
    shutil.copytree(records, shipped / "leaderboards" / "mine" / "records")
    shutil.copytree(Path(presets.__file__).parents[2] / "attacks", shipped / "attacks")
    shutil.copytree(Path(presets.__file__).parents[2] / "corruptions", shipped / "corruptions")
    before = sorted(shipped.rglob("*"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(presets, "_PACKAGE", tmp_path / "site")
    assert main(["board", "render", "mine", "-q"]) == 0
    assert main(["board", "plan", "mine"]) == 0
    assert "--out mine/records" in capsys.readouterr().out
    assert sorted(shipped.rglob("*")) == before
    assert (tmp_path / "work" / "mine" / "index.html").is_file()


def test_tables_beyond_a_number_of_rows_are_not_kept_however_often_records_are_read(tmp_path, records, monkeypatch):
    shutil.copytree(records, tmp_path, dirs_exist_ok=True)
    files, known, most = find_records(tmp_path), {}, 41
    monkeypatch.setattr("robustbench_kpca.report.matching.KEPT", most)
    for count in range(1, len(files) + 1):
        read(files[:count], known)
    assert len(known) == len(files) > 1
    assert sum(len(one.outcomes) for one in known.values() if one.held) <= most
    assert all(one.outcomes is one.outcomes for one in known.values()), "the latest is not read again"
    os.utime(files[0], ns=(1, 1))
    read(files, known)
    assert len(known) == len(files), "what changed replaces what was there"
