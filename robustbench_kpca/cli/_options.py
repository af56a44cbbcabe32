"""Options that several commands share; those of a run are the fields of `RunOptions`, with their help and ranges."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from robustbench_kpca.evaluation.options import DEFAULTS, OPTIONS, TYPES, run_options

HELP = {name: option.help for name, option in OPTIONS.items()}
Frost = Annotated[Path | None, typer.Option(help=HELP["frost_folder"])]
Allow = Annotated[list[str], typer.Option(help=HELP["allow"])]
SEVERAL = "Repeatable, or several with commas."
MODEL = (
    "a name of `rbk list models`, timm:NAME, torchvision:NAME, robustbench:NAME, hf:OWNER/NAME or hf:FOLDER, "
    "FILE.onnx, or your own FILE.py:FACTORY or MODULE:FACTORY, whose code is run"
)
Data = Annotated[
    str | None,
    typer.Option(
        help="Data set: a name of `rbk list data`, NAME:FOLDER for a stored one, a folder of images, or FILE.py:LOAD. "
        "By default the set that the model is named after, such as digits for vit_digits.",
        show_default=False,
    ),
]
Size = Annotated[
    int | None,
    typer.Option(
        min=1,
        show_default=False,
        help="Side in pixels to which pictures are resized, without cropping (published files keep the crop of their "
        "protocol). By default the size that the model states, or else their own. The record says what was done.",
    ),
]
Crop = Annotated[
    float | None,
    typer.Option(
        show_default=False,
        help="Share of a picture that is kept, such as 0.875: its short side is resized to size / crop, and the centre "
        "cropped. By default as the model states; with --size nothing is cropped.",
    ),
]
Classes = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of classes, if labels are numbers and some do not occur; by default that of the model."
    ),
]
Split = Annotated[
    str | None,
    typer.Option(help="Split of a named data set; by default test, or val if there is no test.", show_default=False),
]
SplitOfTask = Annotated[
    str | None,
    typer.Option(help="Split of a named data set; by default test, or val for images with masks.", show_default=False),
]
Protocols = Annotated[
    list[str],
    typer.Option(
        "--protocol",
        "-p",
        help="Protocol: a name of `rbk list protocols`, a TOML file, or your own FILE.py:ATTACK with --set eps=2/255. "
        f"{SEVERAL}",
    ),
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Number of images to use, evenly spread over the set; by default all.")
]
Seed = Annotated[int, typer.Option(help=HELP["seed"])]
Settings = Annotated[
    list[str],
    typer.Option(
        "--set",
        help="KEY=VALUE: set a protocol field (eps=3/255) or, as model.KEY=VALUE, a model option; also "
        "model.untrained=true, and with --checkpoint model.resize_positions=true. Repeatable.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
To = Annotated[
    Literal["page", "latex"],
    typer.Option(help="What is written: pages and their numbers, or board.tex, a table for a paper (booktabs)."),
]
Intervals = Annotated[bool, typer.Option("--intervals", help="Write 95 % intervals into board.tex, too.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no remarks.")]
Device = Annotated[str | None, typer.Option(help=HELP["device"])]
Workers = Annotated[int, typer.Option(min=0, help="Number of processes that load and corrupt images; 0: this process.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Batch size of the model, in images; part of the record.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        help="Weights for a single model: a safetensors or torch file, or hf-hub:OWNER/NAME. FILE::KEY names one of "
        "several state dicts in it, such as c.pth::model_ema."
    ),
]
RunCode = Annotated[
    bool,
    typer.Option(
        "--run-code",
        help="Run code that a record or board names, such as FILE.py:FACTORY. Read that code first, because it can do "
        "all that you can. Otherwise only models of the package, timm: and torchvision: and safetensors are loaded.",
    ),
]
OtherVersions = Annotated[
    bool,
    typer.Option("--other-versions", help="Go on if packages or the processor differ, and allow for rounding."),
]
SeedOfChoice = Annotated[
    int | None,
    typer.Option("--seed", min=0, help="Seed of the choice of samples; by default a new one.", show_default=False),
]


Audited = Annotated[
    Literal["full", "quick", "none"] | None,
    typer.Option(
        "--audit",
        help="Audit models before their attacks, at each eps: with all checks, the quick checks, or none "
        "(docs/trust.md). By default quick for fewer than 256 images, else full.",
        show_default=False,
    ),
]


F = TypeVar("F", bound=Callable[..., int | None])


def with_run_options(*names: str, **defaults: Any) -> Callable[[F], F]:
    """Return a decorator: a command that takes `options` gets these fields as options of its own.

    Args:
        names: names of the fields; none: all.
        defaults: those that differ from the fields' own.
    """
    fields = [name for name in OPTIONS if not names or name in names]

    def add(command: F) -> F:
        signature = inspect.signature(command)
        parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "options"]
        every = [*parameters, *(_parameter(name, defaults.get(name, DEFAULTS[name])) for name in fields)]

        @functools.wraps(command)
        def run(**arguments: Any) -> int | None:
            chosen = {name: arguments.pop(name) for name in fields}
            return command(**arguments, options=run_options(chosen)[0])

        run.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        del run.__wrapped__  # typer reads the signature of what is wrapped
        return run  # type: ignore[return-value]

    return add


def _parameter(name: str, default: Any) -> inspect.Parameter:
    option = OPTIONS[name]
    kind = list[str] if isinstance(default, tuple) else TYPES[name]
    info = typer.Option(*option.flags, help=option.help, show_default=default is not None)
    default = list(default) if isinstance(default, tuple) else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])
