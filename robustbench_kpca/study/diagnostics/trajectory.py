"""The two terms of the projection loss by epoch, from the checkpoints of `rbk train --keep-every`."""

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from robustbench_kpca._core.address import is_address
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.plugins import require_used
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.evaluation.requests import DataRequest
from robustbench_kpca.models.build import create_model
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.models.checkpoint import load_strictly, parameters_sha256
from robustbench_kpca.models.weights_file import read_state
from robustbench_kpca.study.diagnostics import CLAIMS
from robustbench_kpca.study.diagnostics.diagnosis import BLOCK, Measured
from robustbench_kpca.study.diagnostics.epochs import Course, EpochTerms, Trajectory
from robustbench_kpca.study.diagnostics.passes import show
from robustbench_kpca.study.diagnostics.run import Running
from robustbench_kpca.study.diagnostics.sources import ImageSource
from robustbench_kpca.study.diagnostics.taps import find_taps

_EPOCH = re.compile(r"(?P<name>.+)\.epoch-(?P<epoch>\d+)\.safetensors")


def over_training(folder: Path, data: str, splits: Sequence[str], images: int, *, seed: int = 0) -> Trajectory:
    """Measure the projection loss at every `<name>.epoch-NNN.safetensors` of a folder.

    Args:
        splits: its splits, such as `train` and `test`.
        images: number of images of each split, the same at every epoch.

    Raises:
        BadInputError: there are no such files, they belong to more than one run, or two splits have the same images.
    """
    checkpoints = sorted(
        (int(match["epoch"]), path) for path in folder.iterdir() if (match := _EPOCH.fullmatch(path.name))
    )
    names = sorted({path.name.rpartition(".epoch-")[0] for _, path in checkpoints})
    if len(names) != 1:
        what = f"{folder} holds checkpoints of {', '.join(names)}" if names else f"no *.epoch-*.safetensors in {folder}"
        raise BadInputError(what, expected="those of one run", fix="run: rbk train RECIPE --keep-every 1 -o FOLDER")
    sources: list[ImageSource] = []
    terms: list[list[EpochTerms]] = []
    layers: tuple[int, ...] = ()
    for epoch, path in checkpoints:
        with torch.random.fork_rng():
            model = create_model(**_config(path))
        load_strictly(model, read_state(path).state, f"checkpoint {path}")
        sources = sources or _sources(model, data, splits, images)
        digest = parameters_sha256(model)
        terms.append([])
        for source in sources:
            measured = _measured(model, source, seed)
            layers = tuple(sorted({unit.layer for unit in next(iter(measured.values())).units}))
            by_layer = {name: _by_layer(values) for name, values in measured.items()}
            terms[-1].append(EpochTerms(epoch=epoch, parameters_sha256=digest, by_layer=by_layer))
    courses = [
        Course(data=source.info(), epochs=epochs)
        for source, epochs in zip(sources, zip(*terms, strict=True), strict=True)
    ]
    return Trajectory(name=names[0], seed=seed, layers=layers, courses=tuple(courses))


def _config(path: Path) -> dict[str, Any]:
    header = read_header(path)
    if "config" not in header:
        raise BadInputError(f"{path} does not say of which model it is", expected="weights that rbk train wrote")
    config: dict[str, Any] = json.loads(header["config"])
    for value in config.values():
        if is_address(str(value)):
            require_used(str(value), str(path))
    return config


def _sources(model: torch.nn.Module, data: str, splits: Sequence[str], images: int) -> list[ImageSource]:
    loaded = [DataRequest(data, split, images).load_for(model) for split in splits]
    sources = [ImageSource(Samples.require(part).in_order()) for part in loaded]
    digests = [source.info().digest for source in sources]
    if len(set(digests)) < len(digests):
        raise BadInputError(f"two of the splits {', '.join(splits)} have the same images")
    return sources


def _measured(model: torch.nn.Module, source: ImageSource, seed: int) -> dict[str, Measured]:
    name = "projection_loss"
    work = Running({name: CLAIMS.get(name)}, seed, lambda _: None)
    visit = partial(work.add, members=work.claims)
    show(model, find_taps(model), source, visit, block=min(BLOCK, len(source.samples)), seed=seed)
    results = work.results(name)
    if results is None:
        raise BadInputError(
            "the model has no layer whose softmax averages values", expected="attention with q, k and v"
        )
    if results.broken:
        raise BadInputError(results.broken)
    return dict(results.statistics)


def _by_layer(measured: Measured) -> tuple[float, ...]:
    heads: dict[int, list[float]] = {}
    for unit in measured.units:
        heads.setdefault(unit.layer, []).append(unit.mean)
    return tuple(sum(values) / len(values) for _, values in sorted(heads.items()))
