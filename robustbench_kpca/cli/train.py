"""`rbk train`: train a model from a recipe."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Quiet


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe of `rbk list recipes`, or a TOML file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for weights and curves.")] = Path("runs"),
    data: Annotated[
        Path | None, typer.Option(help="Folder of image files or scenes, for recipes that read them.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE of the recipe: seed=1.")] = None,
    name: Annotated[str, typer.Option(help="Name of the files; by default the recipe's.")] = "",
    resume: Annotated[bool, typer.Option(help="Go on after the last finished epoch.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, whatever is there under that name.")] = False,
    keep_every: Annotated[int, typer.Option(min=0, help="Keep the weights of every so many epochs; 0: none.")] = 0,
    tensorboard: Annotated[bool, typer.Option(help="Write the curves for TensorBoard, too.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model from a recipe; write its weights with their provenance, and its curves.

    On several processes: accelerate launch -m robustbench_kpca train RECIPE.
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
    first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun or accelerate started
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
