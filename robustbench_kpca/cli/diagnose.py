"""`rbk diagnose`: test the kernel-PCA claims about attention on a model."""

from collections.abc import Iterable
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._evaluating import best_device, split_settings
from robustbench_kpca.cli._options import (
    Checkpoint,
    Data,
    Device,
    Ema,
    Json,
    Presets,
    Quiet,
    ResizePositions,
    Seed,
    Split,
    Untrained,
)

if TYPE_CHECKING:
    from robustbench_kpca.diagnostics.diagnosis import Diagnosis
    from robustbench_kpca.diagnostics.sources import Source
    from robustbench_kpca.evaluation.requests import ModelRequest

_TEXT = "transformers:"
_OF_TEXTS = ("data", "images", "claim", "layers", "heads", "block", "name", "out", "seed", "device", "json", "quiet")


def diagnose(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Model: a name of `rbk list models`, timm:NAME, module.path:factory, or transformers:NAME_OR_FOLDER "
            "with --data FILE (one text per line); or a folder of `rbk train --keep-every`, to show its projection "
            "loss by epoch, on several splits with --split train,test."
        ),
    ] = None,
    data: Data = "digits",
    split: Split = None,
    images: Annotated[int, typer.Option(min=1, help="Number of images (evenly spread over the set) or texts.")] = 100,
    claim: Annotated[
        list[str], typer.Option(help="Claim to test, of diagnostics/claims; by default all. Repeatable.")
    ] = [],  # noqa: B006 (typer reads the default)
    layers: Annotated[
        str | None, typer.Option(help="Attention layers, counted from 0, such as 0,5-7; by default all.")
    ] = None,
    heads: Annotated[str | None, typer.Option(help="Heads, counted from 0, such as 0,2; by default all.")] = None,
    block: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of images processed together; each serves as null for the others. By default 5."
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    ema: Ema = False,
    resize_positions: ResizePositions = False,
    name: Annotated[str | None, typer.Option(help="Name of the model in the diagnosis; by default MODEL.")] = None,
    set_: Annotated[list[str], typer.Option("--set", help="model.KEY=VALUE: set a model option. Repeatable.")] = [],  # noqa: B006 (typer reads the default)
    untrained: Untrained = False,
    compare: Annotated[
        list[Path],
        typer.Option(help="Instead of MODEL: a folder with a diagnosis, to compare several on one page. Repeatable."),
    ] = [],  # noqa: B006
    records: Annotated[
        list[Path],
        typer.Option(help="With --compare: a folder of records, to compare RPC models with their twins. Repeatable."),
    ] = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for diagnosis.json and its pages; by default none.")
    ] = None,
    seed: Seed = 0,
    device: Device = None,
    presets: Presets = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Test the kernel-PCA claims on a model: compare every statistic with chance, and give a verdict per claim."""
    arguments = locals()
    from robustbench_kpca.errors import BadInputError

    given = [name for name, known in signature(diagnose).parameters.items() if arguments[name] != known.default]
    if compare or model is None:
        _refuse_others(given, "--compare", ("compare", "records", "out", "json", "quiet"))
        _compare(compare, model, out, records, json=json, quiet=quiet)
        return
    if _is_run(model):
        _refuse_others(given, "a folder of checkpoints", ("data", "split", "images", "out", "seed", "json", "quiet"))
    elif model.startswith(_TEXT):
        _refuse_others(given, f"{_TEXT}NAME", _OF_TEXTS)
    elif records:
        raise BadInputError("--records without --compare", expected="--compare DIR --records DIR")
    import torch

    from robustbench_kpca.diagnostics.diagnosis import BLOCK
    from robustbench_kpca.diagnostics.pages import require_own, write_pages
    from robustbench_kpca.diagnostics.run import diagnose as measure
    from robustbench_kpca.evaluation.requests import ModelRequest
    from robustbench_kpca.files import require_writable
    from robustbench_kpca.inference.environment import environment
    from robustbench_kpca.strict import parse_assignments

    options, others = split_settings(parse_assignments(set_))
    if others:
        raise BadInputError(f"'{next(iter(others))}' cannot be set", expected="model.KEY=VALUE")
    if out is not None:
        require_writable(out)
        require_own(out, "model")
    if _is_run(model):
        _over_training(Path(model), data, split, images, out, seed=seed, json=json, quiet=quiet)
        return
    request = ModelRequest(model, checkpoint, ema, resize_positions, untrained, name, options)
    network, source = _load(request, data, split, images)
    where = device or best_device()
    with _console.progress(quiet=quiet) as start:
        done = measure(
            network, source, environment(torch.device(where)), name=request.label, origin=request.source,
            claims=claim or None, layers=_numbers(layers), heads=_numbers(heads), block=block or BLOCK, seed=seed,
            device=where, progress=start(name or model),
        )  # fmt: skip
    if out is not None:
        for path in (done.save(out), *write_pages(done, out)):
            _console.note(str(path), quiet=quiet)
    if json:
        _console.show_json(done.model_dump(mode="json"))
    else:
        _show(done)


def _refuse_others(given: Iterable[str], what: str, allowed: tuple[str, ...]) -> None:
    """Refuse options that would have no effect."""
    from robustbench_kpca.errors import BadInputError

    for name in given:
        if name not in (*allowed, "model", "presets"):
            raise BadInputError(f"--{name.rstrip('_').replace('_', '-')} with {what} has no effect", fix="omit it")


def _compare(
    folders: list[Path], model: str | None, out: Path | None, records: list[Path], *, json: bool, quiet: bool
) -> None:
    """Write one page that compares the diagnoses in several folders; does not import torch."""
    from robustbench_kpca.diagnostics.diagnosis import load_diagnosis
    from robustbench_kpca.diagnostics.pages import by_name, require_own, write_comparison
    from robustbench_kpca.errors import BadInputError
    from robustbench_kpca.files import require_writable
    from robustbench_kpca.records.record import find_records, load_record

    if model is not None or not folders or out is None:
        met = "MODEL and --compare together" if model and folders else "no MODEL" if not folders else "no --out"
        raise BadInputError(met, expected="a MODEL, or --compare DIR --compare DIR --out DIR")
    require_writable(out)
    require_own(out, "comparison")
    found = [load_record(path) for folder in records for path in find_records(folder)]
    diagnoses = [load_diagnosis(folder) for folder in folders]
    for path in write_comparison(diagnoses, out, found):
        _console.note(str(path), quiet=quiet)
    if json:
        verdicts = {
            name: {claim: {"outcome": judged.outcome, "why": judged.why} for claim, judged in one.claims.items()}
            for name, one in by_name(diagnoses).items()
        }
        _console.show_json(verdicts)


def _load(request: "ModelRequest", data: str, split: str | None, images: int) -> "tuple[Any, Source]":
    from robustbench_kpca.data.load import load_data
    from robustbench_kpca.data.samples import Samples
    from robustbench_kpca.diagnostics.sources import ImageSource, load_text_model
    from robustbench_kpca.models.loading import input_view

    if request.model.startswith(_TEXT):
        return load_text_model(request.model.removeprefix(_TEXT), Path(data), images)
    network = request.load()
    samples = Samples.require(load_data(data, split, images, view=input_view(network)))
    return network, ImageSource(samples.in_order())


def _is_run(model: str) -> bool:
    """Tell whether `model` is a folder of checkpoints; the name of a model takes precedence over a folder."""
    from robustbench_kpca.models.families import ARCHITECTURES
    from robustbench_kpca.models.loading import bundled

    return Path(model).is_dir() and model not in {*ARCHITECTURES, *bundled()}


def _over_training(
    folder: Path, data: str, split: str | None, images: int, out: Path | None, *, seed: int, json: bool, quiet: bool
) -> None:
    from robustbench_kpca.diagnostics.epochs import COLUMNS
    from robustbench_kpca.diagnostics.pages import write_trajectory
    from robustbench_kpca.diagnostics.trajectory import over_training

    splits = [None] if split is None else split.split(",")
    found = over_training(folder, data, splits, images, seed=seed)
    if out is not None:
        for path in write_trajectory(found, out):
            _console.note(str(path), quiet=quiet)
    if json:
        _console.show_json(found.model_dump(mode="json"))
    else:
        _console.show_table(found.name, COLUMNS, found.rows())


def _numbers(text: str | None) -> list[int] | None:
    """Parse numbers and ranges such as `0,5-7`."""
    from robustbench_kpca.errors import BadInputError

    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not all(_is_number(end) for end in ((first, last) if dash else (first,))):
            raise BadInputError(f"'{text}'", expected="numbers and ranges, such as 0,5-7")
        found += range(int(first), int(last or first) + 1)
    return found


def _is_number(text: str) -> bool:
    return text.strip().isascii() and text.strip().isdecimal()


def _show(done: "Diagnosis") -> None:
    from robustbench_kpca.diagnostics import tables

    _console.show_table(done.model.name, tables.STATISTICS, tables.statistic_rows(done))
    _console.show_table("\nWhat others found", tables.FINDINGS, tables.finding_rows(done))
    _console.show_table("\nVerdicts", tables.VERDICTS, tables.verdict_rows(done))
