"""Bounds by affine forms: closed forms, a grid of all images, points that must stay inside, planted false bounds."""

import re

import numpy as np
import pytest
import torch
from attack_checks import rand
from torch import nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca import evaluate
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.attention.rpc import RPCAttention
from robustbench_kpca.cli.main import main
from robustbench_kpca.models import bounds
from robustbench_kpca.models.bounds import MARGIN, Affine, exponentials, lower_everywhere
from robustbench_kpca.models.sources.bounded import Bounded
from robustbench_kpca.models.transformer import ViT
from robustbench_kpca.records.proof import Bounds
from robustbench_kpca.report.consistency import load_consistent
from robustbench_kpca.report.contradictions import broken_proof
from robustbench_kpca.verification.vnn_lib import write_questions

pytestmark = pytest.mark.usefixtures("few_resamples")
LINF = "certified-linf-1_255"


class TokenNorm(nn.BatchNorm1d):
    """Batch norm over the channels of tokens."""

    def forward(self, x):
        return super().forward(x.flatten(0, -2)).view(x.shape)


def vit(attention="softmax", scale=1.0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2, "num_classes": 3}
        layer = ATTENTIONS.get(attention)
        model = ViT(**shape, attention=lambda *args, **own: layer(*args, **own | options), norm=TokenNorm)
        for part in model.modules():
            if isinstance(part, TokenNorm):
                part.running_mean.normal_(0, 0.3), part.running_var.uniform_(0.5, 2)
            if isinstance(part, nn.Linear):
                part.weight.data.normal_(0, scale * 0.4)
    return model.double().eval().requires_grad_(False)


def form(centre, radius):
    """Return independent entries."""
    return Affine(centre, centre.new_zeros(0, *centre.shape), [0]).near(
        centre, centre.new_zeros(0, *centre.shape), radius
    )


def inside(made, values):
    low, high = made.ends
    return bool(((low <= values + 1e-9) & (values <= high + 1e-9)).all())


def accumulated(x):
    total = 2 * x
    total += x.abs()
    total -= 1
    return total


FUNCTIONS = {
    "relu": F.relu, "gelu": F.gelu, "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"), "abs": torch.abs,
    "leaky relu": lambda x: F.leaky_relu(x, 0.2), "tanh": torch.tanh, "sigmoid": torch.sigmoid, "silu": F.silu,
    "exp": torch.exp, "reciprocal": lambda x: 1 / (x + 9), "sqrt": lambda x: (x + 9).sqrt(),
    "clip": lambda x: x.clamp(-0.5, 0.7), "clip in place": lambda x: (2 * x).clamp_(min=-0.3),
    "clip by itself": lambda x: x.clamp(-x.abs().mean(-1, keepdim=True), x.abs().mean(-1, keepdim=True)),
    "shrink": lambda x: x - x.clamp(-0.4, 0.4), "softmax": lambda x: x.softmax(-1), "square": lambda x: x * x,
    "product": lambda x: x @ x.transpose(-2, -1), "ratio": lambda x: x / (3 + x.abs().sum(-1, keepdim=True)),
    "sum in place": lambda x: accumulated(x),
    "parts": lambda x: torch.cat([part * n for n, part in enumerate(x.unbind(1))], 1).add_(1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("wide", [0.0, 1e-3, 0.5, 2.0])
def test_every_point_stays_inside_and_a_point_has_exact_bounds(name, wide):
    centre = 3 * (rand(0, 1, 4, 5, dtype=torch.float64) - 0.5)
    radius = wide * rand(1, 1, 4, 5, dtype=torch.float64)
    made = FUNCTIONS[name](form(centre, radius))
    for seed in range(40):
        share = (2 * rand(2 + seed, 1, 4, 5, dtype=torch.float64) - 1) * (1 if seed % 2 else 1e9)
        assert inside(made, FUNCTIONS[name](centre + radius * share.clamp(-1, 1)))
    if not wide:
        assert torch.allclose(torch.stack(made.ends), FUNCTIONS[name](centre).expand(2, *made.shape), atol=1e-9, rtol=0)


def test_worked_case_of_the_softmax():
    """Two logits in [-1, 1]: 1 / (1 + e^2) to e^2 / (1 + e^2)."""
    *_, (low, high) = exponentials(form(torch.zeros(1, 2).double(), torch.ones(1, 2).double()))
    assert (1 / high)[0].tolist() == pytest.approx([0.1192, 0.1192], abs=5e-5)
    assert (1 / low)[0].tolist() == pytest.approx([0.8808, 0.8808], abs=5e-5)


def test_what_two_logits_share_cancels():
    z = form(torch.zeros(1, 1).double(), torch.full((1, 1), 5.0).double())
    made = torch.softmax(torch.cat([z + 1, z], -1), -1)
    assert torch.allclose(made.ends[0], torch.tensor([1.0, 0.0]).double().softmax(0), atol=1e-9)


def test_a_linear_model_is_certified_to_its_exact_distance():
    """The least eps that changes the answer is lead / ||difference of two rows||_1."""
    x = 0.4 + 0.2 * rand(2, 20, 1, 4, 4, dtype=torch.float64)
    weight = rand(1, 3, 16, dtype=torch.float64) - 0.5
    with torch.random.fork_rng():
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False)).double().requires_grad_(False)
    model[1].weight.data = weight
    for image, row in zip(x, model(x).tolist(), strict=True):
        answer = int(np.argmax(row))
        for other in {0, 1, 2} - {answer}:
            exact = (row[answer] - row[other] - MARGIN) / float((weight[answer] - weight[other]).abs().sum())
            for share in (1 - 1e-4, 1 + 1e-4) if exact < 0.39 else ():  # else [0, 1] clips
                assert bool(lower_everywhere(model, image[None], exact * share, answer)[other]) == (share < 1)


def test_no_image_of_a_grid_is_below_a_bound_and_small_boxes_have_tight_ones():
    """Two pixels change, by a pattern, so that a grid of 61 x 61 images shows the least lead."""
    net = vit()

    class Two(nn.Module):
        def forward(self, x):
            return net((x[:, :, :, :1] * first + x[:, :, :, 1:] * second).expand(-1, 3, 8, 8))

    first, second = (rand(seed, 1, 1, 8, 8, dtype=torch.float64) for seed in (1, 2))
    at, loose = torch.tensor([[[[0.4, 0.6]]]]).double(), []
    for eps in (0.05, 0.005):
        line = torch.linspace(-eps, eps, 61).double()
        grid = at + torch.cartesian_prod(line, line).view(-1, 1, 1, 2)
        logits = Two()(grid)
        answer = int(Two()(at).argmax())
        made = Two()(form(at, torch.full_like(at, eps)))
        least = (made[:, answer : answer + 1] - made).ends[0][0]
        true = (logits[:, answer : answer + 1] - logits).amin(0)
        assert (least <= true + 1e-9).all()
        loose.append(float((true - least).max()))
    assert loose[1] < loose[0] / 50  # of second order


OWN = {"rpc": {"iterations": 2}, "scaled": {"tokens": 5}, "symmetric": {}, "softmax": {}, "twicing": {}, "identity": {}}


@torch.no_grad()
@pytest.mark.parametrize("attention", OWN)
def test_networks_stay_within_their_bounds(attention):
    net = vit(attention, **OWN[attention])
    x, eps = rand(3, 1, 3, 8, 8, dtype=torch.float64), 2 / 255
    made = net(form(x, torch.full_like(x, eps)))
    around = x + eps * (2 * rand(4, 200, 3, 8, 8, dtype=torch.float64) - 1)
    corners = x + eps * (2 * rand(5, 200, 3, 8, 8, dtype=torch.float64) - 1).sign()
    assert inside(made, net(torch.cat([around, corners])))
    assert (made.radius < 30).all()


@pytest.mark.parametrize("eps", [0.05, 0.3, 1.0])
def test_bounds_that_are_not_finite_prove_nothing(eps):
    x, y = images(1)
    assert not lower_everywhere(vit("rpc", iterations=6, lam=0.5), x.double(), eps, int(y)).any()


def certified(model, x, y, protocol=LINF, **how):
    return evaluate(model, x, y, protocol=protocol, quiet=True, audit=False, batch_size=10, classes=3, **how)


def images(count=20):
    x = rand(7, count, 3, 8, 8, dtype=torch.float32)
    return x, vit().float()(x).argmax(1)


def test_the_record_has_the_answers_and_what_is_proven_of_them(tmp_path):
    x, y = images()
    net = vit()
    record = certified(Bounded(vit().float(), Bounds(eps=1 / 255)), x, y, out=tmp_path)
    proven = [
        bool(lower_everywhere(net, image[None].double(), 1 / 255, int(label)).sum() == 2)
        for image, label in zip(x, y, strict=True)
    ]
    by_name = dict(zip(record.outcomes["sample"].tolist(), record.outcomes["certified"].tolist(), strict=True))
    assert [by_name[str(at)] for at in range(20)] == proven
    assert 0 < sum(proven) < 20
    assert record.metrics["clean_accuracy"].value == 1
    assert set(record.outcomes["radius"].tolist()) == {0.0, float(np.float32(1 / 255))}
    [file] = tmp_path.glob("*.record.json")
    assert load_consistent(file).metrics == record.metrics
    wider = certified(Bounded(vit().float(), Bounds(eps=1 / 255)), x, y, eps="2/255")
    assert wider.metrics["certified_accuracy"].value == 0


def test_no_attack_contradicts_bounds_and_false_ones_are_contradicted(monkeypatch):
    x, y = images()
    model = Bounded(vit().float(), Bounds(eps=0.06))
    attack = certified(model, x, y, "pgd20-linf-8_255", eps=0.06)
    broken = 1 - attack.metrics["robust_accuracy"].value
    assert broken > 0
    assert broken_proof(certified(model, x, y, eps=0.06), attack) is None
    monkeypatch.setattr(Affine, "radius", property(lambda form: 0.1 * form.generators.abs().sum(0)))
    assert "proven up to 0.06" in broken_proof(certified(model, x, y, eps=0.06), attack)


class Masked(nn.Module):
    """Attention of three tokens, the last of which is hidden."""

    def forward(self, x):
        x = x[:, 0, :3, :3]
        seen = torch.tensor([True, True, False])
        return F.scaled_dot_product_attention(x, x, x, seen).flatten(1)[:, :3]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Flatten(), nn.LayerNorm(192), nn.Linear(192, 3)), "'layer_norm' has no bounds; expected"),
        (Masked(), "attention with a mask"),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.Softmax(1), nn.Flatten(), nn.Linear(256, 3)), "softmax over dimension 1"),
    ],
)  # fmt: skip
def test_a_network_without_bounds_is_refused(model, said):
    x, y = images(2)
    with pytest.raises(BadInputError, match=said):
        certified(Bounded(model.eval(), Bounds(eps=0.01)), x, y)


class InPlace(nn.Module):
    """Adds to a view, and so to what it is a view of."""

    def forward(self, x):
        x = 2 * x
        seen = x.flatten(1)
        seen += 0.5
        return x.flatten(1)[:, :3] * seen[:, :3]


def test_a_view_that_is_changed_in_place_is_refused():
    x, y = images(2)
    with pytest.raises(BadInputError, match="bounds that do not hold at the image itself"):
        certified(Bounded(InPlace().eval(), Bounds(eps=0.01)), x, y)


def test_a_network_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(bounds, "MOST", 10_000)
    with pytest.raises(BadInputError, match=r"bounds with \d+ symbols of \d+ entries; expected at most 10000"):
        lower_everywhere(vit(), images(1)[0].double(), 0.01, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-m", "bounded:vit_digits", "-p", LINF], "--set model.eps=N"),
        (["-m", "bounded:vit_digits", "--set", "model.eps=1/0", "-p", LINF], "eps"),
        (["-m", "bounded:vit_digits", "--set", "model.eps=2", "-p", LINF], "eps"),
        (["-m", "bounded:vit_digits", "--set", "model.eps=1/255", "-p", LINF], "'layer_norm' has no bounds"),
        (["-m", "bounded:vit_digits", "--set", "model.eps=1/255", "-p", "certified-l2-0.25"], "states a proof in linf"),
    ],
)  # fmt: skip
def test_what_cannot_be_bounded_is_refused(words, said, capsys):
    assert main(["eval", "--limit", "2", "-q", *words]) == 2
    assert said in capsys.readouterr().err


class Bessel(nn.Module):
    """A function that ONNX does not have."""

    def forward(self, x):
        return torch.special.i0e(x)


def test_questions_for_other_verifiers_ask_the_same(tmp_path):
    """The ONNX file answers as the network does; each VNN-LIB file has its box and all other classes."""
    session = pytest.importorskip("onnxruntime").InferenceSession
    pytest.importorskip("onnx")
    x, _ = images(2)
    with torch.random.fork_rng():
        tokens = nn.Flatten(), nn.Linear(192, 24), nn.Unflatten(1, (3, 8)), RPCAttention(8, num_heads=2)
        net = nn.Sequential(*tokens, nn.Flatten(), nn.Linear(24, 3)).requires_grad_(False).eval()
    y = net(x).argmax(1)
    x[0, 0, 0, 0] = 0.001
    files = write_questions(net, x, 2 / 255, tmp_path / "new")
    network = session(str(tmp_path / "new" / "model.onnx"))
    for image, label, file in zip(x, y.tolist(), files, strict=True):
        answered = network.run(None, {network.get_inputs()[0].name: image[None].numpy()})[0]
        assert np.abs(answered - net(image[None]).numpy()).max() < 1e-5
        text = file.read_text()
        for sign, bound in (
            ("<=", (image.double() + 2 / 255).clamp(0, 1)),
            (">=", (image.double() - 2 / 255).clamp(0, 1)),
        ):
            stated = {int(at): float(value) for at, value in re.findall(rf"\({sign} X_(\d+) (\S+)\)\)", text)}
            assert np.allclose([stated[at] for at in range(192)], bound.flatten(), atol=1e-16, rtol=0)
        others = re.findall(r"\(and \(>= Y_(\d) Y_(\d)\)\)", text)
        assert others == [(str(other), str(label)) for other in range(3) if other != label]
        assert text.count("(") == text.count(")")
    assert (tmp_path / "new" / "instances.csv").read_text().splitlines()[1] == "model.onnx,image-0001.vnnlib,300"
    with pytest.raises(BadInputError, match="has files"):
        write_questions(net, x, 2 / 255, tmp_path / "new")
    with pytest.raises(BadInputError, match="eps = 2"):
        write_questions(net, x, 2, tmp_path / "other")
    with pytest.raises(BadInputError, match="no ONNX form"):
        write_questions(nn.Sequential(nn.Flatten(), Bessel()), x, 2 / 255, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
