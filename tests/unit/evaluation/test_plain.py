"""What needs forward passes only: made once for all models, the same whoever makes it, resumed where it stopped."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from robustbench_kpca import evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca._engine.inference.runner import Runner
from robustbench_kpca.corruptions import Cell
from robustbench_kpca.data.given import as_dataset
from robustbench_kpca.data.imagenet_classes import imagenet_classes
from robustbench_kpca.data.pair import Pair
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.records.record import find_records
from robustbench_kpca.tasks import task_named

pytestmark = pytest.mark.usefixtures("few_resamples")
GRID = {"corruptions": ["gaussian_noise", "glass_blur", "snow"], "severities": [1, 5]}
BEFORE, AFTER = 1, 1  # passes over the first batch that show whether the model repeats itself
CHECKS = BEFORE + AFTER


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", limit=50)


def shown_images(samples, cell, storage, *, batch_size, workers=0):
    fields = {"corruptions": [cell.corruption], "severities": [cell.severity], "storage": storage, "clean": False}
    protocol = load_scenario("common-corruptions-32px", fields)[1]
    found = task_named("classification").compute.shown(
        samples, protocol, range(len(samples)), batch_size=batch_size, workers=workers, seed=cell.seed,
        frost=cell.frost,
    )  # fmt: skip
    return torch.cat([images for _, (images, _) in found])


class Counted(nn.Module):
    """Ten classes by brightness in ten places; counts its calls, and can be told to fail at one."""

    def __init__(self, fail_at=None):
        super().__init__()
        self.calls, self.fail_at = 0, fail_at
        self.register_buffer("weight", torch.randn(3 * 32 * 32, 10, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        self.calls += 1
        if self.calls == self.fail_at:
            raise KeyboardInterrupt
        return x.flatten(1) @ self.weight


def test_together_is_the_same_as_one_by_one(digits, tmp_path):
    models = {name: load_model(name) for name in ("vit_digits", "rpc_symvit_digits_adv")}
    how = {"protocol": "common-corruptions-32px", **GRID}
    both = evaluate(models, digits, source="here", **how, out=tmp_path / "both")
    assert [record.spec.model.name for record in both] == list(models)
    assert both[0].spec.model.source == "here"
    for record, (name, model) in zip(both, models.items(), strict=True):
        alone = evaluate(model, digits, name=name, **how, audit=False)
        assert record.outcomes.to_csv() == alone.outcomes.to_csv()
        assert record.metrics == alone.metrics
    kept = evaluate(models, digits, source="here", **how, out=tmp_path / "both")
    assert [record.created for record in kept] == [record.created for record in both]


def test_a_model_that_joins_later_is_the_only_one_to_be_asked(digits, tmp_path):
    first, second = Counted().eval(), Counted().eval()
    how = {"protocol": "common-corruptions-32px", "out": tmp_path, **GRID}
    evaluate({"first": first}, digits, **how)
    before = first.calls
    evaluate({"first": first, "second": second}, digits, **how)
    assert first.calls == before + 1, "the probe that identifies it"
    assert second.calls == 1 + CHECKS + 6  # the probe, the first batch again, and the batches that 7 x 50 rows fill


@pytest.mark.parametrize("kind", ["fast", "jpeg"])
def test_the_same_bytes_for_any_workers_batch_size_and_subset(kind, digits):
    """Every corruption of the engine, drawn in one process or two, in batches of any size, whole or in part."""
    from robustbench_kpca.corruptions import CORRUPTIONS

    storage = "jpeg-q85" if kind == "jpeg" else "none"
    some = digits.take(range(12))
    for name in CORRUPTIONS.names() if kind == "fast" else ["gaussian_noise"]:
        cell = Cell(corruption=name, severity=4, profile="cifar_c", mode="fast", seed=3)

        def shown(samples, workers, batch_size, cell=cell):
            return shown_images(samples, cell, storage, batch_size=batch_size, workers=workers)

        one = shown(some, 0, 12)
        assert torch.equal(shown(some, 0, 5), one)
        assert torch.equal(shown(some.take(range(4, 9)), 0, 2), one[4:9])
        if kind == "jpeg" or name in ("glass_blur", "snow", "frost"):
            assert torch.equal(shown(some, 1, 12), one)
            assert torch.equal(shown(some, 2, 5), one)
    clean = torch.stack([torch.from_numpy(some.image(i)).permute(2, 0, 1) / 255 for i in range(12)])
    assert (one - clean).abs().mean() > 0.01


def test_an_interrupted_grid_goes_on_where_it_stopped(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(Journal, "due", lambda self: True)
    how = {"protocol": "common-corruptions-32px", "batch_size": 20, "name": "m", "out": tmp_path, **GRID}
    whole = evaluate(Counted().eval(), digits, **{**how, "out": None}, audit=False)
    with pytest.raises(KeyboardInterrupt):
        evaluate(Counted(fail_at=12).eval(), digits, **how, audit=False)
    assert not list(tmp_path.glob("*.json"))
    model = Counted().eval()
    resumed = evaluate(model, digits, **how, audit=False)
    assert resumed.outcomes.to_csv() == whole.outcomes.to_csv()
    assert model.calls == 1 + CHECKS + 18 - 10  # the probe, the first batch again, and batches not answered before
    assert [path.name for path in find_records(tmp_path)] == [f"{resumed.spec.stem()}.record.json"]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("batch_size", [5, 64])
def test_rows_of_several_cells_fill_one_batch_and_answer_as_each_cell_alone(batch_size, digits):
    """The other way: each cell by itself, its last batch padded. Rows come out equal to the bit."""
    few, model = digits.take(range(8)), load_model("symvit_digits")
    sizes = []
    model.register_forward_hook(lambda module, inputs, logits: sizes.append(len(inputs[0])))
    found = evaluate(model, few, protocol="common-corruptions-32px", **GRID, batch_size=batch_size, audit=False)
    apart = batch_size > 8  # else the first batch of the grid identifies the model
    assert sizes == ([64, 8, 64, 64, 8] if apart else [batch_size] * (CHECKS + math.ceil(7 * 8 / batch_size)))
    runner, labels = Runner(model, batch_size, torch.device("cpu")), np.array(few.labels)
    places = [(name, severity) for name in GRID["corruptions"] for severity in GRID["severities"]]
    cells = [Cell(corruption=name, severity=at, profile="cifar_c", mode="fast", seed=0) for name, at in places]
    images = [few.tensors()[0], *(shown_images(few, cell, "none", batch_size=8) for cell in cells)]
    for at, (cell, (name, severity)) in enumerate(zip(images, [("none", 0), *places], strict=True)):
        logits = runner.logits(cell).numpy()
        rows = found.outcomes.where(np.arange(56) // 8 == at)
        assert (set(rows["corruption"]), set(rows["severity"])) == ({name}, {severity})
        assert rows["prediction"].tolist() == logits.argmax(1).tolist()
        order = np.argsort(-logits, axis=1, kind="stable")
        assert rows["rank"].tolist() == (order == labels[:, None]).argmax(1).tolist()


def test_models_that_stopped_at_different_rows_go_on_together(digits, tmp_path, monkeypatch):
    """Each stopped after whole batches of 16, which cells of 10 images do not divide."""
    draws = 2
    monkeypatch.setattr(Journal, "due", lambda self: True)
    few = digits.take(range(10))
    how = {"protocol": "common-corruptions-32px", "batch_size": 16, "draws": draws, **GRID}
    whole = evaluate(Counted().eval(), few, **how, audit=False)
    for name, batches in (("early", 1), ("late", 3)):
        with pytest.raises(KeyboardInterrupt):
            evaluate(
                Counted(1 + draws * (1 + BEFORE + batches)).eval(), few, name=name, **how, out=tmp_path, audit=False
            )
    models = {name: Counted().eval() for name in ("early", "late", "new")}
    for record in evaluate(models, few, **how, out=tmp_path):
        assert record.outcomes.to_csv() == whole.outcomes.to_csv()
    assert [model.calls for model in models.values()] == [draws * (1 + BEFORE + 5 - done + AFTER) for done in (1, 3, 0)]


class Thousand(nn.Module):
    """1,000 classes; pixel i of the first channel is the logit of class i, where there are so many pixels."""

    def forward(self, x):
        return 10 * x[:, 0].flatten(1)[:, :1000]


def thousand_pixels(*rows):
    """Images whose logits are 0 but at the classes given: {class: value}."""
    images = torch.zeros(len(rows), 3, 32, 32)
    for image, row in zip(images, rows, strict=True):
        for label, value in row.items():
            image[0].view(-1)[label] = value
    return images


def test_masks_leave_other_classes_out():
    known = imagenet_classes("imagenet-a")
    inside, outside = known[3], next(label for label in range(1000) if label not in known)
    images = thousand_pixels({inside: 0.5, outside: 0.9}, {inside: 0.9}, {known[4]: 0.9, inside: 0.5})
    record = evaluate(Thousand().eval(), images, torch.tensor([inside] * 3), protocol="imagenet-a", audit=False)
    assert record.outcomes["prediction"].tolist() == [inside, inside, known[4]]
    assert record.outcomes["unmasked_prediction"].tolist() == [outside, inside, known[4]]
    assert record.metrics["shift_accuracy"].value == pytest.approx(2 / 3)
    assert record.metrics["top5_accuracy"].value == 1
    among = np.exp(9) / (np.exp(9) + 199)  # 200 classes in the softmax, not 1,000
    assert record.outcomes["confidence"][1] == pytest.approx(among)
    with pytest.raises(BadInputError, match=f"label {outside}.*'imagenet-a'"):
        evaluate(Thousand().eval(), images, torch.tensor([outside] * 3), protocol="imagenet-a", audit=False)
    with pytest.raises(BadInputError, match=r"200 .*10 classes"):
        evaluate(Counted().eval(), images, torch.tensor([6] * 3), protocol="imagenet-a", audit=False)


def test_unknown_images_are_ranked_by_what_the_model_is_sure_of():
    known = as_dataset(thousand_pixels({1: 0.9}, {2: 0.5}, {3: 0.3}), torch.tensor([1, 2, 3]), name="known")
    unknown = as_dataset(thousand_pixels({1: 0.4}, {2: 0.1}), torch.tensor([0, 0]), name="unknown")
    record = evaluate(Thousand().eval(), Pair(known, unknown), protocol="ood", audit=False)
    assert record.spec.data.name == "known-against-unknown"
    assert sorted(record.outcomes["label"].tolist()) == [0, 0, 0, 1, 1]
    # least sure first: unknown, known, unknown, known, known
    assert record.metrics["aupr"].value == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert record.metrics["auroc"].value == pytest.approx(5 / 6)
    assert record.outcomes["max_logit"].tolist() == pytest.approx([9, 5, 3, 4, 1])
    np.testing.assert_allclose(
        record.outcomes["max_log_softmax"], record.outcomes["max_logit"] - record.outcomes["log_sum_exp"], atol=1e-6
    )
    assert not {"clean_accuracy", "shift_accuracy"} & set(record.metrics)


def test_data_and_protocol_must_fit(digits):
    model = load_model("vit_digits")
    photos = load_data("photos", limit=10)
    with pytest.raises(BadInputError, match="two data sets"):
        evaluate(model, digits, protocol="ood", audit=False)
    with pytest.raises(BadInputError, match="two data sets"):
        evaluate(model, Pair(digits, photos), protocol="clean", audit=False)
    with pytest.raises(BadInputError, match="has no labels"):
        evaluate(model, photos, protocol="clean", audit=False)
    with pytest.raises(BadInputError, match="stored"):
        evaluate(model, digits, protocol="cifar10-c", audit=False)


def test_alexnets_errors_are_for_imagenet_at_224_pixels(digits):
    with pytest.raises(BadInputError, match=r"32 x 32 .*'alexnet'.*224 x 224"):
        evaluate(load_model("vit_digits"), digits, protocol="imagenet-c-generated", audit=False)


def test_the_jpeg_step_is_taken_where_the_protocol_says_so(digits):
    model = Counted().eval()
    how = {"protocol": "common-corruptions-32px", "corruptions": ["gaussian_noise"], "severities": [5]}
    bare, stored = (evaluate(model, digits, storage=storage, **how, audit=False) for storage in ("none", "jpeg-q85"))
    cell = Cell(corruption="gaussian_noise", severity=5, profile="cifar_c", mode="fast", seed=0)
    for record, storage in ((bare, "none"), (stored, "jpeg-q85")):
        samples = digits.in_order()
        images = shown_images(samples, cell, storage, batch_size=50)
        with torch.no_grad():
            predicted = model(images).argmax(1).tolist()
        assert record.outcomes["prediction"][len(digits) :].tolist() == predicted
    assert bare.outcomes.digest() != stored.outcomes.digest()


def test_unknown_images_are_scored_among_the_classes_asked_for():
    known_class = imagenet_classes("imagenet-o")[0]
    other = next(label for label in range(1000) if label not in imagenet_classes("imagenet-o"))
    known = as_dataset(thousand_pixels({known_class: 0.5}, {known_class: 0.4}), torch.tensor([known_class] * 2))
    unknown = as_dataset(thousand_pixels({other: 0.9}), torch.tensor([0]), name="unknown")
    record = evaluate(Thousand().eval(), Pair(known, unknown), protocol="imagenet-o", audit=False)
    assert record.outcomes["max_logit"].tolist() == pytest.approx([5, 4, 0])  # class `other` is not among the 200
    assert record.metrics["aupr"].value == 1
    assert record.spec.data.known == 2
    stray = as_dataset(thousand_pixels({other: 0.5}), torch.tensor([other]))
    with pytest.raises(BadInputError, match=f"label {other}.*'imagenet-o'"):
        evaluate(Thousand().eval(), Pair(stray, unknown), protocol="imagenet-o", audit=False)


def test_frost_comes_from_where_the_protocol_says(digits, frost_folder):
    model, how = Counted().eval(), {"protocol": "common-corruptions-32px", "corruptions": ["frost"], "severities": [3]}
    own = evaluate(model, digits, **how, audit=False)
    theirs = evaluate(model, digits, frost="original", frost_folder=frost_folder, **how, audit=False)
    assert own.outcomes.digest() != theirs.outcomes.digest()
    assert theirs.spec.protocol.resolved["frost"] == "original"
    with pytest.raises(BadInputError, match="frost = 'original'"):
        evaluate(model, digits, frost="original", **how, audit=False)
    with pytest.raises(BadInputError, match="frost = 'original'"):
        evaluate(model, digits, frost_folder=frost_folder, **how, audit=False)
    fog = how | {"corruptions": ["fog"], "frost": "original"}
    with pytest.raises(BadInputError, match="with the corruption 'frost', or leave out the folder"):
        evaluate(model, digits, frost_folder=frost_folder, **fog, audit=False)
    assert evaluate(model, digits, **fog, audit=False).spec.data.n == len(digits)


def test_a_sick_model_is_named_and_the_others_keep_what_they_answered(digits, tmp_path):
    class Sick(Counted):
        def forward(self, x):
            out = super().forward(x)
            return out * torch.nan if self.calls > 3 + BEFORE else out

    how = {"protocol": "common-corruptions-32px", "batch_size": 50, "out": tmp_path, **GRID}
    with pytest.raises(BadInputError, match=r"'sick'.*NaN"):
        evaluate({"well": Counted().eval(), "sick": Sick().eval()}, digits, **how)
    model = Counted().eval()
    evaluate(model, digits, name="well", **how, audit=False)
    assert model.calls == 1 + CHECKS + 7 - 4


def test_memory_that_ran_out_is_flagged_after_a_resumption_too(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(Journal, "due", lambda self: True)

    class Small(Counted):
        most = 8

        def forward(self, x):
            if len(x) > self.most and self.calls > 1:
                raise torch.OutOfMemoryError("out of memory")
            return super().forward(x)

    how = {"protocol": "common-corruptions-32px", "batch_size": 16, "name": "m", "out": tmp_path, **GRID}
    with pytest.raises(KeyboardInterrupt):
        evaluate(Small(fail_at=12).eval(), digits, **how, audit=False)
    again = Small().eval()
    again.most = 16
    resumed = evaluate(again, digits, **how, audit=False)
    assert resumed.flags[-1] == "memory ran out at batch size 16: it went on with 8"
