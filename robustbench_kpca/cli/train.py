"""`rbk train`: train a model from a recipe."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Quiet

if TYPE_CHECKING:
    from robustbench_kpca.training.seeds import Wanted


def train(
    recipe: Annotated[str, typer.Argument(help="Recipe: a name of `rbk list recipes`, or a TOML file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for weights and curves.")] = Path("runs"),
    data: Annotated[
        Path | None, typer.Option(help="Folder of images, with or without masks, for recipes that read files.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE: set a field of the recipe, such as seed=1. Repeatable."),
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="Seeds, such as 0,1,2 or 0-4: one run each, with files named NAME-s0, NAME-s1, ...")
    ] = "",
    together: Annotated[
        bool,
        typer.Option(
            "--together", help="Train the seeds in one pass, as one model of several: for small models on a GPU."
        ),
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="CPU threads of torch, as --set threads=N. The number changes the last bits."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the output files; by default that of the recipe.")] = "",
    resume: Annotated[
        bool, typer.Option(help="Continue after the last finished epoch. A finished run stays as it is.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start from the beginning and overwrite files of that name.")
    ] = False,
    keep_every: Annotated[
        int, typer.Option(min=0, help="Also save the weights after every N-th epoch; 0: do not.")
    ] = 0,
    quiet: Quiet = False,
) -> None:
    """Train a model from a recipe; write its weights, with all that determined them, and its training curves.

    --seeds 0,1,2 trains three runs, one after the other, and --together all at once. --resume goes on after an
    interruption. `rbk images draw curves NAME...` draws the curves of one or several runs.
    To train with several processes: accelerate launch -m robustbench_kpca train RECIPE.
    """
    from robustbench_kpca._core.files import safe_name
    from robustbench_kpca._core.strict import parse_assignments
    from robustbench_kpca.training.schedules import read_recipe

    read_recipe(recipe)  # refuses a bad recipe before the imports below, which take seconds
    from robustbench_kpca.training.loop import require_free
    from robustbench_kpca.training.seeds import runs_of

    if fresh and resume:
        raise BadInputError("--fresh and --resume", expected="one of them: begin anew, or go on")
    if data is not None and not data.exists():
        raise BadInputError(f"no data at {data}", fix="check --data")
    if together and not seeds:
        raise BadInputError("--together", expected="several seeds", fix="add --seeds 0-9, or leave --together out")
    overrides = parse_assignments(set_ or []) | ({} if threads is None else {"threads": threads})
    runs = runs_of(recipe, overrides, seeds, safe_name(name) if name else "")
    if not fresh:
        require_free(out, {run.name: run.text for run in runs}, resume=resume)
    # only one of the processes that torchrun or accelerate starts prints
    is_main_process = os.environ.get("RANK", "0") == "0"
    settings = {"resume": resume, "fresh": fresh, "data": data, "keep_every": keep_every}
    for runs_in_one_pass in [runs] if together else [[run] for run in runs]:
        lines = _train(runs_in_one_pass, out, settings, quiet=quiet or not is_main_process)
        for line in lines if is_main_process else ():
            _console.say(line)


def _train(runs: Sequence["Wanted"], out: Path, settings: dict[str, Any], *, quiet: bool) -> list[str]:
    """Train runs in one pass; return the lines that report them."""
    from robustbench_kpca._engine.inference.environment import revision
    from robustbench_kpca.models.bundle import read_header
    from robustbench_kpca.models.families import task_of
    from robustbench_kpca.tasks import task_named
    from robustbench_kpca.training.ledger import Epoch, Options
    from robustbench_kpca.training.loop import train_together

    recipe = runs[0].recipe
    task, epochs = task_named(task_of(recipe.model)), recipe.epochs
    with _console.screen(quiet=quiet) as on_screen:

        def on_epoch(name: str, epoch: Epoch) -> None:
            if (epoch.epoch + 1) % max(1, epochs // 10) == 0 or epoch.epoch + 1 == epochs:
                text = _describe(epoch, epochs, task)
                _console.note(text if len(runs) == 1 else f"{name}: {text}", quiet=quiet)

        options = Options(
            revision=revision(),
            on_epoch=on_epoch,
            on_step=on_screen.start(runs[0].name if len(runs) == 1 else f"{len(runs)} seeds of {runs[0].name}"),
            on_note=partial(_console.note, quiet=quiet),
            **settings,
        )
        paths = train_together(runs, [out] * len(runs), options)
    return [_line(path, task, read_header(path)) for path in paths]


def _line(path: Path, task: Any, header: Mapping[str, str]) -> str:
    return f"{path}: {task.describe('test', header) or task.describe('val', header)}"


def _describe(epoch: Any, epochs: int, task: Any) -> str:
    text = f"epoch {epoch.epoch + 1}/{epochs}: loss {epoch.loss:.3f}, train {100 * epoch.train_accuracy:.1f} %"
    if "val_loss" in epoch.scores:
        text += f", val loss {epoch.scores['val_loss']:.3f}"
    scores = (task.describe(part, epoch.scores) for part in ("val", "ema_val", "val_adv", "val_stronger"))
    return ", ".join([text, *(score for score in scores if score)])
