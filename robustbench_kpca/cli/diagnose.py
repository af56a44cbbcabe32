"""`rbk diagnose`: test the kernel-PCA claims about attention on a model."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console, _options
from robustbench_kpca.cli._diagnosing import Settings, measured, numbers, written
from robustbench_kpca.cli._evaluating import given_options, refuse_others, require_claims, require_names, split_settings


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
    from robustbench_kpca._core.errors import BadInputError

    settings = Settings(
        data,
        split,
        images,
        size,
        crop=crop,
        protocol=protocol,
        claims=claim or None,
        layers=numbers(layers),
        seed=seed,
        device=device,
    )
    names = given_options(diagnose, arguments)
    require_claims(protocol, claim)
    if compare or model is None:
        refuse_others(names, "--compare", ("model", "compare", "out", "quiet"))
        _compare(compare, model, out, quiet=quiet)
        return
    require_names(models=[model], data=[data])
    from robustbench_kpca._core.files import require_writable
    from robustbench_kpca._core.strict import parse_assignments
    from robustbench_kpca.evaluation.requests import ModelRequest
    from robustbench_kpca.study.diagnostics.pages import require_own

    options, rest = split_settings(parse_assignments(set_))
    if rest:
        raise BadInputError(f"'{next(iter(rest))}' cannot be set", expected="model.KEY=VALUE")
    if out is not None:
        require_writable(out)
        require_own(out, "model")
    request = ModelRequest.of(model, checkpoint, name=name, options=options)
    with _console.screen(quiet=quiet) as on_screen:
        done = measured(request, settings, on_screen.start, quiet=quiet)
    if out is not None:
        written(done, out, quiet=quiet)
    if json:
        _console.show_json(done.model_dump(mode="json"))
    else:
        from robustbench_kpca.study.diagnostics import tables

        _console.show_table(done.model.name, tables.VERDICTS, tables.verdict_rows(done))


def _compare(folders: list[Path], model: str | None, out: Path | None, *, quiet: bool) -> None:
    """Write one page that compares the diagnoses in several folders; does not import torch."""
    from robustbench_kpca._core.errors import BadInputError
    from robustbench_kpca._core.files import require_writable
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
