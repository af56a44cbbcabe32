"""The picture of all answers: which questions are in it, and that the better is on the right."""

import json
import re
from dataclasses import replace

import pytest

from robustbench_kpca._core import plugins
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.metrics import metric_for
from robustbench_kpca.report import board_index
from robustbench_kpca.report.answers import Answer, Duel
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.board_index import write_index
from robustbench_kpca.report.board_spec import BoardSpec, Column
from robustbench_kpca.report.lead import spoken
from robustbench_kpca.report.question import Question

DUEL = {
    "other": "plain", "value": 0.4, "trainings": 3, "planned": 3, "difference": 0.1, "low": 0.05, "high": 0.15,
    "p_value": 0.01, "least": 0.08,
}  # fmt: skip
ANSWER = {
    "subject": "RPC", "baseline": "plain", "ablation": "identity", "column": "PGD", "data": "digits",
    "verdict": "helps", "trainings": 3, "planned": 3, "against": DUEL, "control": {**DUEL, "other": "identity"},
    "value": 0.5, "samples": 9, "audited": "", "audit": "no audit",
}  # fmt: skip


def rendered(folder, *answers, metric="robust_accuracy"):
    folder.mkdir(parents=True)
    board = {"columns": [{"title": "PGD", "metric": metric}], "answers": list(answers)}
    (folder / "board.json").write_text(json.dumps(board))


def test_boards_and_tables_of_packs_are_asked_for_what_they_tested(tmp_path):
    rendered(tmp_path / "board", ANSWER, {**ANSWER, "verdict": "not yet", "against": {**DUEL, "low": None}})
    rendered(tmp_path / "pack" / "table-1", {**ANSWER, "verdict": "hurts"}, {**ANSWER, "against": None})
    rendered(tmp_path / "early", {**ANSWER, "trainings": 2})
    rendered(tmp_path / "words", ANSWER, metric="perplexity")  # its differences are no points
    asked = board_index.answers_below(tmp_path)
    assert [(place, answer.verdict) for place, answer in asked] == [("board", "helps"), ("pack/table-1", "hurts")]
    answers = [answer for _, answer in asked]
    less_sure = [replace(answer, control=replace(answer.control, p_value=0.03)) for answer in answers]
    for sure, helping in ((answers, "1 of 1 helps."), (less_sure, "0 of 1 helps.")):  # the larger p of two, times two
        assert (
            board_index.verdicts(sure)
            == f"2 questions: 1 helps, 1 hurts. Adjusted for all questions by Holm, {helping}"
        )
    drawn = board_index.overview(answers)
    for text in ("PGD (digits): RPC − plain", "− identity (control)", "better is right"):
        assert text in drawn


def test_the_index_shows_cards_the_most_decided_first(tmp_path):
    made = {
        "a": {**ANSWER, "verdict": "no difference found"},
        "b": {**ANSWER, "verdict": "hurts"},
        "c": ANSWER,
        "d": {**ANSWER, "subject": "Surer", "against": {**DUEL, "p_value": 0.001}},
    }
    head = {"data": "digits", "split": "test", "rank_by": "PGD", "rows": [], "runs": 1, "ready": 1}
    head["audited"] = {"rows": 0, "full": 0, "quick": 0}
    for name, answer in made.items():
        rendered(tmp_path / name, answer)
        path = tmp_path / name / "board.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | head | {"title": name}))
    page = write_index(tmp_path).read_text()
    cards = re.findall(r'class="card"><h2><a href="(.)/index.html">PGD \(digits\)</a>: Does (.*?) help', page)
    assert cards == [("d", "Surer"), ("c", "RPC"), ("b", "RPC"), ("a", "RPC")]
    assert page.index("No difference found: 1") > page.index("Answers of all boards"), "what is not decided is folded"
    assert page.count("better is right") == 5, "each has its own plot"


@pytest.mark.parametrize(("metric", "high", "low", "times"), [("robust_accuracy", 0.019, -0.3, 1),
    ("robust_accuracy", 0.021, -0.3, 0), ("mce", 0.3, -0.019, 1), ("mce", 0.3, -0.021, 0)])  # fmt: skip
def test_gains_above_the_margin_that_are_excluded_are_counted(metric, high, low, times):
    answer = {**ANSWER, "margin": 2.0, "against": {**DUEL, "low": low, "high": high}}
    question = Question(subject="RPC", baseline="plain", ablation="identity", column="PGD", margin=2.0)
    plain = question.model_copy(update={"margin": None})
    answers = [(answer, question), (ANSWER, plain)]
    said = board_index.verdicts([Answer.of(content, asked, metric_for(metric)) for content, asked in answers])
    assert ("In 1 a gain over the baseline above the planned margin is excluded." in said) == bool(times)


@pytest.mark.parametrize("content", ["{", "[]", '{"columns": []}', '{"columns": [], "answers": [{"column": "PGD"}]}'])
def test_another_file_is_refused_in_one_line(content, tmp_path):
    (tmp_path / "board").mkdir()
    (tmp_path / "board" / "board.json").write_text(content)
    with pytest.raises(BadInputError, match="was not written by this version; run: rbk board render NAME"):
        board_index.answers_below(tmp_path)


def test_what_is_lower_is_turned_and_unfinished_boards_stand_apart(tmp_path):
    duel = Duel(**DUEL)
    assert board_index._gain(duel, metric_for("robust_accuracy")) == duel
    turned = board_index._gain(duel, metric_for("mce"))
    assert (turned.difference, turned.low, turned.high, turned.least) == (-0.1, -0.15, -0.05, 0.08)
    content = {"data": "digits", "split": "test", "rank_by": "PGD", "rows": [], "answers": [], "columns": [], "runs": 3}
    content["audited"] = {"rows": 3, "full": 1, "quick": 1}
    for name, ready in (("whole", 3), ("begun", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "board.json").write_text(json.dumps(content | {"title": name, "ready": ready}))
    whole, begun = write_index(tmp_path).read_text().split("In progress")
    assert "whole/index.html" in whole
    assert "begun/index.html" not in whole
    assert "2 of 3" in begun
    assert "1 full, 1 quick of 3" in whole


def test_a_page_loads_no_plugin_for_a_name(monkeypatch):
    monkeypatch.setattr(plugins, "load", lambda: pytest.fail("a plugin was loaded"))
    column = Column(title="C", protocol="clean", metric="clean_accuracy", data="digits", split="test")
    models = ("rpc_symvit_all_digits_adv", "primal_vit_digits", "a stranger's")
    spec = BoardSpec(
        title="t", intro="", data="digits", split="test", seed=0, models=models, rank_by="C", column=(column,)
    )
    names = spoken(Board("b", spec, (), "remake", "plan"))
    assert names == {models[0]: "RPC-SymViT, all layers, adversarial", models[1]: "Primal-ViT"}
