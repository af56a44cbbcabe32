"""`rbk images draw`: draw adversarial images, corrupted images, segmentations, or training curves."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import write_atomic
from robustbench_kpca.cli import _console, _options
from robustbench_kpca.cli._evaluating import given_options, refuse_others, require_names, split_settings

if TYPE_CHECKING:
    from torch import nn

    from robustbench_kpca.data.base import Dataset

_PROTOCOLS = {"adversarial": "pgd20-linf-8_255", "segmentation": "segmentation"}
Kind = Literal["adversarial", "corruptions", "segmentation", "curves"]
_OF_MODEL = ("model", "protocol", "data", "split", "checkpoint", "set_", "images", "out")
_OF: dict[Kind, tuple[str, ...]] = {
    "adversarial": (*_OF_MODEL, "size", "crop"),
    "corruptions": ("files", "out"),
    "segmentation": _OF_MODEL,
    "curves": ("files", "out"),
}


def draw(
    kind: Annotated[
        Kind,
        typer.Argument(
            help="adversarial: clean images, adversarial images, and their difference, in full contrast; corruptions: "
            "an image under every corruption at every severity; segmentation: images, masks and predictions; "
            "curves: loss and scores of trainings by epoch."
        ),
    ],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="The image of corruptions; or the runs of rbk train of curves: NAME.csv, NAME.safetensors, or both "
            "without suffix. NAME-s0, NAME-s1, … have one colour.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model, as in `rbk eval`.")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            "-p",
            help="Attack; or, of segmentation, clean protocol, which sets the windows. By default "
            "pgd20-linf-8_255, or segmentation.",
            show_default=False,
        ),
    ] = None,
    data: _options.Data = None,
    split: _options.Split = None,
    size: _options.Size = None,
    crop: _options.Crop = None,
    checkpoint: _options.Checkpoint = None,
    set_: _options.Settings = [],  # noqa: B006 (typer reads the default)
    images: Annotated[int, typer.Option(min=1, max=24, help="Number of images, evenly spread over the set.")] = 4,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Output file: .png, of curves .svg; by default KIND.png, or curves.svg.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Draw adversarial images, corrupted images, segmentations, or training curves."""
    refuse_others(given_options(draw, locals()), f"kind {kind}", ("kind", *_OF[kind]))
    ending = ".svg" if kind == "curves" else ".png"
    out = Path(f"{kind}{ending}") if out is None else out
    if out.suffix != ending:
        raise BadInputError(f"--out {out}", expected=f"a name that ends in {ending}")
    if kind == "curves":
        _curves(files or [], out)
    elif kind == "corruptions":
        _corruptions(files or [], out)
    elif model is None:
        raise BadInputError(f"kind {kind} without a model", fix="add --model NAME")
    else:
        from robustbench_kpca._core.strict import parse_assignments

        attacked = kind == "adversarial"
        data, protocol = data or (None if attacked else "shapes"), protocol or _PROTOCOLS[kind]
        options, overrides = split_settings(parse_assignments(set_))
        require_names(models=[model], protocols=[protocol], overrides=overrides, data=[data])
        from robustbench_kpca.evaluation.requests import DataRequest
        from robustbench_kpca.models.loading import load_model

        network = load_model(model, checkpoint, **options)
        samples = DataRequest(data, split, images, size=size, crop=crop).of([model]).load_for(network)
        (_adversarial if attacked else _segmentation)(network, samples, protocol, overrides, out)


def _adversarial(network: "nn.Module", data: "Dataset", protocol: str, overrides: dict[str, Any], out: Path) -> None:
    import torch

    from robustbench_kpca.data.samples import Samples
    from robustbench_kpca.evaluation.api import attack
    from robustbench_kpca.evaluation.requests import how_shown
    from robustbench_kpca.report.pictures import grid

    pictures = Samples.require(data)
    _console.note(how_shown(pictures, network), quiet=False)
    clean, labels = pictures.tensors()
    result = attack(network, clean, labels, protocol, **overrides)
    with torch.no_grad():
        before, after = network(clean).argmax(1).tolist(), network(result.images).argmax(1).tolist()
    delta = result.images - clean
    amplified = (0.5 + delta / (2 * delta.abs().max().clamp_min(1e-12)),)
    rows = [list(batch.permute(0, 2, 3, 1).numpy()) for batch in (clean, result.images, *amplified)]
    titles = [f"{label}: {b} → {a}" for label, b, a in zip(labels.tolist(), before, after, strict=True)]
    write_atomic(out, grid(rows, ["clean", protocol, "difference"], titles))
    _console.say(f"{out}: {int(result.broken.sum())} of {len(labels)} broken (label: clean → attacked)")


def _corruptions(files: list[str], out: Path) -> None:
    import numpy as np

    from robustbench_kpca.corruptions import CORRUPTIONS, corrupt
    from robustbench_kpca.data.io.reading import read_rgb
    from robustbench_kpca.protocols.corruption_names import SEVERITIES, canonical
    from robustbench_kpca.report.pictures import grid

    if len(files) != 1:
        raise BadInputError(f"{len(files)} files", expected="one image: rbk images draw corruptions FILE")
    pixels = np.array(read_rgb(Path(files[0])))
    names = canonical(CORRUPTIONS.names())
    rows = [[pixels, *(corrupt(pixels[None], name, level)[0] for level in SEVERITIES)] for name in names]
    write_atomic(out, grid(rows, names, ["clean", *(f"severity {level}" for level in SEVERITIES)]))
    _console.say(str(out))


def _segmentation(network: "nn.Module", scenes: "Dataset", protocol: str, overrides: dict[str, Any], out: Path) -> None:
    from robustbench_kpca.protocols.scenario import Clean
    from robustbench_kpca.report.pictures import render
    from robustbench_kpca.tasks import task_named
    from robustbench_kpca.tasks.prepare import prepare

    label, scenario = prepare(protocol, overrides)
    if not isinstance(scenario, Clean):
        raise BadInputError(
            f"protocol '{label}' has kind '{scenario.kind}'",
            expected="a protocol of kind clean",
            fix="choose for example 'segmentation'",
        )
    drawing = task_named(scenes.task).compute.draw(network, scenes, scenario)
    write_atomic(out, render(drawing))
    _console.say(f"{out}: {drawing.summary}")


def _curves(runs: list[str], out: Path) -> None:
    from robustbench_kpca.report.curves import draw_curves, read_curves

    if not runs:
        raise BadInputError("no training", expected="one or several: rbk images draw curves RUN.csv")
    write_atomic(out, draw_curves([read_curves(run) for run in runs]))
    _console.say(f"{out}: {len(runs)} {'run' if len(runs) == 1 else 'runs'}")
