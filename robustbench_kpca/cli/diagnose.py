"""`rbk diagnose`: test the kernel-PCA claims about attention on a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import require_writable
from robustbench_kpca.cli import _console, _options
from robustbench_kpca.cli._evaluating import (
    given_options,
    model_settings,
    refuse_others,
    require_claims,
    require_names,
    usable_device,
)

if TYPE_CHECKING:
    from robustbench_kpca.evaluation.requests import DataRequest
    from robustbench_kpca.study.diagnostics.procedures import Procedure


def diagnose(
    model: Annotated[
        str | None, typer.Argument(help="Model: a name of `rbk list models`, timm:NAME, or module.path:factory.")
    ] = None,
    data: Annotated[str, typer.Option(help="Data set, as in `rbk eval`; its labels are not used.")] = "digits",
    split: _options.Split = None,
    images: Annotated[int, typer.Option(min=1, help="Number of images, evenly spread over the set.")] = 100,
    size: _options.Size = None,
    crop: _options.Crop = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="corrected; or saritas2025, literally what Sarıtaş & Yıldız (2025) do: their choice of 100, 25 and 1 "
            "images, squashed, with ImageNet's mean and deviation for every model, and their arithmetic."
        ),
    ] = "corrected",
    claim: Annotated[
        list[str],
        typer.Option(help="Claim to test, of diagnostics/claims or diagnostics/PROTOCOL; by default all. Repeatable."),
    ] = [],  # noqa: B006 (typer reads the default)
    layers: Annotated[
        str | None, typer.Option(help="Attention layers, counted from 0, such as 0,5-7; by default all.")
    ] = None,
    checkpoint: _options.Checkpoint = None,
    name: Annotated[str | None, typer.Option(help="Name of the model in the diagnosis; by default MODEL.")] = None,
    set_: Annotated[list[str], typer.Option("--set", help="model.KEY=VALUE: set a model option. Repeatable.")] = [],  # noqa: B006 (typer reads the default)
    compare: Annotated[
        list[Path],
        typer.Option(help="Instead of MODEL: a folder with a diagnosis, to compare several on one page. Repeatable."),
    ] = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for diagnosis.json and its pages; by default none.")
    ] = None,
    seed: _options.Seed = 0,
    device: _options.Device = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
) -> None:
    """Test the kernel-PCA claims on a model: compare every statistic with chance, and give a verdict per claim."""
    arguments = locals()
    names = given_options(diagnose, arguments)
    require_claims(protocol, claim)
    if compare or model is None:
        refuse_others(names, "--compare", ("model", "compare", "out", "quiet"))
        _compare(compare, model, out, quiet=quiet)
        return
    require_names(models=[model], data=[data])
    from robustbench_kpca._core.strict import parse_ranges
    from robustbench_kpca.evaluation.requests import DataRequest, ModelRequest, NamedModel
    from robustbench_kpca.study.diagnostics import SARITAS, tables
    from robustbench_kpca.study.diagnostics.pages import require_own, write_pages
    from robustbench_kpca.study.diagnostics.run import diagnose as measure

    numbers = None if layers is None else parse_ranges(layers, f"'{layers}'")
    request = ModelRequest.of(model, checkpoint, name=name, options=model_settings(set_))
    if out is not None:
        require_writable(out)
        require_own(out, "model")
    with _console.screen(quiet=quiet) as on_screen:
        literal = protocol == SARITAS
        pictures = DataRequest(data, split, None if literal else images, size=size, crop=crop)
        network = request.load()
        if literal:
            network, procedure = _as_the_study(network, pictures, claim or None, images, seed, quiet=quiet)
        else:
            procedure = _corrected(network, pictures, claim or None, quiet=quiet)
        named, progress = NamedModel(network, request.label, request.source), on_screen.start(request.label)
        where = usable_device(device)
        done = measure(named, procedure, layers=numbers, seed=seed, device=where, progress=progress)
    if out is not None:
        for path in (done.save(out), *write_pages(done, out)):
            _console.note(str(path), quiet=quiet)
    if json:
        _console.show_json(done.model_dump(mode="json"))
    else:
        rows = [(judged.title, judged.outcome, judged.why) for judged in done.claims.values()]
        _console.show_table(done.model.name, tables.VERDICTS, rows)


def _compare(folders: list[Path], model: str | None, out: Path | None, *, quiet: bool) -> None:
    """Write one page that compares the diagnoses in several folders; does not import torch."""
    from robustbench_kpca.study.diagnostics.diagnosis import load_diagnosis
    from robustbench_kpca.study.diagnostics.pages import require_own, write_comparison

    if model is not None or not folders or out is None:
        problem = "MODEL and --compare together" if model and folders else "no MODEL" if not folders else "no --out"
        raise BadInputError(problem, expected="a MODEL, or --compare DIR --compare DIR --out DIR")
    require_writable(out)
    require_own(out, "comparison")
    diagnoses = [load_diagnosis(folder) for folder in folders]
    for path in write_comparison(diagnoses, out):
        _console.note(str(path), quiet=quiet)


def _corrected(network: Any, pictures: "DataRequest", claims: list[str] | None, *, quiet: bool) -> "Procedure":
    from robustbench_kpca.data.samples import Samples
    from robustbench_kpca.evaluation.requests import how_shown
    from robustbench_kpca.study.diagnostics.procedures import corrected
    from robustbench_kpca.study.diagnostics.sources import ImageSource

    samples = Samples.require(pictures.load_for(network))
    _console.note(how_shown(samples, network), quiet=quiet)
    return corrected(ImageSource(samples.in_order()), claims)


def _as_the_study(
    network: Any, pictures: "DataRequest", claims: list[str] | None, most: int, seed: int, *, quiet: bool
) -> "tuple[Any, Procedure]":
    """Return the model that normalises as the study does, and the study's measurements on its choice of images."""
    from robustbench_kpca.data.samples import Samples
    from robustbench_kpca.evaluation.requests import how_shown
    from robustbench_kpca.study.diagnostics.procedures import normalise_as_study, study_of_images, study_view

    every = Samples.require(pictures.load(study_view(network)))
    procedure = study_of_images(every, claims, most=most, seed=seed)
    _console.note(how_shown(every, network), quiet=quiet)
    return normalise_as_study(network), procedure
