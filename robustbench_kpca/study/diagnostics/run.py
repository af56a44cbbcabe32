"""`diagnose`: measure every claim on one model, block by block, with memory independent of the number of images."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # it is there, and documented

from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.progress import Progress
from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca._engine.inference.environment import environment
from robustbench_kpca._engine.inference.mode import require_evaluation_mode
from robustbench_kpca.evaluation.identity import model_info
from robustbench_kpca.evaluation.requests import NamedModel
from robustbench_kpca.study.diagnostics import similarity as s
from robustbench_kpca.study.diagnostics import thresholds
from robustbench_kpca.study.diagnostics.claims import Claim, Results, Verdict
from robustbench_kpca.study.diagnostics.diagnosis import BLOCK, Chance, Diagnosis, Judged, LayerInfo, Protocol
from robustbench_kpca.study.diagnostics.kernel import spectrum
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.passes import show
from robustbench_kpca.study.diagnostics.procedures import Procedure
from robustbench_kpca.study.diagnostics.taps import Tap, find_taps
from robustbench_kpca.study.diagnostics.totals import Totals, block_orders, draws_for

DRAWS = 20


def diagnose(
    named: NamedModel,
    procedure: Procedure,
    *,
    layers: Sequence[int] | None = None,
    block: int = BLOCK,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Diagnosis:
    """Measure the kernel-PCA claims on a model.

    Args:
        named: a model with attention layers that `taps` supports; in evaluation mode.
        procedure: what is measured on which images in [0, 1]: `procedures.corrected`, or as the study does.
        layers: numbers of the attention layers, from 0; by default all.
        block: images per block, at most all images; the model runs at this batch size.
        device: device for the model and the claims; it must support double precision.
        progress: called with the number of images done and of all images.

    Raises:
        BadInputError: no supported attention layer, or no such layer or claim.
    """
    started, created = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    model = named.model
    require_evaluation_mode(model)
    taps = _selected(find_taps(model), layers, type(model).__name__)
    parts = procedure.by_source()
    info, count = parts[0][0].info(), sum(part.info().n for part, _ in parts)
    block = min(block, info.n)
    work = Running(procedure.claims, seed, lambda done: None if progress is None else progress(done, count))
    probe: Tensor | None = None
    for part, members in parts:
        visit = partial(work.add, members=members)
        out = show(model, taps, part, visit, block=min(block, part.info().n), seed=seed, device=device)
        probe = out if probe is None else probe
    assert probe is not None
    limits = {key: float(value) for key, value in vars(thresholds).items() if key.isupper()}
    protocol = Protocol(
        procedure=procedure.name, claims=tuple(procedure.claims), images=info.n, block=block, seed=seed,
        images_of={name: procedure.sources[name].info().n for name in procedure.claims},
        thresholds=limits, layers=None if layers is None else tuple(sorted(set(layers))),
    )  # fmt: skip
    return Diagnosis(
        model=model_info(model, named.label, named.source, probe.float()), data=info, protocol=protocol,
        protocol_digest=protocol.digest(), layers=tuple(info for _, info in sorted(work.infos.items())),
        claims=work.judged(), chance=chance_levels(*work.largest(), seed=seed), created=created,
        environment=environment(torch.device(device)), seconds=time.perf_counter() - started,
    )  # fmt: skip


class Running:
    """Running totals of some claims about one model; `progress` is called with the number of images done."""

    def __init__(self, claims: Mapping[str, Claim], seed: int, progress: Callable[[int], None]) -> None:
        self.claims, self.seed, self.progress = claims, seed, progress
        self.totals: dict[str, Totals] = {}
        self.infos: dict[int, LayerInfo] = {}
        self.broken: dict[str, str] = {}
        self.images = 0

    def add(self, layers: Iterator[Layer], group: str, *, members: Mapping[str, Claim]) -> None:
        """Measure some claims on a group of images, one layer at a time."""
        observations: dict[str, list[dict[str, Tensor]]] = {name: [] for name in members}
        units: dict[str, list[tuple[int, int]]] = {name: [] for name in members}
        images = 0
        for layer in layers:
            self._record_layer(layer)
            images = len(layer.ids)
            for name, claim in members.items():
                if claim.applies(layer) and (observed := self._observe(name, claim, layer)) is not None:
                    observations[name].append(observed)
                    units[name] += [(layer.index, head) for head in layer.heads]
        for name, claim in members.items():
            if observations[name] and name not in self.broken:
                total = self.totals.setdefault(name, Totals(claim, units[name], draws_for(len(units[name]))))
                total.add(observations[name], block_orders(self.seed, group, total.draws, images))
        self.images += images
        self.progress(self.images)

    def _observe(self, name: str, claim: Claim, layer: Layer) -> dict[str, Tensor] | None:
        """Return a claim's statistics; a claim whose linear algebra fails is marked as broken, the others continue."""
        if name in self.broken:
            return None
        try:
            return claim.observe(layer)
        except LinAlgError as error:
            self.broken[name] = f"the linear algebra failed in layer {layer.index} ({reason_of(error)})"
            return None

    def _record_layer(self, layer: Layer) -> None:
        tokens = int(layer.k.shape[-2])
        self.infos[layer.index] = LayerInfo(
            index=layer.index,
            name=layer.name,
            kind=type(layer.module).__name__,
            heads=layer.heads,
            width=layer.width,
            tokens=(tokens, tokens),
            has_values=layer.v is not None,
        )

    def largest(self) -> tuple[int, int]:
        """Return the largest number of tokens and the largest head width."""
        return max(info.tokens[1] for info in self.infos.values()), max(info.width for info in self.infos.values())

    def results(self, name: str) -> Results | None:
        """Return the results of a claim; None if the model has no layer of the kind that it describes."""
        if name in self.broken:
            return Results({}, {}, self.broken[name])
        return self.totals[name].results() if name in self.totals else None

    def judged(self) -> dict[str, Judged]:
        """Return every claim with its verdict."""
        return {name: _judge(claim, self.results(name)) for name, claim in self.claims.items()}


def _judge(claim: Claim, results: Results | None) -> Judged:
    if results is None:
        results = Results({}, {})
        verdict = Verdict("not testable", "the model has no layer of the kind that the claim describes")
    elif results.broken:
        verdict = Verdict("not testable", results.broken)
    else:
        verdict = claim.verdict(results)
    return Judged(
        title=claim.title,
        source=claim.source,
        outcome=verdict.outcome,
        why=verdict.why,
        statistics=dict(results.statistics),
        profiles=dict(results.profiles),
        findings=verdict.findings,
    )


def _selected(taps: list[Tap], layers: Sequence[int] | None, kind: str) -> list[Tap]:
    if not taps:
        raise BadInputError(
            f"no attention layer of {kind} can be read",
            expected="timm's ViT or DeiT, or a model of `rbk list models`",
        )
    if layers is None:
        return taps
    wrong = [layer for layer in layers if not 0 <= layer < len(taps)]
    if wrong or not layers:
        raise BadInputError(
            f"no attention layer {wrong[0]}" if wrong else "no attention layer chosen",
            expected=f"numbers from 0 to {len(taps) - 1}",
        )
    return [taps[layer] for layer in sorted(set(layers))]


def chance_levels(tokens: int, width: int, *, seed: int = 0, draws: int = DRAWS) -> tuple[Chance, ...]:
    """Return mean and deviation of each similarity for three pairs of unrelated matrices, (tokens, width).

    A similarity at this level is no evidence: the study (arXiv:2505.07908) calls optimal cosines up to 0.32 low, which
    two independent Gaussian matrices of 197 tokens and width 64 reach by chance.
    """
    x, y, keys = (_gaussian(tokens, width, draws, f"{seed}/{part}") for part in ("x", "y", "keys"))
    orthonormal = torch.linalg.qr(y).Q if tokens >= width else y
    theory, _ = spectrum(keys).theoretical_values(width)
    pairs = {
        "Gaussian and Gaussian": y,
        "Gaussian and random orthonormal columns": orthonormal,
        "Gaussian and V_theory of Gaussian keys": theory,
    }
    return tuple(
        Chance(
            pair=pair,
            statistic=name,
            tokens=tokens,
            width=width,
            mean=float(values.mean()),
            deviation=float(values.std()) if draws > 1 else 0.0,
            draws=draws,
        )
        for pair, other in pairs.items()
        for name, values in _similarities(x, other).items()
    )


def _similarities(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Compare draw by draw: draws take the place of heads, so no draw is compared with another."""
    bases = s.basis(x), s.basis(y)
    projectors = [basis @ basis.transpose(-2, -1) for basis in bases]
    by_name = {
        "linear_cka": s.cosines(s.linear_gram(x), s.linear_gram(y)),
        "kernel_cka": s.cosines(s.kernel_gram(x), s.kernel_gram(y)),
        "debiased_cka": s.cosines(s.debiased_gram(x), s.debiased_gram(y)),
        "subspace_overlap": s.cosines(*projectors),
        "matching_cosine": s.matching_cosine(x, y),
        "direct_cosine": s.direct_cosine(x, y),
    }
    return {name: values[0, 0] for name, values in by_name.items()}


def _gaussian(tokens: int, width: int, draws: int, scope: str) -> Tensor:
    rng = generator(sample_key(0, "chance", scope))
    return torch.from_numpy(np.asarray(rng.standard_normal((1, draws, tokens, width))))
