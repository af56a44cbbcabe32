"""The literal twin of the diagnosis, against a transcription of the study's procedure: loops, numpy, torchvision."""

import math
import random
from statistics import fmean, median

import numpy as np
import pytest
import torch
from made_layers import gram_of, randn
from PIL import Image
from scipy.optimize import linear_sum_assignment
from torch import nn
from torchvision import transforms

from robustbench_kpca import load_model
from robustbench_kpca.cli.main import main
from robustbench_kpca.data.request import View
from robustbench_kpca.study.diagnostics.claims import Claim
from robustbench_kpca.study.diagnostics.diagnosis import load_diagnosis
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.procedures import study_of_images
from robustbench_kpca.study.diagnostics.saritas2025 import IMAGES, STUDY

TOKENS, WIDTH, HEADS, COUNT = 14, 6, 2, 3
SMALL = 1e-6  # added to products of g in section 1.4 of the study's systems


@pytest.fixture(scope="module")
def layer():
    q, k, v = (randn(COUNT, HEADS, TOKENS, WIDTH, seed=part) for part in range(3))
    return Layer(2, "made", nn.Identity(), k, q, k, v, v * 3, tuple(range(HEADS)), tuple("abc"), 0)


def z_scored(k):
    return np.array([(row - row.mean()) / (row.std(ddof=1) + 1e-8) for row in k])


def axes_of(k):
    gram, g = gram_of(k, SMALL)
    values, vectors = (part.numpy() for part in torch.linalg.eigh(torch.from_numpy(gram)))  # the same signs
    chosen = sorted(range(len(values)), key=lambda i: -abs(values[i]))
    return vectors[:, chosen[: k.shape[1]]], g


def similarities(v, theory):
    """Section 1.5, row by row."""
    n = len(v)
    unit = lambda x: [row / (np.linalg.norm(row) + 1e-8) for row in x]  # noqa: E731
    centred = lambda x: [row - row.mean() for row in x]  # noqa: E731
    a, b = unit(v), unit(theory)
    table = np.array([[a[i] @ b[j] for j in range(n)] for i in range(n)])
    rows, columns = linear_sum_assignment(-table)
    picked = [table[i, j] for i, j in zip(rows, columns, strict=True)]
    direct = [table[i, i] for i in range(n)]
    return {
        "direct_cosine": fmean(direct),
        "negative_share": fmean(value < 0 for value in direct),
        "matching_cosine": fmean(picked),
        "matching_least": min(picked),
        "matching_most": max(picked),
        "relative_frobenius": np.linalg.norm(v - theory) / np.linalg.norm(v),
        "row_l2": fmean(np.linalg.norm(v[i] - theory[i]) for i in range(n)),
        "row_l1": fmean(np.abs(v[i] - theory[i]).sum() for i in range(n)),
        "pearson": fmean(x @ y for x, y in zip(unit(centred(v)), unit(centred(theory)), strict=True)),
        "allclose": float(np.allclose(v, theory, rtol=1e-3, atol=1e-5)),
        "linear_cka": cka(v @ v.T, theory @ theory.T),
        "kernel_cka": cka(rbf(v), rbf(theory)),
    }


def cka(x, y):
    n = len(x)
    h = np.eye(n) - np.ones((n, n)) / n
    hsic = lambda a, b: (h @ a @ h * (h @ b @ h)).sum()  # noqa: E731
    return hsic(x, y) / (math.sqrt(hsic(x, x)) * math.sqrt(hsic(y, y)) + 1e-10)


def rbf(x):
    squared = np.array([[((a - b) ** 2).sum() for b in x] for a in x])
    there = np.sort(squared[squared > 0])
    return np.exp(-squared / (2 * there[(len(there) - 1) // 2]))  # as torch's median


def test_value_vectors(layer):
    found = STUDY.get("study_value_vectors").observe(layer)
    for image in range(COUNT):
        for head in range(HEADS):
            axes, g = axes_of(layer.k[image, head].numpy())
            weights = np.diag(1 / g)
            theory = weights @ axes - weights @ (np.ones((TOKENS, TOKENS)) / TOKENS) @ axes
            expected = similarities(layer.values[image, head].numpy(), theory)
            got = {key: float(value[image, head]) for key, value in found.items()}
            assert got == pytest.approx(expected, rel=1e-6, abs=1e-9)
            plain = fmean(np.corrcoef(a, b)[0, 1] for a, b in zip(layer.values[image, head], theory, strict=True))
            assert got["pearson"] == pytest.approx(plain, abs=1e-3)  # but for the 1e-8 that the study adds


def test_norms(layer):
    found = STUDY.get("study_norms").observe(layer)
    for image in range(COUNT):
        phi, h = [], []
        for head in range(HEADS):
            q, k, out = (x[image, head].numpy() for x in (layer.q, layer.k, layer.outputs))
            for i in range(TOKENS):
                phi.append(math.exp(q[i] @ q[i] / 8) / sum(math.exp(q[i] @ k[j] / 8) for j in range(TOKENS)) ** 2)
                h.append(float(out[i] @ out[i]))
        apart = abs(fmean(phi) - fmean(h))
        expected = {
            "phi_mean": fmean(phi), "phi_min": min(phi), "phi_max": max(phi), "h_mean": fmean(h),
            "phi_median": sorted(phi)[(len(phi) - 1) // 2], "h_median": sorted(h)[(len(h) - 1) // 2],
            "h_min": min(h), "h_max": max(h), "phi_over_h": fmean(a / b for a, b in zip(phi, h, strict=True)),
            "difference": apart, "difference_over_phi": apart / fmean(phi), "difference_over_h": apart / fmean(h),
        }  # fmt: skip
        for head in range(HEADS):
            assert {key: float(found[key][image, head]) for key in expected} == pytest.approx(expected)
        kept = [value for value in phi if value <= np.quantile(phi, 0.95)]
        assert np.allclose(found["phi_quartiles"][image, 0], np.quantile(kept, [0.25, 0.5, 0.75]))


def test_eigenvalues(layer):
    found = STUDY.get("study_eigenvalues").observe(layer)
    for image in range(COUNT):
        lists = []
        for head in range(HEADS):
            gram, _ = gram_of(z_scored(layer.k[image, head].numpy()), SMALL)
            lists.append([abs(value) for value in sorted(np.linalg.eigvalsh(gram), reverse=True)][:WIDTH])
        by_rank = [fmean(one[rank] for one in lists) for rank in range(WIDTH)]
        expected = (max(by_rank), min(by_rank), fmean(by_rank), median(by_rank))
        got = [float(found[name][image].mean()) for name in ("largest", "smallest", "mean", "median")]
        assert got == pytest.approx(expected)
        assert max(by_rank) <= TOKENS * math.exp(-(WIDTH - 1) / math.sqrt(WIDTH))


def test_gammas(layer):
    claim = STUDY.get("study_gammas")
    assert claim.applies(layer)
    found = claim.observe(layer)
    noise = layer.gaussian("noise on axes")
    for image, head in ((0, 0), (2, 1)):
        gram, _ = gram_of(z_scored(layer.k[image, head].numpy()), SMALL)
        values, vectors = (part.numpy() for part in torch.linalg.eigh(torch.from_numpy(gram)))
        true = vectors[:, sorted(range(TOKENS), key=lambda i: -abs(values[i]))[:WIDTH]]
        noisy = np.linalg.qr(true + 0.1 * noise[image, head].numpy())[0]
        for kind, axes in (("", noisy), ("_true", true)):
            for d in range(WIDTH):
                a = axes[:, d]
                gamma = [(gram @ a)[i] / (TOKENS * a[i]) for i in range(TOKENS)]
                pairs = [(gamma[i], gamma[j]) for j in range(TOKENS) for i in range(j)]
                apart = [abs(x - y) for x, y in pairs]
                over = [abs(x - y) / (max(abs(x), abs(y)) + 1e-10) for x, y in pairs]
                expected = (np.mean(apart), np.std(apart), np.mean(over), np.std(over))
                names = ("absolute", "absolute_spread", "relative", "relative_spread")
                got = [float(found[f"{name}_by_axis{kind}"][image, head, d]) for name in names]
                assert got == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert float(found["absolute"].max()) < 0.1 < float(found["relative"].min())  # tiny, and yet not constant


@pytest.mark.parametrize("name", STUDY.names())
def test_every_measurement_says_what_it_is_and_gives_no_verdict(layer, name):
    claim = STUDY.get(name)
    assert isinstance(claim, Claim)
    assert "arXiv:" in claim.source
    found = claim.observe(layer)
    direct = {key for key, one in claim.statistics.items() if not one.log10_of}
    assert set(found) == direct | set(claim.profiles)
    assert name in IMAGES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for number in range(9):
        path = root / f"class{number % 3}" / f"{'b' if number % 2 else 'a'}{number}.png"
        path.parent.mkdir(exist_ok=True)
        size = (int(rng.integers(20, 60)), int(rng.integers(20, 60)), 3)
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(path)
    return root


def test_the_whole_procedure_image_by_image(folder, tmp_path):
    """Which images, how they are resized and normalised, and the eigenvalues of the keys that the model then has."""
    asked = ["--data", str(folder), "--images", "4", "--claim", "study_eigenvalues", "-o", str(tmp_path), "-q"]
    assert main(["diagnose", "vit_digits", "--protocol", "saritas2025", *asked]) == 0
    done = load_diagnosis(tmp_path)
    assert (done.protocol.procedure, done.protocol.images_of) == ("saritas2025", {"study_eigenvalues": 4})
    assert "saritas2025" in (tmp_path / "README.md").read_text()
    paths = sorted(folder.glob("*/*.png"))
    random.seed(0)
    chosen = random.sample(range(len(paths)), 4)
    ready = transforms.Compose(
        [
            transforms.Resize((32, 32)), transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )  # fmt: skip
    model = load_model("vit_digits")
    model.pixel_mean.zero_()
    model.pixel_std.fill_(1)
    seen = []
    handles = [block.attn.qkv.register_forward_hook(lambda _, __, out: seen.append(out)) for block in model.blocks]
    largest, smallest = [], []
    for index in chosen:
        seen.clear()
        with torch.no_grad():
            model(ready(Image.open(paths[index]).convert("RGB")).unsqueeze(0))
        sizes = []
        for out in seen:
            k = out.view(1, out.shape[1], 3, 3, -1)[0, :, 1].double().numpy()  # (tokens, heads, width)
            for head in range(3):
                gram, _ = gram_of(z_scored(k[:, head]), SMALL)
                sizes.append(sorted(np.abs(np.linalg.eigvalsh(gram)), reverse=True)[: k.shape[-1]])
        by_rank = np.mean(sizes, 0)
        largest.append(by_rank.max())
        smallest.append(by_rank.min())
    for handle in handles:
        handle.remove()
    statistics = done.claims["study_eigenvalues"].statistics
    assert statistics["largest"].estimate.value == pytest.approx(fmean(largest), rel=1e-4)
    assert statistics["smallest"].estimate.value == pytest.approx(fmean(smallest), rel=1e-4, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--protocol", "saritas"], "did you mean 'saritas2025'"),
        (["--protocol", "saritas2025", "--images", "50"], "--images 9"),
        (["--protocol", "saritas2025", "--claim", "gamma"], "study_gammas"),
    ],
)
def test_what_cannot_be_done_is_one_line(folder, arguments, says, capsys):
    assert main(["diagnose", "vit_digits", "--data", str(folder), *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.untyped  # a stand-in for a data set
@pytest.mark.parametrize(("files", "nested"), [(1000, False), (5000, True)])
def test_each_measurement_draws_its_own_images(files, nested):
    """`random.sample` uses another algorithm for few of many: only where both use one, 25 are the first of 100."""

    class Many:
        ids = tuple(f"n/{number:05d}" for number in range(files))

        def __len__(self):
            return len(self.ids)

        def take(self, indices):
            return [self.ids[index] for index in indices]

    many = Many()
    found = {}
    for name, count in IMAGES.items():
        found[name] = study_of_images(many, [name], most=100).sources[name].samples
        random.seed(0)
        assert found[name] == [many.ids[index] for index in random.sample(range(files), count)]
    assert (found["study_eigenvalues"] == found["study_value_vectors"][:25]) is nested


def test_squashed_images_are_torchvisions(folder):
    for path in sorted(folder.glob("*/*.png"))[:3]:
        image = Image.open(path)
        expected = np.asarray(transforms.Resize((24, 24))(image))
        assert np.array_equal(np.asarray(View(24, 1.0, "bilinear", squash=True).apply(image)), expected)
