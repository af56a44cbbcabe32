"""Folders with the names, labels and numbers of the real sets: what readers, plans and records make of them.

All files of a tree are links to 96 pictures (`trees.py`), so nothing is evaluated here.
"""

from collections import Counter

import pytest
import trees
from form import SHARE, WHOLE, measured, sized

from robustbench_kpca import load_data
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.imagenet_classes import imagenet_classes
from robustbench_kpca.data.sets.wikitext103 import VOCABULARY, WORDS

SETS = {
    ("imagenet", "val"): (50_000, 1000),
    ("imagenet", "train"): (1_281_167, 1000),
    ("imagenet", "imagenet-o"): (10_000, 200),
    ("imagenet-a", "test"): (7_500, 200),
    ("imagenet-o", "test"): (2_000, 200),
    ("imagenet-r", "test"): (30_000, 200),
    ("imagenet-v2", "test"): (10_000, 1000),
    ("imagenet-sketch", "test"): (50_889, 1000),
    ("imagenet-c", "val"): (50_000, 1000),
    ("ade20k", "val"): (2_000, 150),
    ("ade20k", "train"): (20_210, 150),
}
"""Numbers of images and classes as published."""
REDUCED = {("imagenet", "train"), ("imagenet-c", "val")}
"""Sets of which the short form has a share of the files."""


@pytest.mark.parametrize(("name", "split"), SETS)
def test_sets_are_listed_whole(name, split, root):
    published, classes = SETS[name, split]
    files = published if WHOLE or (name, split) not in REDUCED else round(SHARE * published)
    with measured(f"{name} {split}: listed", files * (75 if name == "imagenet-c" else 1)):
        data = load_data(f"{name}:{root / name}", split)
    assert data.expected == published
    assert not data.notes
    assert len(data) == pytest.approx(files, rel=0 if files == published else 0.1)
    if name != "ade20k":
        assert len(set(data.strata)) == classes
    few = data.spread(classes)
    if len(set(Counter(data.strata).values())) == 1 and name != "ade20k":
        assert len(set(few.strata)) == classes, "classes of one size: a limit takes one image of each"
    assert few.in_order().ids == sorted(few.ids, key=lambda key: (len(key), key))


def test_contents_are_read_whole(root):
    """The digest reads each file: 3.75 million of ImageNet-C."""
    for name in ("imagenet", "imagenet-c"):
        data = load_data(f"{name}:{root / name}")
        with measured(f"{name}: digest", len(data) * (75 if name == "imagenet-c" else 1)):
            assert len(data.digest()) == 64


def test_known_labels_are_those_of_the_real_set(root):
    """The first validation images of Caffe's list; RobustBench's 5,000 are checked by the reader."""
    if trees.meta("ilsvrc2012_val_labels.txt.gz") is None:
        pytest.skip("RBK_DATA has no imagenet_meta")
    data = load_data(f"imagenet:{root / 'imagenet'}")
    label = {key.rpartition("/")[2]: number for key, number in zip(data.ids, data.labels, strict=True)}
    first = [label[f"ILSVRC2012_val_{number:08d}.JPEG"] for number in range(1, 6)]
    assert first == [65, 970, 230, 809, 516]
    collection = load_data(f"imagenet:{root / 'imagenet'}", "imagenet-a")
    assert set(collection.labels) == set(imagenet_classes("imagenet-a"))


@pytest.mark.parametrize(
    ("pack", "sets"),
    [
        ("teo2024", ("imagenet", "imagenet-a", "imagenet-c", "imagenet-o", "imagenet-r", "ade20k", "wikitext103")),
        ("chen2023", ("imagenet", "wikitext103")),
        ("saritas2025", ("imagenet",)),
    ],
)
def test_every_step_of_a_pack_is_planned(pack, sets, root, tmp_path, capsys):
    if "wikitext103" in sets:
        trees.write_words(tmp_path, 0.003)
    given = [f"--data={name}:{(tmp_path if name == 'wikitext103' else root) / name}" for name in sets]
    with measured(f"{pack}: plan at the paper's scale", 50_000):
        assert main(["reproduce", pack, "--plan", "--scale", "paper", "-o", str(tmp_path / "out"), *given]) == 0
    assert "no folder" not in capsys.readouterr().out


def test_a_text_of_true_size_has_the_published_vocabulary(tmp_path):
    share = sized(0.003, 1.0)
    trees.write_words(tmp_path, share)
    with measured("wikitext103: read", round(share * WORDS["train"])):
        data = load_data(f"wikitext103:{tmp_path / 'wikitext103'}", "test")
    assert (data.name, data.classes) == ("wikitext103", VOCABULARY)
    assert abs(len(data.stream) - share * WORDS["test"]) < 10


@pytest.mark.skipif(not WHOLE, reason="half a minute and 5 GB")
def test_the_papers_language_model_trains_on_the_whole_vocabulary(tmp_path, types_unchecked):
    """Two steps of two windows: 16 layers, 267,735 words, and a mask that the pursuit keeps."""
    trees.write_words(tmp_path, 0.003)
    few = ["batch_size=2", "epochs=1", "warmup_epochs=0", "text.per_epoch=4", "text.scored_words=257"]
    words = ["train", "rpc_lm_paper", "--data", str(tmp_path / "wikitext103"), "-o", str(tmp_path / "runs"), "-q"]
    with measured("rpc_lm_paper: two steps of two windows", VOCABULARY):
        assert main([*words, *(word for change in few for word in ("--set", change))]) == 0
    assert list((tmp_path / "runs").rglob("*.safetensors"))
