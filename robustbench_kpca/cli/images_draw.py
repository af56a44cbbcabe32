"""`rbk images draw`: draw adversarial images, corrupted images, segmentations, or training curves."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console, _options
from robustbench_kpca.cli._evaluating import require_names

app = typer.Typer(
    help="Draw adversarial images, corrupted images, segmentations, or training curves.", rich_markup_mode=None
)


@app.command()
def adversarial(
    model: Annotated[str, typer.Option("--model", "-m", help="Model, as in `rbk eval`.")],
    protocol: Annotated[
        str, typer.Option("--protocol", "-p", help="Attack protocol, by name or TOML file.")
    ] = "pgd20-linf-8_255",
    data: _options.Data = None,
    split: _options.Split = None,
    size: _options.Size = None,
    crop: _options.Crop = None,
    checkpoint: _options.Checkpoint = None,
    resize_positions: _options.ResizePositions = False,
    images: Annotated[int, typer.Option(min=1, max=24, help="Number of images.")] = 8,
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file, a PNG.")] = Path("adversarial.png"),
    seed: _options.Seed = 0,
    presets: _options.Presets = None,  # noqa: ARG001 (set by its callback)
) -> None:
    """Draw clean images, adversarial images, and their difference (scaled to full contrast)."""
    require_names(models=[model], protocols=[protocol], data=[data])
    import torch

    from robustbench_kpca._core.files import write_atomic
    from robustbench_kpca.data.samples import Samples
    from robustbench_kpca.evaluation.api import attack
    from robustbench_kpca.evaluation.requests import DataRequest, how_shown
    from robustbench_kpca.models.loading import load_model
    from robustbench_kpca.report.pictures import grid

    network = load_model(model, checkpoint, resize_positions=resize_positions)
    samples = Samples.require(DataRequest(data, split, images, size=size, crop=crop).of([model]).load_for(network))
    _console.note(how_shown(samples, network), quiet=False)
    clean, labels = samples.tensors()
    result = attack(network, clean, labels, protocol, seed=seed)
    with torch.no_grad():
        before, after = network(clean).argmax(1).tolist(), network(result.images).argmax(1).tolist()
    delta = result.images - clean
    shown = (0.5 + delta / (2 * delta.abs().max().clamp_min(1e-12)),)
    rows = [list(batch.permute(0, 2, 3, 1).numpy()) for batch in (clean, result.images, *shown)]
    titles = [f"{label}: {b} → {a}" for label, b, a in zip(labels.tolist(), before, after, strict=True)]
    write_atomic(out, grid(rows, ["clean", protocol, "difference"], titles))
    _console.out().print(
        f"{out}: {int(result.broken.sum())} of {len(labels)} broken (label: clean → attacked)", markup=False
    )


@app.command()
def corruptions(
    image: Annotated[Path, typer.Option("--image", help="Image file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file, .png or .html.")] = Path("corruptions.png"),
    profile: Annotated[str, typer.Option(help="Parameter set: imagecorruptions, imagenet_c or cifar_c.")] = (
        "imagecorruptions"
    ),
    frost: _options.Frost = None,
    seed: _options.Seed = 0,
) -> None:
    """Draw an image under every corruption at every severity."""
    import numpy as np

    from robustbench_kpca._core.errors import BadInputError
    from robustbench_kpca._core.files import write_atomic
    from robustbench_kpca.corruptions import CORRUPTIONS, corrupt
    from robustbench_kpca.data.io.reading import read_rgb
    from robustbench_kpca.protocols.corruption_names import SEVERITIES, canonical
    from robustbench_kpca.report.pictures import grid, page

    if out.suffix not in (".png", ".html"):
        raise BadInputError(f"--out {out}", expected="a name that ends in .png or .html")
    pixels = np.array(read_rgb(image))
    pictures = "generated" if frost is None else str(frost)
    names, severities = canonical(CORRUPTIONS.names()), SEVERITIES
    rows = [
        [
            pixels,
            *(corrupt(pixels[None], name, level, seed, profile=profile, frost=pictures)[0] for level in severities),
        ]
        for name in names
    ]
    draw = grid if out.suffix == ".png" else page
    write_atomic(out, draw(rows, names, ["clean", *(f"severity {level}" for level in severities)]))
    _console.say(str(out))


@app.command()
def segmentation(
    model: Annotated[str, typer.Option("--model", "-m", help="Model, as in `rbk eval`.")],
    protocol: Annotated[
        str,
        typer.Option("--protocol", "-p", help="Clean or corruption protocol, which sets the windows and corruptions."),
    ] = "segmentation",
    data: Annotated[str, typer.Option(help="Data set with masks: shapes, or NAME:FOLDER.")] = "shapes",
    split: _options.Split = None,
    checkpoint: _options.Checkpoint = None,
    untrained: _options.Untrained = False,
    set_: _options.Settings = [],  # noqa: B006 (typer reads the default)
    corruption: Annotated[
        str | None,
        typer.Option(help="Corruption of `rbk list corruptions` to draw next to the clean image; by default none."),
    ] = None,
    severity: Annotated[int, typer.Option(min=1, max=5, help="Severity of the corruption, 1 to 5.")] = 3,
    images: Annotated[int, typer.Option(min=1, max=24, help="Number of images, evenly spread over the set.")] = 4,
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file, .png or .html.")] = Path("segmentation.png"),
    frost: _options.Frost = None,
    seed: _options.Seed = 0,
    presets: _options.Presets = None,  # noqa: ARG001 (set by its callback)
) -> None:
    """Draw images, their masks, and the predictions of a model, clean and corrupted."""
    from robustbench_kpca._core.strict import parse_assignments
    from robustbench_kpca.cli._evaluating import split_settings

    options, overrides = split_settings(parse_assignments(set_))
    require_names(models=[model], protocols=[protocol], overrides=overrides, data=[data])
    from robustbench_kpca._core.errors import BadInputError
    from robustbench_kpca._core.files import write_atomic
    from robustbench_kpca._engine.inference.corrupted import frost_of
    from robustbench_kpca.corruptions import require_profile
    from robustbench_kpca.data.load import load_data
    from robustbench_kpca.models.loading import load_model
    from robustbench_kpca.protocols.loading import to_draw
    from robustbench_kpca.protocols.scenario import Corruption
    from robustbench_kpca.report.pictures import render
    from robustbench_kpca.tasks import task_named
    from robustbench_kpca.tasks.prepare import prepare

    if out.suffix not in (".png", ".html"):
        raise BadInputError(f"--out {out}", expected="a name that ends in .png or .html")
    odd = next((key for key in overrides if key in ("clean", "corruptions", "severities")), None)
    if odd is not None:
        raise BadInputError(f"--set {odd}", expected="--corruption and --severity, which select the drawn corruption")
    label, asked = prepare(protocol, overrides)
    scenario = to_draw(label, asked, None if corruption is None else (corruption, severity))
    if isinstance(scenario, Corruption):
        require_profile(str(corruption), scenario.profile)
    pictures = frost_of(scenario, frost)
    samples = load_data(data, split, images)
    network = load_model(model, checkpoint, untrained=untrained, **options)
    drawing = task_named(samples.task).compute.draw(network, samples, scenario, seed=seed, frost=pictures)
    write_atomic(out, render(drawing, html=out.suffix == ".html"))
    _console.say(f"{out}: {drawing.summary}")


@app.command()
def curves(
    runs: Annotated[
        list[str], typer.Argument(help="Runs of rbk train: NAME.csv, NAME.safetensors, or both without suffix.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file, .svg or .png.")] = Path("curves.svg"),
) -> None:
    """Draw loss and scores by epoch of one or several trainings, on training and validation data.

    Runs of one recipe with several seeds, NAME-s0, NAME-s1, ..., have one colour.
    """
    from robustbench_kpca._core.files import write_atomic
    from robustbench_kpca.report.curves import draw_curves, read_curves

    write_atomic(out, draw_curves([read_curves(run) for run in runs], out.suffix))
    _console.say(f"{out}: {len(runs)} {'run' if len(runs) == 1 else 'runs'}")
