"""Units, the catalogue of metrics, and boards whose numbers are computed once."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from board_pages import board_text

from robustbench_kpca._core.errors import BadInputError, UnknownNameError
from robustbench_kpca.metrics import (
    METRICS,
    PERCENT,
    PLAIN,
    Catalogue,
    Mean,
    Scores,
    Statistic,
    Unit,
    common_unit,
    measure,
    metric_for,
)
from robustbench_kpca.metrics.shared.pixels import miou
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import OutcomesFile, Record, find_records
from robustbench_kpca.records.spec import DataInfo, Environment, ModelInfo, Passes, ProtocolInfo, Spec
from robustbench_kpca.records.table import Table
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.compare import Rule, compare
from robustbench_kpca.report.consistency import load_consistent
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.report.render import html, markdown
from robustbench_kpca.report.table import cells, frame
from robustbench_kpca.tasks import TASKS, task_named
from robustbench_kpca.tasks.pages import Pages
from robustbench_kpca.tasks.task import Task

DIGITS = Path(__file__).parents[3] / "leaderboards" / "digits" / "records"
SURPRISE = Unit(digits=3)


def surprise(outcomes):
    return Scores(outcomes["sample"], outcomes["surprise"])


TOY = Mean(
    name="toy_surprise",
    title="Surprise",
    task="toy",
    kinds=("clean",),
    unit=SURPRISE,
    lower_is_better=True,
    scores=surprise,
)


TOY_PAGES = Pages()
TOY_TABLE = Table("toy", "clean", {"sample": "str", "surprise": "float"})


@pytest.fixture(autouse=True)
def toy_task(monkeypatch, metrics_of_a_test):
    METRICS.add(TOY)
    monkeypatch.setitem(
        TASKS.added, "toy", Task("toy", "word", {"clean": TOY_TABLE}, compute_at="", pages_at=f"{__name__}:TOY_PAGES")
    )


def passes_of(outcomes):
    """One clean pass for each sample, and what the attack spent."""
    spent = {name: int(sum(outcomes.columns.get(name, [0]))) for name in ("forwards", "backwards")}
    return Passes(forwards=len(set(outcomes["sample"])) + spent["forwards"], backwards=spent["backwards"])


def record_of(outcomes, protocol, model="m"):
    """A record of these outcomes, as an evaluation would have written it."""
    name, scenario = load_scenario(protocol)
    spec = Spec(
        model=ModelInfo(
            name=model, source="s", parameters=1, parameters_sha256=model, probe_sha256=model, pixel_std=(), config={}
        ),
        data=DataInfo(
            name="data", split="test", n=len(set(outcomes["sample"])), classes=3, digest="d", task=outcomes.task
        ),
        protocol=ProtocolInfo(name=name, digest=scenario.digest(), resolved=scenario.model_dump(mode="json")),
        seed=0,
        batch_size=1,
    )
    where = Environment(
        python="", platform="", processor="", device="", threads=1, deterministic=True,
        packages={"torch": "", "timm": ""}, revision=None,
    )  # fmt: skip
    return Record(
        spec=spec, metrics=measure(outcomes, scenario), passes=passes_of(outcomes),
        outcomes_file=OutcomesFile.of(outcomes, spec), environment=where, citations=(), flags=(), seconds=1,
        created="2026-01-01T00:00:00+00:00",
    ).attach(outcomes)  # fmt: skip


def toys(values, model="m"):
    columns = {"sample": [f"s{index}" for index in range(len(values))], "surprise": values}
    return record_of(Outcomes.from_columns(TOY_TABLE, columns), "clean", model)


def board_of(folder, records, *columns):
    """A board of these records, one column per (title, protocol, metric)."""
    for record in records:
        record.save(folder)
    models = list(dict.fromkeys(record.spec.model.name for record in records))
    text = board_text(models, {title: (protocol, metric) for title, protocol, metric in columns}, data="data")
    (folder / "board.toml").write_text(text)
    return load_board(str(folder), find_records(folder))


def test_units_write_values_and_rules_of_the_gate():
    assert (PERCENT.number(0.9341), PERCENT.text(0.9341)) == ("93.4", "93.4 %")
    assert PERCENT.interval(0.909, 1) == "[90.9, 100.0]"
    assert (PERCENT.change(-0.015), PERCENT.label("accuracy")) == ("-1.5", "accuracy (%)")
    assert (SURPRISE.text(23.45678), SURPRISE.change(1), SURPRISE.label("Surprise")) == ("23.457", "+1.000", "Surprise")
    assert (PLAIN.number(999.994), PLAIN.interval(993.58, 473849.47)) == ("1000", "[994, 473849]")
    assert (PLAIN.number(99.994), PERCENT.gap(-0.031), PLAIN.gap(-2)) == ("99.99", "3.1 points", "2.00")
    assert [PERCENT.share(value) for value in (-1, 0.5, 7)] == [0, 50, 100]
    assert PLAIN.share(7) == 0
    assert common_unit([PERCENT, PERCENT]) == PERCENT
    assert common_unit([PERCENT, PLAIN]) is None
    rule = Rule.parse("toy_surprise:+0.5")
    assert rule.drop == 0.5
    for text in ("toy_surprise:+0.5pp", "toy_surprise:-0.5", "robust_accuracy:-2", "robust_accuracy:-2%"):
        with pytest.raises(BadInputError, match="expected"):
            Rule.parse(text)
    (done,) = compare([toys([4.0] * 20 + [4.5])], [toys([2.0] * 21)], [rule])
    assert done.regression
    assert str(done).startswith("2.000 -> 4.024 (+2.024, allowed +0.5; ")
    (fine,) = compare([toys([2.0] * 21)], [toys([2.0] * 21)], [rule])
    assert not fine.regression


def test_metrics_can_be_added_and_are_selected_by_task():
    assert metric_for("toy_surprise") is TOY
    assert METRICS.add(TOY) is TOY
    assert "toy_surprise" in METRICS.names()
    with pytest.raises(BadInputError, match="'toy_surprise' is there already"):
        METRICS.add(Mean(name="toy_surprise", title="", task="toy", kinds=(), unit=PLAIN, scores=surprise))
    with pytest.raises(UnknownNameError, match="did you mean 'toy_surprise'"):
        metric_for("toy_suprise")
    assert list(toys([1.5, 2.5]).metrics) == ["toy_surprise"]
    assert "toy_surprise" not in Catalogue().names()


def test_metrics_have_tasks_and_boards_the_task_of_their_data(tmp_path):
    for name in Catalogue().names():
        metric = metric_for(name)
        assert set(metric.kinds) <= set(task_named(metric.task).tables)
        assert metric.unattacked is None or metric_for(metric.unattacked).task == metric.task
    with pytest.raises(BadInputError, match="clean_accuracy beside classification and toy"):
        board_of(tmp_path, [toys([1.0])], ("first", "clean", "toy_surprise"), ("more", "clean", "clean_accuracy"))
    # Class 2 is nowhere: it does not count. Class 1 is predicted only.
    found = miou(np.array([4, 0, 0]), np.array([8, 0, 0]), np.array([4, 4, 0]))
    assert found == pytest.approx((4 / 8 + 0) / 2)


def test_a_board_without_percent(tmp_path):
    board = board_of(tmp_path, [toys([1.0, 2.5], "a"), toys([3.0, 4.0], "b")], ("first", "clean", "toy_surprise"))
    assert frame(board).columns.tolist() == ["#", "Model", "first ↓"]
    assert frame(board)["first ↓"][0].startswith("1.750 [1.000, 2.500]")
    assert "Values of 2 `data` images" in markdown(board)
    assert '<td class="number" data-value="1.75" style="--share:0.0%">' in html(board)
    assert not [line for line in markdown(board).splitlines() if "Percent" in line]


def test_a_board_computes_its_numbers_once(tmp_path, monkeypatch):
    board = board_of(tmp_path, [scenes("a"), scenes("b")], ("first", "segmentation", "miou"))
    tested, made = [], []
    paired, estimate = Statistic.paired, Board._number
    monkeypatch.setattr(Statistic, "paired", lambda self, *both: tested.append(self.name) or paired(self, *both))
    monkeypatch.setattr(Board, "_number", lambda self, *cell: made.append(cell[0].title) or estimate(self, *cell))
    for show in (markdown, html, frame, cells):
        show(board)
    assert tested == ["miou"], "one test of one pair of models"
    assert made == ["first", "first"], "two cells"


def scenes(model="m", kind="clean", eps=8):
    """A record of segmentation, made by hand: two classes of ten pixels in every one of 30 images."""
    rng = np.random.default_rng(sum(model.encode()))
    table = task_named("segmentation").table(kind)
    rows = []
    for index in range(30):
        for number in range(2 if kind == "attack" else 1):
            right = rng.integers(0, 11, 2) // (1 + number)
            for label, same in ((0, right[0]), (1, right[1])):
                counts = {"class": label, "intersection": same, "truth": 10, "predicted": 10 - right[1 - label] + same}
                rows.append({"sample": f"s{index}"} | counts)
                rows[-1] |= {"corruption": "none", "severity": 0, "picture": number, "attack": "pgd"}
                rows[-1] |= {name: 0 for name in table.columns if name not in rows[-1]}
                rows[-1] |= {"forwards": 22, "backwards": 20} if kind == "attack" and number == label == 0 else {}
                rows[-1] |= dict.fromkeys(("linf", "l2"), eps / 255) if number else {}
    outcomes = Outcomes.from_rows(table, rows)
    if kind == "clean":
        return record_of(outcomes, "segmentation", model)
    return record_of(outcomes, "seg-pgd20-linf-8_255", model)


def copied(folder):
    path = next(path for path in sorted(DIGITS.glob("vit_digits__*pgd*.record.json")))
    shutil.copy(path.parent / json.loads(path.read_text())["outcomes_file"]["file"], folder)
    shutil.copytree(path.parent / "audits", folder / "audits")
    return Path(shutil.copy(path, folder))


def test_metrics_may_differ_by_rounding_and_by_no_more(tmp_path):
    """Processors differ in the last digit of sums."""
    path = copied(tmp_path)
    content = json.loads(path.read_text())
    for change, fine in ((1e-15, True), (1e-7, False)):
        content["metrics"]["robust_accuracy"]["low"] *= 1 + change
        path.write_text(json.dumps(content))
        if fine:
            load_consistent(path)
        else:
            with pytest.raises(BadInputError, match=r"robust_accuracy = .* does not follow from"):
                load_consistent(path)
