"""The commands on language models: evaluate, show, rerun, check, compare, rank; nothing is special about the task."""

import json

import pytest
from board_pages import board_text

from robustbench_kpca.cli.main import main
from robustbench_kpca.records.record import find_records, load_record

pytestmark = pytest.mark.usefixtures("few_resamples")

BOARD = board_text(
    ["markov_models-hesitant", "markov_models-truth"],
    {
        "Perplexity": ("clean", "perplexity"),
        "Swapped": ("text-word-swap-rates", "corrupted_perplexity"),
        "Unchanged words": ("text-word-swap-rates", "clean_target_perplexity"),
    },
    data="grammar", limit=40,
)  # fmt: skip
MODELS = ["-m", "markov_models:truth", "-m", "markov_models:hesitant"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, few_resamples):
    folder = tmp_path_factory.mktemp("runs")
    asked = ["eval", *MODELS, "--data", "grammar", "--limit", "40", "-o", str(folder), "-q"]
    assert main([*asked, "-p", "clean", "-p", "text-word-swap-rates"]) == 0
    return folder


def record_of(runs, model, protocol):
    (found,) = [path for path in find_records(runs) if f"{model}__" in path.name and f"__{protocol}__" in path.name]
    return found


def test_every_metric_follows_and_the_best_possible_is_shown(runs, capsys):
    path = record_of(runs, "truth", "clean")
    assert main(["records", "show", str(path)]) == 0
    text = capsys.readouterr().out
    assert "Beside the best that any model can do" in text
    assert main(["records", "show", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    shown = shown[0] if isinstance(shown, list) else shown
    best = shown["best_possible"]
    assert best["ratio"] == pytest.approx(best["perplexity"] / best["best possible"])
    assert 0.8 < best["ratio"] < 1.25


def test_a_record_is_remade_and_compared_with_a_baseline(runs, tmp_path, capsys):
    for protocol in ("clean", "text-word-swap-rates"):
        path = str(record_of(runs, "hesitant", protocol))
        assert main(["records", "verify", path, "--samples", "3", "--run-code", "-q"]) == 0
    for place, model in (("old", "truth"), ("new", "hesitant")):
        (tmp_path / place).mkdir()
        load_record(record_of(runs, model, "clean")).save(tmp_path / place)
    asked = ["check", str(tmp_path / "new"), "--baseline", str(tmp_path / "old"), "--fail"]
    assert main([*asked, "perplexity:+0.1"]) == 1
    assert "REGRESSION" in capsys.readouterr().out
    assert main([*asked, "perplexity:+500"]) == 0
    assert main([*asked, "perplexity:-2pp"]) == 2


def test_a_board_ranks_by_the_lowest_perplexity(runs, tmp_path):
    (tmp_path / "board.toml").write_text(BOARD)
    assert main(["board", "render", str(tmp_path), "--records", str(runs), "-q"]) == 0
    page = (tmp_path / "README.md").read_text()
    assert "Perplexity ↓" in page
    assert page.index("markov_models-truth") < page.index("markov_models-hesitant")
    board = json.loads((tmp_path / "board.json").read_text())
    assert [row["rank"] for row in board["rows"]] == [1, 2]


def test_another_vocabulary_is_one_line_and_exit_2(tmp_path, capsys):
    asked = ["eval", "-m", "markov_models:small", "--data", "grammar", "-p", "clean", "-o", str(tmp_path), "-q"]
    assert main(asked) == 2
    said = capsys.readouterr()
    assert "knows 5 words, but data 'grammar' has a vocabulary of 50" in (said.err + said.out).replace("\n", " ")
    assert not list(tmp_path.iterdir())
