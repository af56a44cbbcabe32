"""Options that several commands share."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.protocols import presets


def _set_presets(folder: Path | None) -> Path | None:
    if folder is not None:
        if not folder.is_dir():
            raise typer.BadParameter(f"{folder} is no folder")
        os.environ[presets.ENVIRONMENT_VARIABLE] = str(folder)
    return folder


Presets = Annotated[
    Path | None,
    typer.Option(
        help="Folder with your own attacks/, corruptions/ and leaderboards/; it goes before the bundled ones.",
        callback=_set_presets,
        is_eager=True,
    ),
]


class BadImages(StrEnum):
    """What to do with image files that cannot be read."""

    fail = "fail"
    skip = "skip"


Frost = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the original frost pictures (frost1.png to frost5.jpg), for what is not to use generated ones."
    ),
]
Data = Annotated[
    str, typer.Option(help="A data set of `rbk list data`, NAME:FOLDER for one that is stored, or a folder of images.")
]
Split = Annotated[
    str | None,
    typer.Option(help="Part of a named data set; by default test, or val where there is no test.", show_default=False),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only so many images, spread over the set.")]
Untrained = Annotated[bool, typer.Option(help="Allow a model without weights.")]
Seed = Annotated[int, typer.Option(help="Of all randomness.")]
Settings = Annotated[
    list[str],
    typer.Option("--set", help="KEY=VALUE: a protocol field (eps=3/255), or model.KEY=VALUE. Repeatable."),
]
Allow = Annotated[
    list[str], typer.Option(help="A preflight check that may fail, such as batch; the record says so. Repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no remarks.")]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda; by default cuda where there is one.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that load and corrupt images.")]
BatchSize = Annotated[int, typer.Option(min=1, help="The one size at which the model runs; part of the record.")]
Checkpoint = Annotated[
    str | None, typer.Option(help="Weights for a single model: a safetensors or torch file, or hf-hub:OWNER/NAME.")
]
Ema = Annotated[bool, typer.Option("--ema", help="Take the averaged (EMA) weights of the checkpoint.")]
ResizePositions = Annotated[
    bool,
    typer.Option(
        "--resize-positions", help="Resample position embeddings of another image size (bicubic, antialiased)."
    ),
]
