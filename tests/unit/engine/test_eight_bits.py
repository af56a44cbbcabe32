"""Adversarial images as 8-bit files: rounded inside the ball, judged as rounded, and the gap is in the record."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robustbench_kpca import attack, evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._engine.attack_loop.eight_bits import as_stored
from robustbench_kpca.attacks.shared.ball import distance, furthest
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.report.consistency import load_consistent

pytestmark = pytest.mark.usefixtures("few_resamples")


@given(
    norm=st.sampled_from(["linf", "l2", "l1"]),
    eps=st.floats(0.001, 2),
    reach=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
def test_a_rounded_image_is_of_levels_in_the_ball_and_the_nearest_where_that_is_inside(norm, eps, reach, seed):
    rng, threat = np.random.default_rng(seed), Threat(norm, min(eps, 1.0))
    clean = torch.from_numpy(rng.integers(0, 256, (3, 4, 4))).float() / 255
    change = torch.from_numpy(rng.normal(size=(3, 4, 4))).float()
    change *= reach * threat.eps / distance(change[None], torch.zeros(1, 3, 4, 4), norm)
    image = (clean + change).clamp(0, 1)
    stored = as_stored(image, clean, threat)
    assert torch.equal(stored, (stored * 255).round() / 255)
    assert float(distance(stored[None], clean[None], norm)) <= furthest(threat.eps)
    nearest = (image.double() * 255).round().float() / 255
    if float(distance(nearest[None], clean[None], norm)) <= furthest(threat.eps):
        assert torch.equal(stored, nearest)
    else:  # no value is further than the nearest level
        assert bool(((stored - clean).abs() <= (nearest - clean).abs() + 1e-7).all())


@pytest.mark.parametrize(
    ("eps", "threshold", "broken", "unrounded_by"),
    [
        (3.0, 127.3, "fgsm", "fgsm"),  # at 127, a level
        (2.8, 127.3, "", "fgsm"),  # at 127.2; 127 is outside the ball, and 128 stands
        (2.45, 127.6, "", "fgsm"),  # at 127.55; its nearest level is 128, which stands
        (1.0, 127.3, "", ""),
    ],
)
def test_one_pixel_is_judged_at_its_level(linear, eps, threshold, broken, unrounded_by):
    """Logits (0, x - threshold) of a pixel at 130/255, which FGSM moves to 130 - eps."""
    model = linear(torch.full((1, 1, 1), 255.0), -threshold).eval()
    images, labels = torch.full((1, 1, 1, 1), 130 / 255), torch.tensor([1])
    how = {"protocol": "fgsm-linf-8_255", "eps": eps / 255, "storage": "png", "audit": False}
    record = evaluate(model, images, labels, **how)
    assert record.outcomes["broken_by"].tolist() == [broken]
    assert record.outcomes["unrounded_by"].tolist() == [unrounded_by]


@pytest.mark.parametrize(
    ("protocol", "changed"),
    [
        ("ddn-l2-128_255", {"steps": 20, "eps": 2}),
        ("pgd20-linf-8_255", {"policy": "strongest", "steps": 5, "eps": "4.4/255"}),
    ],
)
def test_what_was_found_is_rounded_and_shown_to_the_model(protocol, changed, tmp_path):
    """Other than rounding, nothing changes: the oracle rounds what the same protocol finds without it."""
    model, (images, labels) = load_model("vit_digits_adv"), load_data("digits", limit=12).tensors()
    found, stored = (attack(model, images, labels, protocol, **changed, **how) for how in ({}, {"storage": "png"}))
    threat = load_scenario(protocol, changed)[1].threat
    expected = torch.stack([as_stored(one, clean, threat) for one, clean in zip(found.images, images, strict=True)])
    assert torch.equal(stored.images, expected)
    with torch.no_grad():
        assert torch.equal(model(expected).argmax(1) != labels, stored.broken)
    assert set((stored.forwards - found.forwards).tolist()) <= {0, 1}
    how = {"protocol": protocol, **changed, "audit": False}
    plain = evaluate(model, images, labels, **how)
    record = evaluate(model, images, labels, **how, storage="png", out=tmp_path, keep_adversarial=4)
    assert record.outcomes["unrounded_by"].tolist() == plain.outcomes["broken_by"].tolist()
    assert (record.outcomes["broken_by"] != "").tolist() == [
        bool(stored.broken[int(i)]) for i in record.outcomes["sample"]
    ]
    assert any("broken images are no longer broken once they are rounded to 8 bits" in flag for flag in record.flags)
    [path] = tmp_path.glob("*.record.json")
    assert load_consistent(path).outcomes.digest() == record.outcomes.digest()
    assert record.spec.protocol.resolved["storage"] == "png"
    assert "storage" not in plain.spec.protocol.resolved


@pytest.mark.parametrize(
    ("protocol", "images", "message"),
    [
        ("pgd20-linf-8_255", torch.full((2, 3, 32, 32), 0.3), r"no multiples of 1/255.*\(images \* 255\)"),
        ("teo2024-fgsm", torch.zeros(2, 3, 32, 32), "storage = 'png' with space = 'normalised'"),
        ("clean", torch.zeros(2, 3, 32, 32), "no field 'storage'"),
    ],
)
def test_what_no_file_holds_is_refused(protocol, images, message):
    with pytest.raises(BadInputError, match=message):
        evaluate(load_model("vit_digits"), images, torch.tensor([0, 1]), protocol=protocol, storage="png", audit=False)
