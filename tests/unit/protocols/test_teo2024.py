"""The protocols of Teo & Nguyen (2024): literally, against transcriptions of CleverHans' loops, and corrected."""

import cleverhans_loops as theirs
import pytest
import torch
from attack_checks import Wavy, drive, rand

from robustbench_kpca import attack, evaluate, load_data, load_model
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attacks import _spsa, cw_cleverhans, noise, spsa_cleverhans
from robustbench_kpca.attacks.shared import one_gradient
from robustbench_kpca.metrics.accuracy import correct
from robustbench_kpca.protocols.loading import load_scenario
from robustbench_kpca.protocols.threat import Threat

PAIRS = ("fgsm", "pgd", "spsa", "sld", "noise", "cw", "autoattack", "square")
SHARED = ("fgsm", "pgd", "noise", "autoattack", "square")
IMAGES = 3


@pytest.fixture(scope="module")
def model():
    return load_model("rpc_symvit_digits")


@pytest.fixture(scope="module")
def batch():
    return load_data("digits", limit=64).tensors()


@pytest.fixture(scope="module")
def few():
    return load_data("digits", limit=IMAGES).tensors()


def normalised(model, images):
    return (images - model.pixel_mean) / model.pixel_std


def answer(model, inputs):
    """What the network says to inputs that are normalised already."""
    return model(inputs * model.pixel_std + model.pixel_mean)


def accuracy(model, inputs, labels):
    with torch.no_grad():
        return answer(model, inputs).argmax(1) == labels


def transcribed(model, images, loop, *draws):
    """Run a loop image by image, each with its own draws."""
    rows = zip(normalised(model, images), *draws, strict=True)
    return torch.stack([loop(lambda inputs: answer(model, inputs), *row) for row in rows])


def agree(model, found, expected, labels, atol):
    """Equal images, equal verdicts."""
    assert torch.allclose(normalised(model, found.images), expected, atol=atol, rtol=0)
    assert torch.equal(~found.broken, accuracy(model, expected, labels))


def recording(monkeypatch, module, name):
    """What `module` draws by `name` for all images at once, as it is drawn."""
    draw, drawn = getattr(module, name), []

    def record(*arguments):
        values = draw(*arguments)
        if len(values) == IMAGES:
            drawn.append(values.clone())
        return values

    monkeypatch.setattr(module, name, record)
    return drawn


def test_fgsm(model, few):
    images, labels = few
    expected = transcribed(model, images, lambda net, x: theirs.fgsm(net, x, 6 / 255))
    found = attack(model, images, labels, "teo2024-fgsm")
    agree(model, found, expected, labels, 1e-5)
    pixels = (found.images - images).abs().amax((0, 2, 3))
    assert torch.allclose(pixels, 6 / 255 * model.pixel_std.flatten(), atol=1e-6)
    assert float(found.images.min()) < 0, "nothing is clipped"


def test_pgd(model, few, monkeypatch):
    (images, labels), drawn = few, recording(monkeypatch, one_gradient, "uniform_in_ball")
    found = attack(model, images, labels, "teo2024-pgd")
    (first,) = drawn
    loop = lambda net, x, start: theirs.pgd(net, x, start, 6 / 255, 0.15 * 6 / 255, 20)  # noqa: E731
    agree(model, found, transcribed(model, images, loop, first), labels, 1e-5)
    reach = (first - normalised(model, images)).abs()
    assert 0.99 * 6 / 255 < float(reach.max()) <= 6 / 255 + 1e-6


def test_noise(model, few, monkeypatch):
    (images, labels), drawn = few, recording(monkeypatch, noise, "uniform_in_ball")
    found = attack(model, images, labels, "teo2024-noise")
    agree(model, found, drawn[0], labels, 1e-5)
    levels = (normalised(model, found.images) - normalised(model, images)).flatten().sort().values
    assert torch.allclose(levels, torch.linspace(-0.3, 0.3, len(levels)), atol=0.01), "uniform on -0.3 to 0.3"


def test_sld_rescales_and_square_is_autoattacks_last_stage(model, few):
    images, labels = few
    found = attack(model, images, labels, "teo2024-sld")
    agree(model, found, transcribed(model, images, theirs.sparse_l1_descent), labels, 1e-5)
    lengths = (normalised(model, found.images) - normalised(model, images)).abs().flatten(1).sum(1)
    assert torch.allclose(lengths, torch.full_like(lengths, 10.0), atol=1e-3), "the ball binds"
    projected = attack(model, images, labels, "teo2024-sld", projection="euclidean")
    gap = normalised(model, (projected.images - found.images) + images) - normalised(model, images)
    assert float(gap.abs().flatten(1).amax(1).min()) > 0.05, "the corrected twin ends elsewhere, for every image"
    for which in ("", "-corrected"):
        square, whole = (load_scenario(f"teo2024{which}-{name}")[1] for name in ("square", "autoattack"))
        assert square.model_dump(exclude={"title", "citations", "stage"}) == whole.model_dump(
            exclude={"title", "citations", "stage"}
        )
        assert square.stage == whole.stage[-1:]


def test_spsa_probes_around_twice_the_image(model, few, monkeypatch):
    images, labels = few
    starts = recording(monkeypatch, spsa_cleverhans, "uniform_in_ball")
    signs = recording(monkeypatch, _spsa, "signs")
    found = attack(model, images, labels, "teo2024-spsa", steps=4, samples=12)
    assert len(signs) == 4 * 6
    (first,), drawn = starts, torch.stack(signs, 1).unflatten(1, (4, 6))
    agree(model, found, transcribed(model, images, theirs.spsa, first, drawn), labels, 2e-4)


def test_spsa_spends_the_libraries_budget_in_an_unbounded_space(model, few):
    # 128 pairs and the new iterate: 257 answers a step, and one for the verdict.
    options = load_scenario("teo2024-spsa")[1].stage[0].options
    assert options == {"steps": 40, "samples": 2 * 128, "delta": 0.01, "lr": 0.01}
    record = evaluate(model, few[0][:2], few[1][:2], protocol="teo2024-spsa", steps=1, audit=False, batch_size=2)
    assert record.outcomes["forwards"].tolist() == [258, 258]
    with pytest.raises(BadInputError, match="'spsa_cleverhans' with clipping"):
        attack(model, *few, "teo2024-spsa", clip=True)


def test_cw_is_one_descent_whose_constant_stops_at_a_turn(model, few):
    images, labels = few
    found = attack(model, images, labels, "teo2024-cw", steps=8, lr=0.1)
    expected = transcribed(model, images, lambda net, x: theirs.carlini_wagner(net, x, 8, lr=0.1))
    agree(model, found, expected, labels, 1e-4)
    cut = normalised(model, images).clamp(0, 1)
    spoiled = ~accuracy(model, cut, answer(model, normalised(model, images)).argmax(1))
    far = (expected - cut).flatten(1).norm(dim=1)
    assert bool(spoiled.any())
    assert float(far[spoiled].max()) < 1e-3, "what the cut-off has spoiled is left as it is"
    assert float(far[~spoiled].max()) > 0.1


@pytest.mark.parametrize("initial", [0.01, 3.0])
def test_the_constant_of_cw_falls_rises_or_stays(initial):
    """From small constants, which fail first, and from large ones, which succeed first: in double precision."""
    model, images = Wavy((1, 5, 5)), 0.05 + 0.9 * rand(1, 6, 1, 5, 5)
    port = cw_cleverhans.ATTACK(steps=20, lr=0.03, binary_steps=6, initial_const=initial, confidence=0.2)
    state = drive(port, model, images, model(images).argmax(1), Threat("l2", 100.0), None)
    expected = [theirs.carlini_wagner(model, x, 20, 0.03, 6, initial, 0.2) for x in images]
    assert torch.allclose(state["x"], torch.stack(expected), atol=1e-12, rtol=0)
    turned = {round(value / initial, 6) for value in state["const"].tolist()}
    assert turned <= {10.0**up for up in range(7)} | {0.5**down for down in range(7)}
    assert len(turned) > 1


def test_what_cutting_off_costs_is_a_number_of_its_own(model, batch):
    images, labels = batch
    cut = accuracy(model, normalised(model, images).clamp(0, 1), labels)
    record = evaluate(model, images, labels, protocol="teo2024-cut-off", audit=False)
    assert correct(record.outcomes).tolist() == cut.tolist()
    assert not cut.all()
    damaged = [by for by, kept in zip(record.outcomes["broken_by"], cut.tolist(), strict=True) if not kept]
    assert "clamp" in damaged
    assert set(damaged) <= {"clamp", "clean"}
    attacked = evaluate(model, images, labels, protocol="teo2024-square", queries=1, audit=False)
    assert ((attacked.outcomes["broken_by"] == "clamp") == (record.outcomes["broken_by"] == "clamp")).all()


@pytest.mark.parametrize("name", PAIRS)
def test_the_corrected_twin_differs_in_protocol_not_in_attack(name):
    literal, corrected = (load_scenario(f"teo2024{which}-{name}")[1] for which in ("", "-corrected"))
    if name in SHARED:
        assert literal.stage == corrected.stage
    assert [stage.restarts for stage in literal.stage] == [stage.restarts for stage in corrected.stage]
    assert literal.norm == corrected.norm
    assert (literal.space, corrected.space) == ("normalised", "pixel")
    assert (corrected.labels, corrected.clip, corrected.policy) == ("true", True, "stop_at_first")
    if name in ("autoattack", "square"):
        assert (literal.labels, literal.policy) == ("true", "stop_at_first")
    else:
        assert (literal.labels, literal.policy) == ("predicted", "last")
    assert literal.clip == (name in ("cw", "autoattack", "square"))
    if name != "cw":
        assert literal.eps == corrected.eps


CORRECTED = {  # where the library strays from the published algorithm: the attack, and what it says beside the options
    "spsa": ("spsa_cleverhans", "spsa", {"random_start": True}),
    "sld": ("sld", "sld", {"projection": "euclidean"}),
    "cw": ("cw_cleverhans", "cw", {}),
}


@pytest.mark.parametrize("name", CORRECTED)
def test_what_the_library_does_otherwise_is_corrected(name):
    (literal,), (corrected,) = (load_scenario(f"teo2024{which}-{name}")[1].stage for which in ("", "-corrected"))
    theirs, ours, more = CORRECTED[name]
    assert (literal.attack, corrected.attack) == (theirs, ours)
    assert corrected.options == literal.options | more
