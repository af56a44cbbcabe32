"""What attention and whole models cost, and what the pursuit does to mixing.

    python benchmarks/models.py [cost] [--batch-size 8] [--threads 1] [--device cuda] [--repeats 5] [--models NAME ...]
    python benchmarks/models.py attention [--only rpc] [--shapes tiny base] [--threads 1 2] [--device cuda]
                                          [--dtype bfloat16] [--compile] [--profile] [--repeats 15]
    python benchmarks/models.py keys [--std 0.3 0.6 1 2] [--threshold 'lam*mu' 'lam/mu']
    python benchmarks/models.py pursuits [--names rpc_symvit_digits ...]
    python benchmarks/models.py heads [--model NAME --checkpoint FILE --data FOLDER]
    python benchmarks/models.py dose
    python benchmarks/models.py gradients [--std 0.3 0.6 1 2] [--threshold 'lam*mu' 'lam/mu']

`cost`: parameters, FLOPs, time and memory of any models, at test and in training, as `rbk reproduce teo2024 --table 13`
measures those of the paper. Untrained models on random images, in single precision:

- GFLOPs per image, two per multiply-add, of the matrix products and convolutions, those of attention included (counted
  with attention as plain matrix products, so without the recomputation of fused attention);
- ms per image, medians of interleaved calls: process CPU time on one thread, elapsed time on more and on a GPU; test is
  a forward pass without gradients, training a forward and a backward pass for all parameters, without the optimiser;
- peak MB of tensors during such a call, including the gradients of parameters but not the parameters themselves.

`attention`: time and memory of every variant beside a literal implementation of its formula, written below. Measured is
the part between a layer's input and output projections, on random input in evaluation mode (Primal attention and
KEP-SVGP keep their projection to queries and keys, because their weights also multiply the tokens):

- time of the forward pass without gradients, and of forward + backward (to inputs and parameters): medians of
  interleaved calls, after warm-up calls; process CPU time on one thread, elapsed time on more and on a GPU;
- MB that autograd keeps for the backward pass beside inputs and parameters, and the peak MB of tensors
  during forward + backward (scratch space inside matrix libraries is not measured on a CPU).

`--profile` measures instead a lower bound for RPC attention: its matrix products alone, M M^T and weights times V.

`keys`, `pursuits` and `gradients`: how the pursuit of RPC attention affects token mixing, by iteration, and the
gradients used by attacks. `keys` runs it on Gaussian keys and values, (B, H, N, D) = (2, 3, 197, 64), lambda = 4.
`pursuits` measures bundled models on the digits test set; their weights are always those trained with the models' own
n. `gradients` compares the key gradient of fused attention in single precision with double precision, on the Gaussian
keys, for a random cotangent.

`heads`: when the pursuit acts. The released threshold is lambda mu = lambda H / (4 mean|k|), so it grows with the
number of heads H and falls with the size of the keys. Printed is the density of S of Gaussian keys, (B, N, D) =
(2, 197, 64), in the iteration that the output is computed from, for the settings of the paper. With `--model`, printed
is that of the keys of all layers of a network, as if they were pursued with lambda = 4, in every iteration.

`dose`: of every row of the table `dose` in the pack `answer-active`, the density of S on the 364 clean test images
(mean over trainings, with an interval of 95 %, Student's t over seeds), and the numbers of the table. It draws
docs/images/dose.svg.

Columns of the others: density of S; residual ||K - L - S|| / ||K||; the mean largest attention weight of a token; the
mean attention of a token to itself; the mean entropy of its attention in nats; ||L - V|| / ||V||, 0 if the layer
returns V unchanged. Row n = 0 is plain symmetric attention on the same keys.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _shared import cpu_times, header, kept_bytes, wall_times
from scipy import stats
from tabulate import tabulate
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from robustbench_kpca import load_data, load_model
from robustbench_kpca._core.web.figures import drawing, on_white, svg_of
from robustbench_kpca.attention import ATTENTIONS
from robustbench_kpca.attention.rpc import Iterate, Pursuit
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.evaluation.requests import ModelRequest
from robustbench_kpca.models.mixing import at_most, attention_weights, densities, density, rpc_layers
from robustbench_kpca.models.source import stated_view
from robustbench_kpca.study.diagnostics.taps import find_taps, listening
from robustbench_kpca.study.reproduction.measuring import passes_of, peak_bytes, subject_of
from robustbench_kpca.study.reproduction.pack import load_pack

VITS = ("vit", "symvit", "rpc_symvit", "rpc_symvit_all", "scaled_vit", "primal_vit", "kep_svgp_vit")
MODELS = (*(f"{family}_tiny_patch16_224" for family in VITS), "fan_tiny", "symfan_tiny", "rpc_fan_tiny")
COLUMNS = (
    "", "parameters (M)",
    "GFLOPs/image, test", "training",
    "ms/image, test", "training",
    "peak MB, test", "training",
)  # fmt: skip
FORMATS = ("", ".2f", ".2f", ".2f", ".1f", ".1f", ".0f", ".0f")
SHAPES = {"tiny": (8, 3, 197, 64), "base": (2, 12, 197, 64), "digits": (64, 3, 17, 16)}
STD = 0.5  # of the input; with larger keys the pursuit converges to the identity (benchmarks/pursuit.md)
Run = Callable[[Tensor], Tensor]
SHAPE = (2, 3, 197, 64)
PURSUING = ("rpc_symvit_digits", "rpc_symvit_digits_adv", "rpc_symvit_all_digits", "rpc_symvit_all_digits_adv")
MEASURES = ("density of S", "residual", "max. attention", "to itself", "entropy", "‖L − V‖/‖V‖")
MEASURE_FORMATS = (".4f", ".3f", ".3f", ".3f", ".3f", ".1e")

# --- whole models -----------------------------------------------------------------------------------------------------


def rows_of(names: list[str], settings: argparse.Namespace) -> list[list[Any]]:
    """Return the rows of the table."""
    size, device = settings.batch_size, settings.device
    subjects = [subject_of(ModelRequest(name, untrained=True), None, size, device) for name in names]
    return [
        [
            name, subject.parameters / 1e6,
            *(one.operations / size / 1e9 for one in passes),
            *(1e3 * one.time / size for one in passes),
            *(one.peak_bytes / 1e6 for one in passes),
        ]
        for name, subject, passes in zip(names, subjects, passes_of(subjects, settings.repeats, device), strict=True)
    ]  # fmt: skip


def cost(settings: argparse.Namespace) -> None:
    """Print the table of whole models."""
    torch.set_num_threads(settings.threads)
    print(header(("torch", "timm", "numpy")), f"{settings.device} float32; batch {settings.batch_size}", sep="; ")
    print("\n" + tabulate(rows_of(settings.models, settings), COLUMNS, tablefmt="github", floatfmt=FORMATS))


# --- the formulas, implemented literally; they use no code of the package --------------------------------------------


def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return weights(q, k) @ v


def weights(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])).softmax(-1)


def pursuit(k: Tensor, v: Tensor, n: int, query: Tensor | None = None) -> Tensor:
    """Teo & Nguyen (2024), arXiv:2406.13762, Algorithm 1, with the released code's threshold lam * mu; lam = 4."""
    _, heads, tokens, dim = k.shape
    mu = tokens * heads * dim / (4 * k.abs().sum((-2, -1), keepdim=True))
    low = y = torch.zeros_like(k)
    if n == 0:
        return softmax(k if query is None else query, k, v)
    for _ in range(n):
        residual = k - low + y / mu
        sparse = residual.sign() * (residual.abs() - 4 * mu).clamp_min(0)
        inner = k - sparse - y / mu
        low = softmax(inner if query is None else query, inner, v)
        y = y + mu * (k - low - sparse)
    return low


def scaled(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Teo & Nguyen (2024), Remark 3: softmax(Q K^T / sqrt(D)) (I - S) V."""
    s = layer.s if layer.s.ndim else layer.s * weights(k, k)
    mixed: Tensor = weights(q, k) @ ((torch.eye(k.shape[-2], dtype=k.dtype, device=k.device) - s) @ v)
    return mixed


def scores(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Chen et al. (2023), arXiv:2305.19798: e = phi(q) X_h^T W_e and r = phi(k) X_h^T W_r."""
    q, k = heads_of(layer.scores.qk(x), 2, layer.num_heads)
    (data,) = heads_of(x[:, layer.scores.landmarks], 1, layer.num_heads)
    q, k = (u / u.norm(dim=-1, keepdim=True) for u in (q, k))
    return tuple(u @ (data.transpose(-2, -1) @ w) for u, w in ((q, layer.scores.w_e), (k, layer.scores.w_r)))


def primal(layer: Any, x: Tensor) -> Tensor:
    mixed: Tensor = layer.mix(torch.cat(scores(layer, x), -1))
    return mixed


def kep_svgp(layer: Any, x: Tensor) -> Tensor:
    """Chen et al. (2024), arXiv:2402.01476: mean v1 m and, for each channel c, v1 S_c eps_c; rows of [e; r] merged."""
    v1 = torch.cat(scores(layer, x), -2) * layer.log_lam.exp().square().unsqueeze(-2)
    factor = layer.lower.tril(-1) + torch.diag_embed(layer.log_scale.exp())
    v2 = torch.einsum("bhnr,hcrs->bhncs", v1, factor)
    sample = v1 @ layer.mean + torch.einsum("bhncs,bhcs->bhnc", v2, layer.fixed_noise)
    mixed: Tensor = layer.mix(layer.merge(sample.transpose(-2, -1)).transpose(-2, -1))
    return mixed


def heads_of(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    batch, tokens, _ = x.shape
    return x.reshape(batch, tokens, parts, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


# --- what is compared -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """An attention of the family, its number of projected inputs (0: it takes tokens), and its literal formula."""

    member: str
    parts: int
    formula: Callable[..., Tensor]
    options: dict[str, Any] = field(default_factory=dict)


def _pursuits() -> dict[str, Variant]:
    steps = {n: (lambda _, k, v, n=n: pursuit(k, v, n)) for n in (0, 1, 2, 4, 6)}
    return {f"rpc, n = {n}": Variant("rpc", 2, run, {"iterations": n}) for n, run in steps.items()}


VARIANTS = {
    "softmax": Variant("softmax", 3, lambda _, q, k, v: softmax(q, k, v)),
    "symmetric": Variant("symmetric", 2, lambda _, k, v: softmax(k, k, v)),
    "identity": Variant("identity", 2, lambda *tensors: tensors[-1]),
    **_pursuits(),
    "rpc_asymmetric, n = 4": Variant("rpc_asymmetric", 3, lambda _, q, k, v: pursuit(k, v, 4, q)),
    "scaled, alpha": Variant("scaled", 3, scaled, {"form": "alpha"}),
    "scaled, matrix": Variant("scaled", 3, scaled, {"form": "matrix"}),
    "primal": Variant("primal", 0, primal, {"rank": 20}),
    "kep_svgp": Variant("kep_svgp", 0, kep_svgp, {"rank": 10, "form": "concatenate"}),
}


class Contest:
    """One variant at one shape: our layer without its projections, its literal formula, and an input for both."""

    def __init__(self, name: str, shape: tuple[int, int, int, int], device: str, dtype: torch.dtype) -> None:
        variant = VARIANTS[name]
        batch, heads, tokens, dim = shape
        torch.manual_seed(0)
        sized = {"tokens": tokens} if variant.member in ("scaled", "primal", "kep_svgp") else {}
        self.layer: Any = ATTENTIONS.get(variant.member)(heads * dim, heads, **variant.options, **sized).eval()
        self.layer.proj = nn.Identity()
        if variant.parts:
            self.layer.qkv = nn.Identity()
        if variant.member == "scaled":
            nn.init.normal_(self.layer.s, std=0.1)
        self.layer.to(device, dtype)
        if variant.member == "kep_svgp":
            self.layer.fixed_noise = torch.randn(batch, heads, 10, 10).to(device, dtype)
        x = STD * torch.randn(batch, tokens, max(variant.parts, 1) * heads * dim)
        self.x = x.to(device, dtype).requires_grad_()
        self.cotangent = torch.randn(batch, tokens, heads * dim).to(device, dtype)
        self.inputs = (self.x, *self.layer.parameters())
        self.parts, self.formula = variant.parts, variant.formula

    def literal(self, x: Tensor) -> Tensor:
        """Compute the layer's output by the literal formula."""
        given = heads_of(x, self.parts, self.layer.num_heads) if self.parts else (x,)
        return self.formula(self.layer, *given).transpose(1, 2).flatten(2)

    def forward(self, run: Run) -> Tensor:
        """Run without gradients."""
        with torch.no_grad():
            return run(self.x)

    def both(self, run: Run) -> tuple[Tensor, ...]:
        """Run forward and backward, with gradients of the input and every parameter."""
        return torch.autograd.grad(run(self.x), self.inputs, self.cotangent, allow_unused=True)


def compare(name: str, settings: argparse.Namespace, shape: tuple[int, int, int, int], threads: int) -> list[Any]:
    """Measure one row: each time for ours and the literal formula, with their ratio, and each memory size for both."""
    contest = Contest(name, shape, settings.device, getattr(torch, settings.dtype))
    runs: list[Run] = [contest.layer, contest.literal]
    if settings.compile:
        torch.compiler.reset()
        runs.append(torch.compile(contest.literal))
    ours, theirs = (contest.forward(run).detach() for run in runs[:2])
    row = [name, float((ours - theirs).norm() / theirs.norm())]
    for measure in (contest.forward, contest.both):
        calls = [partial(measure, run) for run in runs]
        for call in calls * 2:
            call()
        alone = settings.device == "cpu" and threads == 1
        found = cpu_times(calls, settings.repeats) if alone else wall_times(calls, settings.repeats, settings.device)
        row += [1e3 * found[0], *(part for time in found[1:] for part in (1e3 * time, time / found[0]))]
    given = (*contest.inputs, *contest.layer.buffers(), contest.cotangent)
    kept = [kept_bytes(partial(run, contest.x), given) / 1e6 for run in runs[:2]]
    peak = [peak_bytes(partial(contest.both, run), settings.device) / 1e6 for run in runs[:2]]
    return [*row, *kept, *peak]


def columns(compiled: bool) -> tuple[list[str], list[str]]:
    """Return the table's header and the formats of its cells."""
    others = ["literal", "/ ours"] + ["compiled", "/ ours"] * compiled
    head = ["", "rel. difference", "forward ms, ours", *others, "fwd + bwd ms, ours", *others]
    head += ["kept MB, ours", "literal", "peak MB, ours", "literal"]
    return head, ["", ".0e", *([".2f"] * (2 * len(others) + 2)), *([".1f"] * 4)]


def floor(settings: argparse.Namespace, shape: tuple[int, int, int, int], threads: int) -> list[list[Any]]:
    """Time the operations that any RPC attention at n = 4 needs, and both implementations."""
    contest = Contest("rpc, n = 4", shape, settings.device, getattr(torch, settings.dtype))
    batch, heads, tokens, dim = shape
    m, v = (part.detach().reshape(batch * heads, tokens, dim) for part in heads_of(contest.x, 2, heads))
    made = torch.bmm(m, m.mT)
    attention, out = made.softmax(-1), torch.empty_like(m)

    def products(times: int) -> None:
        for _ in range(4 * times):
            torch.bmm(m, m.mT, out=made)
            torch.bmm(attention, v, out=out)

    calls: list[Callable[[], object]] = [lambda: products(1), lambda: [made.softmax(-1) for _ in range(4)]]
    calls += [partial(contest.forward, run) for run in (contest.layer, contest.literal)]
    calls += [lambda: products(3)]
    calls += [partial(contest.both, run) for run in (contest.layer, contest.literal)]
    for call in calls:
        call()
    alone = settings.device == "cpu" and threads == 1
    found = cpu_times(calls, settings.repeats) if alone else wall_times(calls, settings.repeats, settings.device)
    labels = ["forward: products alone", "forward: softmax of the scores alone", "forward: ours", "forward: literal"]
    labels += ["fwd + bwd: products alone (3 times the forward's)", "fwd + bwd: ours", "fwd + bwd: literal"]
    bases = [found[3]] * 4 + [found[6]] * 3
    return [[label, 1e3 * time, base / time] for label, time, base in zip(labels, found, bases, strict=True)]


def attention(settings: argparse.Namespace) -> None:
    """Print a table for each number of threads and shape."""
    chosen = [name for name in VARIANTS if not settings.only or name.startswith(tuple(settings.only))]
    for threads in settings.threads:
        torch.set_num_threads(threads)
        for shape in settings.shapes:
            print(header(("torch", "numpy")), f"{settings.device} {settings.dtype}", sep="; ")
            print(f"{shape}: (B, H, N, D) = {SHAPES[shape]}\n")
            if settings.profile:
                rows, head = floor(settings, SHAPES[shape], threads), ["RPC, n = 4", "ms", "literal / this"]
                print(tabulate(rows, head, tablefmt="github", floatfmt=".2f"), end="\n\n")
                continue
            head, formats = columns(settings.compile)
            rows = [compare(name, settings, SHAPES[shape], threads) for name in chosen]
            print(tabulate(rows, head, tablefmt="github", floatfmt=formats), end="\n\n")


# --- the pursuit, by iteration ----------------------------------------------------------------------------------------


def gaussian(std: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return keys, values and a cotangent in double precision."""
    rng = torch.Generator().manual_seed(0)
    k, v, cotangent = (torch.randn(SHAPE, generator=rng, dtype=torch.float64) for _ in range(3))
    return std * k, v, cotangent


def traced(pursuit: Pursuit, k: Tensor, v: Tensor) -> list[list[float]]:
    """Return the number and the `MEASURES` of iterations 0 to n."""
    steps: list[Iterate] = []
    with torch.no_grad():
        for run in (replace(pursuit, iterations=0), pursuit):
            run(k, v, observer=steps.append)
        return [[step.iteration, *cells(step)] for step in steps]


def cells(step: Iterate) -> list[float]:
    weights = attention_weights(step.query, step.inner)
    means = (weights.amax(-1), weights.diagonal(dim1=-2, dim2=-1), torch.special.entr(weights).sum(-1))
    return [
        density(step),
        float((step.k - step.low_rank - step.sparse).norm() / step.k.norm()),
        *(float(values.mean()) for values in means),
        float((step.low_rank - step.v).norm() / step.v.norm()),
    ]


def keys(settings: argparse.Namespace) -> None:
    """Print a table for each threshold rule and each size of keys."""
    for threshold in settings.threshold:
        for std in settings.std:
            k, v, _ = gaussian(std)
            rows = traced(Pursuit(6, threshold=threshold), k.float(), v.float())
            print(f"Gaussian keys, std {std:g}, threshold {threshold}; log(tokens) = {math.log(SHAPE[2]):.3f}\n")
            show(rows, ("n", *MEASURES), ("", *MEASURE_FORMATS))


def pursuits(settings: argparse.Namespace) -> None:
    """Print, for each model, a table of its layers and one of its loss gradients."""
    images, labels = Samples.require(load_data("digits")).tensors()
    gradients = []
    for name in settings.names:
        model = load_model(name)
        rows = []
        for block, (layer, (k, v)) in enumerate(zip(rpc_layers(model), keys_and_values(model, images), strict=True)):
            std = float(k.std())
            rows += [[block, std, *row] for row in traced(layer.pursuit, k, v)]
        print(f"{name}; log(tokens) = {math.log(k.shape[2]):.3f}\n")
        show(rows, ("RPC layer", "std of keys", "n", *MEASURES), ("", ".2f", "", *MEASURE_FORMATS))
        most = max(layer.pursuit.iterations for layer in rpc_layers(model))
        gradients += [[name, n, *by_layer(model, images, labels, n)] for n in range(most + 1)]
    head = ("model", "at most n", "by the image", "by K of the first RPC layer", "by V", "accuracy (%)")
    print("Mean L2 norm over the test images of the gradient of the cross-entropy\n")
    show(gradients, head, ("", "", ".3g", ".3g", ".3g", ".2f"))


SETTINGS = ((4.0, 4), (4.0, 6), (3.0, 2), (4.0, 2), (4.0, 1))
"""lambda and n: first layer of the tables; all layers at base size (tables 7 and 8); the released script for base."""


def heads(settings: argparse.Namespace) -> None:
    """Print how dense S is by the number of heads, for Gaussian keys, or for those of a network."""
    if settings.model:
        of_network(settings)
        return
    head = ("H", "model of that width", "mean |k|", *(f"λ = {lam:g}, n = {n}" for lam, n in SETTINGS))
    rows = [
        [count, name, size, *(last_density(count, size, lam, n) for lam, n in SETTINGS)]
        for count, name in ((3, "tiny"), (6, "small"), (12, "base"))
        for size in (0.56, 0.80, 1.10)
    ]
    show(rows, head, ("", "", ".2f", *[".4f"] * len(SETTINGS)))


def last_density(heads: int, size: float, lam: float, iterations: int) -> float:
    """Return the density of S in the last iteration for Gaussian keys with this mean of |k|, and values of std 1."""
    rng = torch.Generator().manual_seed(0)
    k, v = (torch.randn((2, heads, 197, 64), generator=rng) for _ in range(2))
    return by_iteration(Pursuit(iterations, lam=lam), k * (size / k.abs().mean()), v)[-1]


def by_iteration(pursuit: Pursuit, k: Tensor, v: Tensor) -> list[float]:
    shares: list[float] = []
    pursuit(k, v, observer=lambda step: shares.append(density(step)))
    return shares


def of_network(settings: argparse.Namespace) -> None:
    """Print how dense S would be in every layer of a network, for the keys that it has."""
    model = load_model(settings.model, checkpoint=settings.checkpoint)
    data = Samples.require(load_data(settings.data, limit=settings.images, view=stated_view(model)))
    images, _ = data.tensors()
    with torch.no_grad(), listening(find_taps(model)) as readings:
        model(images)
        layers = readings()
    rows = []
    for number, layer in enumerate(layers, 1):
        k, v, size = layer.k, layer.v, float(layer.k.abs().mean())
        assert v is not None, "attention with values"
        rows.append([number, k.shape[1], size, k.shape[1] / size, *by_iteration(Pursuit(), k, v)])
    head = ("layer", "H", "mean |k|", "λμ", *(f"S in iteration {n}" for n in range(1, 5)))
    show(rows, head, ("", "", ".2f", ".1f", *[".4f"] * 4))


def dose(_: argparse.Namespace) -> None:
    """Print and draw density of S, clean accuracy and accuracy under attack of every row that was planned."""
    folder = Path(__file__).parents[1] / "leaderboards" / "answer-active"
    rows = {row["model"]: row["cells"] for row in json.loads((folder / "dose" / "board.json").read_text())["rows"]}
    numbers = {}
    for arm in load_pack(str(folder))[1].paper.arms.values():
        measured = [(cell["value"], cell["low"], cell["high"]) for cell in rows[arm.title]]
        numbers[arm.title] = [density_of(arm, folder / "trainings", list(rows[arm.title][0]["trainings"])), *measured]
    order = sorted(numbers, key=lambda title: numbers[title][0])
    labels = [title.partition(" (S: ")[0] for title in order]
    heads = ("density of S, %", "clean accuracy, %", "AutoAttack fast 4/255, %")
    texts = [
        [label, *(spelt(*number) for number in numbers[title])] for title, label in zip(order, labels, strict=True)
    ]
    show(texts, ("", *heads), ("",) * 4)
    with drawing((7.6, 0.34 * len(order) + 0.7)) as (figure, buffer):
        panels = figure.subplots(1, len(heads), sharey=True)
        for place, (panel, head) in enumerate(zip(panels, heads, strict=True)):
            value, low, high = 100 * np.array([numbers[title][place] for title in order]).T
            panel.errorbar(value, range(len(order)), xerr=[value - low, high - value], fmt="o", markersize=4)
            panel.set(xlabel=head, yticks=range(len(order)), yticklabels=labels)
    file = folder.parents[1] / "docs" / "images" / "dose.svg"
    file.write_bytes(on_white(svg_of(buffer, "Density of S, clean accuracy and accuracy under attack, by lambda")))


def density_of(arm: Any, folder: Path, names: list[str]) -> tuple[float, float, float]:
    """Return the mean density of S of trainings on the clean test images of digits, with its interval over seeds."""
    if not arm.recipe.startswith("rpc_"):
        return 0.0, 0.0, 0.0
    images, _ = Samples.require(load_data("digits", "test")).tensors()
    options = {key.removeprefix("model_options."): value for key, value in arm.set.items()}
    models = (load_model(arm.recipe, folder / name / f"{name}.safetensors", **options) for name in names)
    shares = np.array([densities(model, images)[0] for model in models])
    low, high = stats.t.interval(0.95, len(shares) - 1, shares.mean(), max(stats.sem(shares), 1e-12))
    return float(shares.mean()), max(0.0, float(low)), float(high)


def spelt(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def keys_and_values(model: Any, images: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return keys and values of every RPC layer in a forward pass."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    layers = rpc_layers(model)
    for block, layer in enumerate(layers):
        layer.observer = lambda step, block=block: found.setdefault(block, (step.k.detach(), step.v.detach()))
    with torch.no_grad():
        model(images)
    for layer in layers:
        layer.observer = None
    return list(found.values())


def by_layer(model: Any, images: Tensor, labels: Tensor, iterations: int) -> list[float]:
    """Return gradient norms by the image and by K and V of the first RPC layer, and accuracy, at most `iterations`."""
    seen: list[Iterate] = []
    images = images.detach().requires_grad_()
    with at_most(model, iterations):
        first = rpc_layers(model)[0]
        first.observer = seen.append
        logits = model(images)
        first.observer = None
    found = torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), (images, seen[0].k, seen[0].v))
    norms = [float(gradient.flatten(1).norm(dim=1).mean()) for gradient in found]
    return [*norms, 100 * float((logits.argmax(1) == labels).double().mean())]


def gradients(settings: argparse.Namespace) -> None:
    """Print, for each threshold rule, a table of the gradient's error in single precision, relative to double."""
    head = (
        "std of keys",
        "n",
        "‖∂/∂K‖",
        "‖∂/∂V‖",
        "error by K, fused",
        "relative",
        "relative, unfused",
        "error / ‖∂/∂V‖",
    )
    for threshold in settings.threshold:
        rows = []
        for std in settings.std:
            for n in (1, 4, 6):
                pursuit = Pursuit(n, threshold=threshold)
                exact = key_and_value_gradient(pursuit, std, torch.float64)
                size, values = (float(gradient.norm()) for gradient in exact)
                errors = [
                    float((key_and_value_gradient(pursuit, std, torch.float32, fused=fused)[0] - exact[0]).norm())
                    for fused in (True, False)
                ]
                rows.append([std, n, size, values, errors[0], *(e / size for e in errors), errors[0] / values])
        print(f"float32 against float64, threshold {threshold}\n")
        show(rows, head, ("", "", *([".1e"] * 6)))


def key_and_value_gradient(
    pursuit: Pursuit, std: float, dtype: torch.dtype, *, fused: bool = True
) -> tuple[Tensor, ...]:
    k, v, cotangent = (tensor.to(dtype) for tensor in gaussian(std))
    with nullcontext() if fused else sdpa_kernel(SDPBackend.MATH):
        return torch.autograd.grad(pursuit(k.requires_grad_(), v.requires_grad_()), (k, v), cotangent)


def show(rows: list[list[Any]], head: tuple[str, ...], formats: tuple[str, ...]) -> None:
    print(tabulate(rows, head, tablefmt="github", floatfmt=formats), end="\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(required=True)
    devices = ("cpu", "cuda")
    part = parts.add_parser("cost", help="whole models; what is measured where no part is named")
    part.add_argument("--models", nargs="+", default=list(MODELS), help="names of `rbk list models`")
    part.add_argument("--batch-size", type=int, default=8)
    part.add_argument("--threads", type=int, default=1, help="number of torch threads")
    part.add_argument("--device", choices=devices, default="cpu")
    part.add_argument("--repeats", type=int, default=5, help="timed calls of each; the median is shown")
    part.set_defaults(run=cost)
    part = parts.add_parser("attention", help="attention variants beside literal implementations")
    part.add_argument("--only", nargs="+", default=[], help="variants whose name begins with one of these")
    part.add_argument("--shapes", nargs="+", choices=SHAPES, default=["tiny", "base"])
    part.add_argument(
        "--threads", type=int, nargs="+", default=[1], help="numbers of torch threads; one table for each"
    )
    part.add_argument("--device", choices=devices, default="cpu")
    part.add_argument("--dtype", choices=("float32", "float64", "bfloat16", "float16"), default="float32")
    part.add_argument("--compile", action="store_true", help="also compare with torch.compile of the literal formula")
    part.add_argument(
        "--profile", action="store_true", help="measure the lower bound for RPC attention at n = 4 instead"
    )
    part.add_argument("--repeats", type=int, default=15, help="timed calls of each; the median is shown")
    part.set_defaults(run=attention)
    for run, title in ((keys, "the pursuit on Gaussian keys"), (gradients, "key gradients in single precision")):
        part = parts.add_parser(run.__name__, help=title)
        part.add_argument("--std", type=float, nargs="+", default=[0.3, 0.6, 1.0, 2.0])
        part.add_argument("--threshold", nargs="+", default=["lam*mu", "lam/mu"])
        part.set_defaults(run=run)
    part = parts.add_parser("pursuits", help="the pursuit in bundled models")
    part.add_argument("--names", nargs="+", default=list(PURSUING))
    part.set_defaults(run=pursuits)
    part = parts.add_parser("heads", help="when the pursuit acts, by number of heads")
    part.add_argument("--model", default="", help="a network whose keys are used in place of Gaussian ones")
    part.add_argument("--checkpoint")
    part.add_argument("--data", default="digits")
    part.add_argument("--images", type=int, default=8)
    part.set_defaults(run=heads)
    parts.add_parser("dose", help="density of S beside accuracy in the pack answer-active").set_defaults(run=dose)
    settings = parser.parse_args(sys.argv[1:] or ["cost"])
    if settings.run in (keys, gradients, pursuits, heads, dose):
        torch.set_num_threads(1)
        print(header(("torch",)), end="\n\n")
    settings.run(settings)


if __name__ == "__main__":
    main()
