"""The tables of the packs at the size of their data, on networks whose numbers are known in closed form.

Evaluated are pictures of 8 x 8 pixels that carry what they are (`coded.py`). Equal are the cells of the tables, to the
last digit of double precision.
"""

from itertools import product
from pathlib import Path

import coded
import pytest
from form import measured, sized

from robustbench_kpca import evaluate
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.sets import _table, imagenet
from robustbench_kpca.metrics.shared.error_table import ALEXNET_ERRORS
from robustbench_kpca.study.reproduction import pack
from robustbench_kpca.study.reproduction.roles import Roles
from robustbench_kpca.study.reproduction.tables import board_or_trouble
from robustbench_kpca.tasks.classification import requirements

N = sized(1_000, 50_000)
ONCE = 1e-12
FILE = Path(coded.__file__)
TABLES = (1, 4, 7, 9)


@pytest.fixture
def coded_sets(monkeypatch):
    """Let ImageNet and the sets beside it be coded pictures, also where AlexNet's errors want 224 x 224 pixels."""
    loaders = coded.loaders(N)
    monkeypatch.setattr(imagenet, "load", loaders.pop("imagenet"))
    for name, load in loaders.items():
        monkeypatch.setitem(_table.load, name, load)
    monkeypatch.setattr(requirements, "IMAGENET_C_SIDE", coded.SIDE)


@pytest.fixture
def two_networks(monkeypatch):
    """Let each table of a pack have two rows, which are the networks with known numbers."""
    load = pack.load_pack

    def with_two(name):
        title, content, items = load(name)
        arms = {name: pack.Arm(title=name, models=(f"{FILE}:{name}",)) for name in coded.RATES}
        paper = content.paper.model_copy(update={"arms": content.paper.arms | arms})
        pages = {
            key: item.model_copy(update={"arms": tuple(arms)})
            for key, item in items.items()
            if isinstance(item, pack.Table)
        }
        return title, content.model_copy(update={"paper": paper}), items | pages

    monkeypatch.setattr(pack, "load_pack", with_two)
    return with_two


def expected(column, rate):
    """Return the closed form of a cell."""
    numbers, unknown = range(N), max(200, round(N / 50_000 * 2_000))
    if column.metric == "mce":
        errors = coded.corruption_errors(N, rate)
        chosen = [column.corruption] if column.corruption else list(errors)
        return sum(errors[name] / (sum(ALEXNET_ERRORS[name]) / 5) for name in chosen) / len(chosen)
    if column.metric == "aupr":
        return coded.average_precision(numbers, unknown, rate)
    if column.metric == "shift_accuracy":
        size = max(200, round(N / 50_000 * {"imagenet-a": 7_500, "imagenet-r": 30_000}[column.data]))
        return coded.accuracy(range(size), rate, column.data)
    return coded.accuracy(numbers, rate, top=5 if column.metric.startswith("top5") else 1)


def words_of(name, out, *more):
    """Return the command that makes the tables at the paper's scale."""
    items = [word for table in TABLES for word in ("--table", str(table))]
    return ["reproduce", name, "--scale", "paper", *items, "-o", str(out), "--audit", "none", "-q", *more]


def test_tables_equal_closed_forms(coded_sets, two_networks, tmp_path):
    out, cells = tmp_path / "out", 0
    with measured(f"tables {', '.join(map(str, TABLES))} of teo2024", N):
        assert main(words_of("teo2024", out)) == 0
    title, content, items = two_networks("teo2024")
    roles = Roles(title, content, "paper", out)
    for item in (f"table-{number}" for number in TABLES):
        board, trouble = board_or_trouble(item, items[item], roles)
        assert not trouble
        for row, column in product(board.spec.row, board.columns):
            value = board.estimate(row.title, column).value
            assert value == pytest.approx(expected(column, coded.RATES[row.title]), rel=ONCE), f"{item} {column.title}"
            cells += 1
    assert cells == 2 * (6 + 16 + 5 + 4)


@pytest.mark.parametrize(
    ("protocol", "eps", "n", "held"),
    [
        ("teo2024-corrected-fgsm", 6, sized(5_000, 50_000), None),
        ("autoattack-linf-8_255", 6, sized(500, 50_000), sized(250, 500)),
    ],
)
def test_attacks_of_many_images_equal_the_closed_form(protocol, eps, n, held, fork):
    model, data = coded.Pooled().eval(), coded.pooled_images(n, held)
    with measured(f"{protocol}, linear network", n):
        record = evaluate(model, data, protocol=protocol, eps=f"{eps}/255", audit=False, quiet=True)
    assert record.metrics["clean_accuracy"].value == pytest.approx(0.9, rel=ONCE)
    assert record.metrics["robust_accuracy"].value == pytest.approx(coded.standing(n, eps, held), rel=ONCE)


def test_scenes_and_words_of_whole_vocabularies_equal_the_closed_form():
    n = sized(300, 2_000)
    with measured("ADE20K: scenes of 150 classes", n):
        record = evaluate(coded.Painter().eval(), coded.coded_scenes(n), protocol="segmentation", quiet=True)
    miou, mean_accuracy = coded.scene_scores(n)
    assert record.metrics["miou"].value == pytest.approx(miou, rel=ONCE)
    assert record.metrics["mean_accuracy"].value == pytest.approx(mean_accuracy, rel=ONCE)
    n, vocabulary = sized(700, 245_569), 267_735
    with measured("WikiText-103: words of 267,735", n):
        record = evaluate(
            coded.Unigram(vocabulary).eval(), coded.words(n, vocabulary), protocol="clean", batch_size=16, quiet=True
        )
    assert record.metrics["perplexity"].value == pytest.approx(coded.perplexity(n, vocabulary), rel=1e-6)
