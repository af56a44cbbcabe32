"""`rbk train`: train a model from a recipe."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Quiet


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
    name: Annotated[str, typer.Option(help="Name of the output files; by default that of the recipe.")] = "",
    resume: Annotated[bool, typer.Option(help="Continue after the last finished epoch.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start from the beginning and overwrite files of that name.")
    ] = False,
    keep_every: Annotated[
        int, typer.Option(min=0, help="Also save the weights after every N-th epoch; 0: do not.")
    ] = 0,
    tensorboard: Annotated[bool, typer.Option(help="Also write the curves for TensorBoard.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model from a recipe; write its weights with their provenance, and its training curves.

    To train with several processes: accelerate launch -m robustbench_kpca train RECIPE.
    """
    from robustbench_kpca.files import safe_name
    from robustbench_kpca.inference.environment import revision
    from robustbench_kpca.models.checkpoint import read_header
    from robustbench_kpca.models.families import task_of
    from robustbench_kpca.strict import parse_assignments
    from robustbench_kpca.tasks import task_named
    from robustbench_kpca.training.ledger import Epoch
    from robustbench_kpca.training.loop import Options
    from robustbench_kpca.training.loop import train as run
    from robustbench_kpca.training.recipe import load_recipe

    stem, parsed, text = load_recipe(recipe, parse_assignments(set_ or []))
    task = task_named(task_of(parsed.model))
    title = safe_name(name) if name else stem
    first = os.environ.get("RANK", "0") == "0"  # only one of the processes started by torchrun or accelerate prints
    quiet = quiet or not first
    with _console.progress(quiet=quiet) as start:

        def on_epoch(epoch: Epoch) -> None:
            each = max(1, parsed.epochs // 10)
            if (epoch.epoch + 1) % each == 0 or epoch.epoch + 1 == parsed.epochs:
                _console.note(_describe(epoch, parsed.epochs, task), quiet=quiet)

        options = Options(
            resume=resume, fresh=fresh, data=data, keep_every=keep_every, tensorboard=tensorboard, revision=revision(),
            on_epoch=on_epoch, on_step=start(title),
        )  # fmt: skip
        path = run(title, parsed, text, out, options)
    if first:
        header = read_header(path)
        found = f"{path}: {task.describe('test', header) or task.describe('val', header)}"
        if "unreadable" in header:
            found += f"; {header['unreadable']} unreadable files were skipped: see {title}.unreadable.txt"
        _console.out.print(found, markup=False)


def _describe(epoch: Any, epochs: int, task: Any) -> str:
    text = f"epoch {epoch.epoch + 1}/{epochs}: loss {epoch.loss:.3f}, train {100 * epoch.train_accuracy:.1f} %"
    scores = (task.describe(part, epoch.scores) for part in ("val", "ema_val"))
    return ", ".join([text, *(score for score in scores if score)])
