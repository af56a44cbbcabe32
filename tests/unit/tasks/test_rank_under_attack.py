"""The rank of the true label on the image that decides, against numpy's argsort of the model's logits on that image."""

import json

import attack_checks
import numpy as np
import pytest
import torch
from attack_checks import Counting
from board_pages import board_text
from torch import nn

from robustbench_kpca import attack, evaluate
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.inference.journal import Journal
from robustbench_kpca.report.matching import load_board

CLASSES, COUNT, TOP = 12, 24, 5
WHOLE = {"policy": "last", "labels": "true_for_all"}


@pytest.fixture(scope="module")
def known():
    """A network of twelve classes, images, and labels of which every fourth is wrong when clean."""
    drawn = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 24), nn.Tanh(), nn.Linear(24, CLASSES)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=drawn) / 3)
    images = torch.rand(COUNT, 3, 4, 4, generator=drawn)
    with torch.no_grad():
        labels = model(images).argsort(1, descending=True)[:, 0]
        labels[::4] = model(images[::4]).argsort(1, descending=True)[torch.arange(6), torch.tensor([1, 2, 4, 5, 7, 11])]
    return model, images, labels


def ranks_of(model, images, labels):
    with torch.no_grad():
        order = np.argsort(-model(images).numpy(), axis=1, kind="stable")
    return (order == labels.numpy()[:, None]).argmax(1)


PGD = {"attack": "pgd", "restarts": 2, "steps": 6, "step_size": "0.3 eps", "random_start": True}
SQUARE = {"attack": "square", "restarts": 1, "queries": 40, "p_init": 0.8}
APGD = {"attack": "apgd", "restarts": 1, "steps": 8, "loss": "ce", "targets": 1, "rho": 0.75}
CASCADE = [APGD, {**APGD, "loss": "dlr_targeted", "targets": 3}, SQUARE]
RUNS = {
    "first": ([PGD], {}),
    "strongest": ([PGD], {"policy": "strongest"}),
    "every image": ([PGD], WHOLE),
    "predicted": ([PGD], {"policy": "last", "labels": "predicted"}),
    "square": ([SQUARE], {}),
    "cascade": (CASCADE, {}),
    "whole cascade": (CASCADE, {"policy": "strongest", "labels": "true_for_all"}),
    "curve": ([PGD], {"below": [0.02, 0.05]}),
    "no attack": ([], {}),
    "foreign": ([{"attack": "torchattacks:PGD", "restarts": 1, "steps": 5}], {}),
}


def protocol(folder, stages, fields):
    text = attack_checks.USUAL.replace('eps = "8/255"', "eps = 0.1")
    for key, value in fields.items():
        old = next(line for line in text.splitlines() if line.startswith(f"{key} = "))
        text = text.replace(old, f"{key} = {json.dumps(value)}")
    text += "" if stages else "stage = []\n"
    for stage in stages:
        text += "\n[[stage]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in stage.items())
    (folder / "p.toml").write_text(text)
    return str(folder / "p.toml")


@pytest.mark.parametrize("run", RUNS)
def test_the_rank_is_the_labels_place_on_the_image_that_decides(run, known, tmp_path):
    stages, fields = RUNS[run]
    if run == "foreign":
        pytest.importorskip("torchattacks")
    model, images, labels = known
    chosen = protocol(tmp_path, stages, fields)
    found = attack(model, images, labels, chosen, batch_size=8)
    expected = ranks_of(model, found.images, labels)
    assert found.ranks.tolist() == expected.tolist()
    table = evaluate(model, images, labels, protocol=chosen, batch_size=8, audit=False).outcomes
    assert table["rank"].tolist() == expected.tolist(), "and in the record"
    assert ((table["rank"] == 0) == (table["prediction"] == table["label"])).all()
    clean = ranks_of(model, images, labels)
    if fields.get("labels", "true") == "true":
        wrong = table["broken_by"] == "clean"
        assert wrong.sum() == 6
        assert (table["rank"][wrong] == clean[wrong]).all(), "wrong when clean, and not attacked"
        assert torch.equal(found.images[::4], images[::4])
    if stages:
        assert (found.ranks.numpy() != clean).any(), "an attack that moves no rank tests nothing"


def test_a_protocol_that_runs_to_the_end_pushes_the_label_further_than_one_that_stops(known, tmp_path):
    model, images, labels = known
    first, whole = (
        evaluate(model, images, labels, protocol=protocol(tmp_path, [PGD], fields), audit=False)
        for fields in ({}, WHOLE)
    )
    assert "robust_top5_accuracy" not in first.metrics
    assert whole.metrics["robust_top5_accuracy"].value == (whole.outcomes["rank"] < TOP).mean()
    in_top = (whole.outcomes["rank"] < TOP).sum()
    assert in_top < (first.outcomes["rank"] < TOP).sum()
    assert whole.metrics["robust_accuracy"].value <= whole.metrics["robust_top5_accuracy"].value
    assert (first.outcomes["broken_by"] == "").sum() >= (whole.outcomes["broken_by"] == "").sum() - COUNT // 4


def test_an_image_that_is_wrong_when_clean_stays_broken_and_whole_attacks_alone_attack_all(known, tmp_path):
    # The attack may lead such an image to where it is right; the clean image is in the ball all the same.
    model, images, labels = known
    noise = [{"attack": "noise", "restarts": 1}]
    table = evaluate(model, images, labels, protocol=protocol(tmp_path, noise, WHOLE), eps=0.3, audit=False).outcomes
    wrong = np.arange(COUNT) % 4 == 0
    assert (table["forwards"] > 0).all()
    assert (table["broken_by"][wrong] == "clean").all()
    with pytest.raises(BadInputError, match="labels = 'true_for_all'"):
        attack_checks.scenario([PGD], labels="true_for_all", policy="stop_at_first")


class Blinded(nn.Module):
    """NaN wherever an image was moved."""

    def __init__(self, model, images):
        super().__init__()
        self.model, self.known = model, {image.numpy().tobytes() for image in images}

    def forward(self, x):
        seen = torch.tensor([image.detach().numpy().tobytes() in self.known for image in x])
        return torch.where(seen[:, None], self.model(x), torch.nan)


def test_a_logit_that_is_nan_is_never_in_the_top_5(known, fork, tmp_path):
    model, images, _ = known
    few = nn.Sequential(model, nn.Linear(CLASSES, 3)).eval()  # three classes: every finite rank is in the top 5
    labels = few(images).argmax(1)
    noise = [{"attack": "noise", "restarts": 1}]
    chosen = protocol(tmp_path, noise, WHOLE)
    record = evaluate(Blinded(few, images).eval(), images, labels, protocol=chosen, audit=False)
    assert set(record.outcomes["rank"]) == {3}
    assert record.metrics["robust_top5_accuracy"].value == 0


FIELDS = {"policy": "last", "labels": "predicted", "below": []}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, None),
        ({"labels": "true_for_all", "policy": "strongest"}, None),
        ({"labels": "true"}, "not attacked"),
        ({"labels": "true", "policy": "stop_at_first"}, "stops at the first"),
        ({"below": [0.01]}, "--independent"),
    ],
)
def test_top_5_is_refused_where_it_has_no_meaning(fields, word, known, tmp_path):
    model, images, labels = known
    chosen = protocol(tmp_path, [PGD], FIELDS | fields)
    record = evaluate(model, images, labels, protocol=chosen, audit=False)
    assert ("robust_top5_accuracy" in record.metrics) == (word is None)
    text = board_text(["vit_digits"], {"a": (chosen, "robust_top5_accuracy")})
    (tmp_path / "board.toml").write_text(text)
    if word is None:
        assert load_board(str(tmp_path), []).spec.rank_by == "a"
    else:
        with pytest.raises(BadInputError, match=word):
            load_board(str(tmp_path), [])


def test_ranks_survive_an_interruption(known, tmp_path, monkeypatch):
    monkeypatch.setattr(Journal, "due", lambda self: True)
    model, images, labels = known
    chosen = protocol(tmp_path, [PGD, SQUARE | {"queries": 9}], WHOLE)
    how = {"protocol": chosen, "batch_size": 8, "name": "m", "audit": False}
    counted = Counting(model).eval()
    whole = evaluate(counted, images, labels, **how)
    with pytest.raises(KeyboardInterrupt):
        evaluate(Counting(model, counted.passes // 2).eval(), images, labels, **how, out=tmp_path)
    assert list(tmp_path.rglob(".*.partial"))
    resumed = evaluate(Counting(model).eval(), images, labels, **how, out=tmp_path)
    assert resumed.outcomes.to_csv() == whole.outcomes.to_csv()


def test_an_independent_curve_attacks_each_budget_alone(known, tmp_path):
    model, images, labels = known
    how = {"protocol": protocol(tmp_path, [PGD], FIELDS), "audit": False}
    eps = [0.02, 0.05, 0.1]
    alone = [evaluate(model, images, labels, **how, eps=value) for value in eps]
    how["protocol"] = [how["protocol"]]
    curve = evaluate(model, images, labels, **how, curve=eps, independent=True)
    carried = evaluate(model, images, labels, **how, curve=eps)
    for one, other in zip(curve, alone, strict=True):
        assert one.spec.digest() == other.spec.digest()
        assert one.outcomes.to_csv() == other.outcomes.to_csv()
    assert [record.spec.protocol.resolved["below"] for record in curve] == [[], [], []]
    assert [record.spec.protocol.resolved["below"] for record in carried] == [[], [0.02], [0.02, 0.05]]
    assert curve[0].spec.digest() == carried[0].spec.digest()
    assert [("robust_top5_accuracy" in record.metrics) for record in carried] == [True, False, False]
    values = [record.metrics["robust_accuracy"].value for record in carried]
    assert values == sorted(values, reverse=True)
    assert all(record.metrics["robust_accuracy"].value >= value for record, value in zip(curve, values, strict=True))
