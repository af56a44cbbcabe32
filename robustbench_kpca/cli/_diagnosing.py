"""What `rbk diagnose` does with one model: load it and its data, measure, write the pages."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._evaluating import usable_device

if TYPE_CHECKING:
    from robustbench_kpca._core.progress import Progress
    from robustbench_kpca.evaluation.requests import ModelRequest
    from robustbench_kpca.study.diagnostics.diagnosis import Diagnosis
    from robustbench_kpca.study.diagnostics.procedures import Procedure


@dataclass(frozen=True)
class Settings:
    """What is measured, whatever the model; fields as the options of the command."""

    data: str
    split: str | None
    images: int
    size: int | None
    crop: float | None
    protocol: str
    claims: list[str] | None
    layers: list[int] | None
    seed: int
    device: str | None


def measured(
    request: "ModelRequest", settings: Settings, progress: "Callable[[str], Progress]", *, quiet: bool
) -> "Diagnosis":
    """Load a model and its data, say how pictures are shown, and measure."""
    from robustbench_kpca.evaluation.requests import NamedModel
    from robustbench_kpca.study.diagnostics.run import diagnose

    network, procedure = _load(request, settings, quiet=quiet)
    named, told = NamedModel(network, request.label, request.source), progress(request.label)
    device = usable_device(settings.device)
    return diagnose(named, procedure, layers=settings.layers, seed=settings.seed, device=device, progress=told)


def written(done: "Diagnosis", out: Path, *, quiet: bool) -> None:
    """Write a diagnosis and its pages, and say where."""
    from robustbench_kpca.study.diagnostics.pages import write_pages

    for path in (done.save(out), *write_pages(done, out)):
        _console.note(str(path), quiet=quiet)


def _load(request: "ModelRequest", settings: Settings, *, quiet: bool) -> "tuple[Any, Procedure]":
    from robustbench_kpca.data.samples import Samples
    from robustbench_kpca.evaluation.requests import DataRequest, how_shown
    from robustbench_kpca.study.diagnostics import SARITAS, procedures
    from robustbench_kpca.study.diagnostics.sources import ImageSource

    literal, claims = settings.protocol == SARITAS, settings.claims
    network = request.load()
    limit = None if literal else settings.images
    pictures = DataRequest(settings.data, settings.split, limit, size=settings.size, crop=settings.crop)
    if literal:
        every = Samples.require(pictures.load(procedures.study_view(network)))
        procedure = procedures.study_of_images(every, claims, most=settings.images, seed=settings.seed)
        _console.note(how_shown(every, network), quiet=quiet)
        return procedures.normalise_as_study(network), procedure
    samples = Samples.require(pictures.load_for(network))
    _console.note(how_shown(samples, network), quiet=quiet)
    return network, procedures.corrected(ImageSource(samples.in_order()), claims)


def numbers(text: str | None) -> list[int] | None:
    """Parse numbers and ranges such as `0,5-7`."""
    from robustbench_kpca._core.strict import parse_ranges

    return None if text is None else parse_ranges(text, f"'{text}'")
