"""The protocols of Teo & Nguyen (2024): literally, against transcriptions of cleverhans' calls, and corrected."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import attack, evaluate, load_data, load_model
from robustbench_kpca.metrics.accuracy import correct
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.presets import protocols

PAIRS = ("fgsm", "pgd", "spsa", "sld", "noise", "cw", "autoattack")


@pytest.fixture(scope="module")
def model():
    return load_model("rpc_symvit_digits")


@pytest.fixture(scope="module")
def batch():
    return load_data("digits", limit=64).tensors()


def normalised(model, images):
    return (images - model.pixel_mean) / model.pixel_std


def answer(model, inputs):
    """What the network says to inputs that are normalised already."""
    return model(inputs * model.pixel_std + model.pixel_mean)


def step(model, inputs, labels, length):
    inputs = inputs.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(answer(model, inputs), labels), inputs)
    return inputs.detach() + length * gradient.sign()


def accuracy(model, inputs, labels):
    with torch.no_grad():
        return answer(model, inputs).argmax(1) == labels


def test_fgsm_is_one_step_in_normalised_space_from_the_predicted_label(model, batch):
    images, labels = batch
    inputs = normalised(model, images)
    moved = step(model, inputs, answer(model, inputs).argmax(1), 6 / 255)
    found = attack(model, images, labels, "teo2024-fgsm")
    assert torch.equal(~found.broken, accuracy(model, moved, labels))
    assert torch.allclose(normalised(model, found.images), moved, atol=1e-5)
    pixels = (found.images - images).abs().amax((0, 2, 3))
    assert torch.allclose(pixels, 6 / 255 * model.pixel_std.flatten(), atol=1e-6)
    assert float(found.images.min()) < 0, "nothing is clipped"


def test_pgd_is_cleverhans_without_its_random_start(model, batch):
    images, labels = batch
    clean = inputs = normalised(model, images)
    predicted = answer(model, clean).argmax(1)
    for _ in range(20):
        moved = step(model, inputs, predicted, 0.15 * 6 / 255)
        inputs = clean + (moved - clean).clamp(-6 / 255, 6 / 255)
    found = attack(model, images, labels, "teo2024-pgd", random_start=False)
    stands = accuracy(model, inputs, labels)
    assert 0 < int(stands.sum()) < 64
    assert int((found.broken == stands).sum()) <= 1  # a gradient near zero may take the other sign
    assert float((normalised(model, found.images) - inputs).abs().max()) <= 2 * 6 / 255 + 1e-5
    assert float((normalised(model, found.images) - inputs).abs().median()) < 1e-5


def test_what_cutting_off_costs_is_a_number_of_its_own(model, batch):
    images, labels = batch
    cut = accuracy(model, normalised(model, images).clamp(0, 1), labels)
    record = evaluate(model, images, labels, protocol="teo2024-cut-off", audit=False)
    assert correct(record.outcomes).tolist() == cut.tolist()
    assert not cut.all()
    damaged = [by for by, kept in zip(record.outcomes["broken_by"], cut.tolist(), strict=True) if not kept]
    assert "clamp" in damaged
    assert set(damaged) <= {"clamp", "clean"}
    attacked = evaluate(model, images, labels, protocol="teo2024-autoattack", queries=1, steps=1, audit=False)
    assert ((attacked.outcomes["broken_by"] == "clamp") == (record.outcomes["broken_by"] == "clamp")).all()


@pytest.mark.parametrize("name", PAIRS)
def test_the_corrected_twin_differs_in_protocol_not_in_attack(name):
    literal, corrected = (load_scenario(f"teo2024{which}-{name}")[1] for which in ("", "-corrected"))
    assert literal.stage == corrected.stage
    assert literal.norm == corrected.norm
    assert (literal.space, corrected.space) == ("normalised", "pixel")
    assert (corrected.labels, corrected.clip, corrected.policy) == ("true", True, "stop_at_first")
    if name != "autoattack":
        assert (literal.labels, literal.policy) == ("predicted", "last")
    assert literal.clip == (name in ("cw", "autoattack"))
    if name != "cw":
        assert literal.eps == corrected.eps


def test_every_twin_is_there():
    assert {name for name in protocols() if name.startswith("teo2024")} == {
        "teo2024-cut-off", *(f"teo2024{which}-{name}" for which in ("", "-corrected") for name in PAIRS)
    }  # fmt: skip
