"""Classes of data and model are matched by name, WordNet id or number, or the run is refused."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from robustbench_kpca import evaluate
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.given import as_dataset, with_classes
from robustbench_kpca.data.imagenet_classes import imagenet_classes, imagenet_wnids, imagenet_words, is_imagenet
from robustbench_kpca.data.load import load_data
from robustbench_kpca.data.pair import Pair
from robustbench_kpca.data.request import View
from robustbench_kpca.evaluation.command import parse
from robustbench_kpca.records.record import find_records, load_record
from robustbench_kpca.tasks.classification.classes import UNLIKELY, match_classes, probability_of_lower

TENCH, GOLDFISH, CRANE_BIRD = "n01440764", "n01443537", "n02012849"
VIEW = View(8, 1.0)


class Hue(nn.Module):
    """Class k of `classes` where the picture is brightest in red at level k / classes: its answers are known."""

    def __init__(self, classes, names=None):
        super().__init__()
        self.levels = nn.Parameter(torch.linspace(0, 1, classes))
        self.class_names = names
        self.eval()

    def forward(self, x):
        return -50 * (x[:, 0].mean((1, 2))[:, None] - self.levels) ** 2


def folder(root, levels, size=8):
    """One picture a class, of one red level each."""
    for name, level in levels.items():
        pixels = np.zeros((size, size, 3), np.uint8)
        pixels[..., 0] = round(255 * level)
        (root / name).mkdir(parents=True)
        Image.fromarray(pixels).save(root / name / "0.png")
    return str(root)


def test_folders_are_matched_by_name_whatever_the_order(tmp_path):
    """The numbers of the model are in another order than the folders."""
    data = load_data(folder(tmp_path / "pets", {"cat": 0.5, "dog_house": 1.0}), view=VIEW)
    names = ["Bird", "cat, domestic cat", "Dog House"]
    made, how = match_classes(data, 3, names)
    assert made.labels == [1, 2]
    assert (made.classes, made.class_names) == (3, tuple(names))
    assert how == "2 of 3 classes, by name (cat is 1, dog_house is 2)"
    record = evaluate(Hue(3, names), data, protocol="clean")
    assert record.metrics["clean_accuracy"].value == 1.0
    assert record.outcomes["label"].tolist() == [1, 2]
    assert record.spec.data.matched == how
    again, same = match_classes(made, 3, names)
    assert again is made
    assert same.startswith(("2 of 3", "3 of 3"))


@pytest.mark.parametrize(
    ("levels", "classes", "names", "message"),
    [
        ({"cat": 0, "dog": 1}, 10, None, "10 classes, but data 'pets' has 2"),
        ({"cat": 0, "cow": 1}, 3, ["bird", "cat", "dog"], r"1 classes of data 'pets' \(cow\)"),
        ({"cat": 0, "dog": 1}, 3, ["cat", "dog", "cat"], r"1 classes of data 'pets' \(cat\)"),
        ({"cat": 0, "kitty": 1}, 2, ["cat, kitty", "dog"], "two classes"),
        ({"ant": 0, "cat": 1, "kitty": 1}, 3, ["ant", "cat, kitty", "dog"], r"two classes .*\(cat, kitty\)"),
    ],
)
def test_classes_that_do_not_match_are_refused(tmp_path, levels, classes, names, message):
    data = load_data(folder(tmp_path / "pets", levels), view=VIEW)
    with pytest.raises(BadInputError, match=message):
        evaluate(Hue(classes, names), data, protocol="clean", out=tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("*record*"))


def test_wordnet_ids_are_imagenets_numbers_or_an_order(tmp_path):
    data = load_data(folder(tmp_path / "some", {CRANE_BIRD: 0.1, GOLDFISH: 0.2, TENCH: 0.3}), view=VIEW)
    wnids = imagenet_wnids()
    index = [wnids.index(name) for name in sorted((CRANE_BIRD, GOLDFISH, TENCH))]
    assert data.labels == index
    for names in (None, wnids, [imagenet_words()[name][0] for name in wnids]):
        made, how = match_classes(data, 1000, names)
        assert made.labels == index
        assert "1000 classes, by number" in how
    made, how = match_classes(data, 3, None)
    assert (made.labels, made.classes) == ([0, 1, 2], 3)
    assert how == "3 classes, by the order of their WordNet ids"
    assert match_classes(data.take([2]), 3, None)[0].labels == [2], "a part counts the classes of the whole folder"
    made, _ = match_classes(data, 4, ["crane", "goldfish", "tench, Tinca tinca", "cat"])
    assert sorted(zip(made.ids, made.labels, strict=True)) == [
        (f"{TENCH}/0.png", 2), (f"{GOLDFISH}/0.png", 1), (f"{CRANE_BIRD}/0.png", 0)
    ]  # fmt: skip
    with pytest.raises(BadInputError, match="4 classes, but data 'some' has 1000"):
        match_classes(data, 4, None)


def test_ten_folders_are_not_ten_digits(tmp_path):
    from robustbench_kpca import load_model

    model = load_model("vit_digits")
    for names in (imagenet_wnids()[:10], [f"class{i}" for i in range(10)]):
        data = load_data(folder(tmp_path / names[0], dict.fromkeys(names, 0.5), size=32), view=View(32, 1.0))
        with pytest.raises(BadInputError, match="10 classes of data"):
            evaluate(model, data, protocol="clean")
    data = load_data(folder(tmp_path / "some-digits", dict.fromkeys("379", 0.5), size=32), view=View(32, 1.0))
    assert evaluate(model, data, protocol="clean").outcomes["label"].tolist() == [3, 7, 9]


def test_lists_of_imagenets_names():
    import torchvision

    categories = torchvision.models.ResNet18_Weights.DEFAULT.meta["categories"]
    assert is_imagenet(categories)
    assert is_imagenet(imagenet_wnids())
    assert not is_imagenet(categories[::-1])
    assert not is_imagenet(categories[:-1])


OF_O = imagenet_classes("imagenet-o")  # 200 of the 1,000, up to 996


def labelled(numbers, **how):
    return as_dataset(np.broadcast_to(np.uint8(0), (len(numbers), 1, 1, 3)), numbers, **how)


@pytest.mark.parametrize(
    ("some", "classes", "fits"),
    [
        (range(1000), 1000, (True, True, True)),
        (OF_O, 1000, (True, True, True)),
        (range(1, 10), 1000, (False, False, False)),  # not even all ten
        (range(1000), 1001, (True, True, False)),  # a model with a class for the background
        (range(5), 10, (True, False, False)),
    ],
)
def test_labels_alone_are_of_a_model_by_their_classes_however_many_they_are(some, classes, fits):
    for count, fine in zip((10, 10_000, 1_000_000), fits, strict=True):
        spread = np.random.default_rng(0).choice(list(some), count).tolist()
        assert (probability_of_lower(spread, classes) > UNLIKELY) == fine


def test_labels_alone_may_be_few_and_attacks_see_those_of_the_model(tmp_path):
    assert match_classes(labelled([0, 4, 6]), 10, None)[1] == "labels up to 6 of 10 classes, by number"
    many = labelled([i % 10 for i in range(40)])
    with pytest.raises(BadInputError, match="40 labels of data 'images' go up to 9, but the model has 1000"):
        match_classes(many, 1000, None)
    assert match_classes(with_classes(many, 1000), 1000, None)[0]
    with pytest.raises(BadInputError, match="has the label 9"):
        match_classes(many, 9, None)
    data = load_data(folder(tmp_path / "pets", {"cat": 0.0, "dog": 1.0}), view=VIEW)
    record = evaluate(Hue(2, ("dog", "cat")), data, protocol="fgsm-linf-8_255", audit=False)
    assert record.outcomes["broken_by"].tolist() == ["clean", "clean"]
    assert record.outcomes["label"].tolist() == [1, 0]


def test_a_pair_is_matched_by_its_known_set_which_knows_its_classes():
    """ImageNet-O beside 10,000 validation images: a statistic of labels up to 996 refused them."""
    labels = np.resize(OF_O, 10_000).tolist()
    known, unknown = labelled(labels, classes=1000, name="imagenet"), labelled([0, 0], name="others")
    known.fingerprint = unknown.fingerprint = lambda index: str(index)
    unknown.ids = ["a", "b"]
    pair = Pair(known, unknown).in_order()
    assert match_classes(pair, 1000, None)[1].startswith("1000 classes, by number")
    with pytest.raises(BadInputError, match="10 classes, but data 'imagenet' has 1000"):
        match_classes(pair, 10, None)
    few = Pair(labelled([i % 10 for i in range(40)], name="few"), unknown)
    with pytest.raises(BadInputError, match="--classes 1000"):
        match_classes(few, 1000, None)
    assert match_classes(with_classes(few, 1000), 1000, None)[1].startswith("1000 classes, by number")


def test_a_plan_refuses_what_the_evaluation_would_and_the_option_repairs_both(tmp_path, capsys, few_resamples):
    (tmp_path / "net.py").write_text(
        "import torch\ndef make():\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 1000)).eval()\n"
    )
    for number in range(20):
        Image.new("RGB", (4, 4), (9 * number, 0, 0)).save(tmp_path / f"{number}.png")
    rows = "".join(f"{number}.png,{number % 2}\n" for number in range(20))
    (tmp_path / "labels.csv").write_text(f"file,label\n{rows}")
    out = tmp_path / "runs"
    words = ["eval", "-m", f"{tmp_path}/net.py:make", "--data", str(tmp_path), "-p", "clean", "-o", str(out), "-q"]
    for plan in (["--plan"], []):
        assert main([*words, *plan]) == 2
        assert "20 labels" in capsys.readouterr().err
        assert not main([*words, *plan, "--classes", "1000"])
    (made,) = map(load_record, find_records(out))
    assert parse(made.command).data.classes == made.spec.data.classes == 1000


def test_models_that_number_classes_differently_share_one_run(tmp_path):
    data = load_data(folder(tmp_path / "pets", {"cat": 0.0, "dog": 1.0}), view=VIEW).in_order()
    models = {f"m{i}": Hue(2, names) for i, names in enumerate((("cat", "dog"), ("dog", "cat"), None))}
    made = evaluate(models, data, protocol="clean", out=tmp_path / "runs")
    assert [record.metrics["clean_accuracy"].value for record in made] == [1.0, 0.0, 1.0]
    assert [record.spec.data.matched for record in made] == [
        "2 of 2 classes, by name (cat is 0, dog is 1)", "2 of 2 classes, by name (cat is 1, dog is 0)",
        "2 classes, in the order of their names (cat is 0, dog is 1)",
    ]  # fmt: skip
    stored = [load_record(path) for path in sorted((tmp_path / "runs").glob("*.record.json"))]
    assert {record.spec.data.matched for record in stored} == {record.spec.data.matched for record in made}
    again = evaluate(models, data, protocol="clean", out=tmp_path / "runs")
    assert [record.created for record in again] == [record.created for record in made]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,class\n0.png,1\n", r"labels.csv has the columns image, class; expected file and label"),
        ("file,label\n0.png,cat\n1.png,3\n", "line 3 .*label 3"),
        ("file,label\n../0.png,1\n", "paths inside"),
        ("file,label\n0.png,3.0\n1.png,7.0\n", r"line 2 .*label 3\.0; expected whole numbers"),
        ("file,label\n0.png,3\n./0.png,3\n", "2 ids, 1 of them different"),
    ],
)
def test_tables_of_labels_that_cannot_be_used(tmp_path, text, message):
    for number in range(2):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(BadInputError, match=message):
        load_data(str(tmp_path))


def test_tables_of_numbers_and_of_names(tmp_path):
    for number in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    (tmp_path / "labels.csv").write_text("file, label\n0.png, dog\n1.png, cat\n2.png, dog\n")
    data = load_data(str(tmp_path), view=VIEW)
    assert (data.labels, data.class_names, data.classes) == ([1, 0, 1], ("cat", "dog"), 2)
    (tmp_path / "labels.csv").write_text("file,label\n0.png,class10\n1.png,Class2\n2.png,class1\n")
    data = load_data(str(tmp_path))
    assert (data.labels, data.class_names) == ([2, 1, 0], ("class1", "Class2", "class10")), "in natural order"
    (tmp_path / "labels.csv").write_text(f"file,label\n0.png,{GOLDFISH}\n1.png,{TENCH}\n")
    assert load_data(str(tmp_path), view=VIEW).labels == [1, 0]
    (tmp_path / "labels.csv").write_text("file,label\n0.png,5\n1.png,2\n")
    data = load_data(str(tmp_path), view=VIEW)
    assert (data.labels, data.counted) == ([5, 2], True)


def test_a_flat_folder_is_of_unknown_classes(tmp_path):
    for number in range(2):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    data = load_data(str(tmp_path), view=VIEW)
    assert (len(data), data.classes) == (2, 0)
    with pytest.raises(BadInputError, match=r"no labels.*--against"):
        evaluate(Hue(2), data, protocol="clean")
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "cat" / "0.png")
    with pytest.raises(BadInputError, match="2 images beside its class folders"):
        load_data(str(tmp_path), view=VIEW)
