"""Time series, texts and paths at the published sizes, tried by the commands of `chen2023`'s items."""

import pytest
import sequences
from form import WHOLE, measured, sized

from robustbench_kpca import load_data
from robustbench_kpca.cli.main import main

SMALL = ("JapaneseVowels",)


@pytest.mark.parametrize("name", sequences.UEA if WHOLE else SMALL)
def test_problems_of_the_archive_are_read_trained_on_and_evaluated(name, tmp_path, types_unchecked):
    """Each part has its number of series; a step of `primal_waves` on them is taken, and evaluated."""
    problem, folder = sequences.UEA[name], sequences.write_problem(tmp_path, name)
    with measured(f"uea {name}: read", problem.train + problem.test):
        parts = {split: load_data(f"uea:{folder}", split) for split in ("train", "val", "test")}
    assert len(parts["test"]) == problem.test
    assert len(parts["train"]) + len(parts["val"]) == problem.train
    assert parts["test"].classes == problem.classes
    assert parts["test"].image(0).shape == (problem.dimensions, 1, problem.length)
    shape = {"channels": problem.dimensions, "length": problem.length, "num_classes": problem.classes}
    shape["patch_size"] = 4 if problem.length % 4 == 0 else 1
    words = ["train", "primal_waves", "--data", str(folder), "-o", str(tmp_path / "runs"), "-q"]
    changes = ["data=uea", "epochs=1", "batch_size=16", *(f"model_options.{key}={of}" for key, of in shape.items())]
    with measured(f"uea {name}: an epoch of primal_waves", problem.train):
        assert main([*words, *(word for change in changes for word in ("--set", change))]) == 0
    (weights,) = (tmp_path / "runs").rglob("*.safetensors")
    words = ["eval", "-m", "primal_seq_waves", "--checkpoint", str(weights), "-p", "clean", "--audit", "none", "-q"]
    options = [word for key, of in shape.items() for word in ("--set", f"model.{key}={of}")]
    assert main([*words, *options, "--data", f"uea:{folder}", "--device", "cpu", "-o", str(tmp_path / "out")]) == 0


WRITERS = {
    "bytes": (sequences.write_texts, sequences.TEXT, 4096, 2),
    "retrieval": (sequences.write_pairs, sequences.PAIRS, 8192, 2),
    "pathfinder": (sequences.link_paths, {"train": 160_000, "val": 20_000, "test": 20_000}, 1024, 2),
    "pixels": (sequences.write_pictures, sequences.PICTURES, 1024, 10),
    "listops": (sequences.ask_for_lists, sequences.LISTS, 2000, 10),
}
"""Set -> what writes its files, numbers of its parts, tokens of a row, and classes."""


@pytest.mark.parametrize("name", WRITERS)
def test_the_arenas_files_are_read(name, tmp_path):
    write, numbers, tokens, classes = WRITERS[name]
    share = sized(0.02, 1.0)
    folder = write(tmp_path / "data", share)
    for split, number in numbers.items():
        with measured(f"{name}: {split} read", round(share * number)):
            data = load_data(f"{name}:{folder}", split.replace("eval", "val"))
        assert (len(data), data.classes, data.image(0).shape) == (round(share * number), classes, (1, 1, tokens))


@pytest.mark.skipif(not WHOLE, reason="minutes")
@pytest.mark.parametrize(
    ("name", "share"), [("bytes", 0.001), ("retrieval", 0.0002), ("pathfinder", 0.005), ("pixels", 0.02)]
)
def test_an_epoch_of_the_arenas_recipes(name, share, tmp_path, types_unchecked):
    """Rows of the published length, of a training part of 22 texts, 29 pairs, 800 paths or 950 pictures."""
    folder = WRITERS[name][0](tmp_path / "data", share)
    words = ["train", f"primal_{name}_paper", "--data", str(folder), "-o", str(tmp_path / "runs"), "-q"]
    few = ["epochs=1", "warmup_epochs=0", "batch_size=4"]
    with measured(f"primal_{name}_paper: an epoch of few rows", round(share * WRITERS[name][1]["train"])):
        assert main([*words, *(word for change in few for word in ("--set", change))]) == 0
    assert list((tmp_path / "runs").rglob("*.safetensors"))
