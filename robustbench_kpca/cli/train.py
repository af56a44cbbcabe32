"""`rbk train`: train a model from a recipe."""

from pathlib import Path
from typing import Annotated

import typer

from robustbench_kpca.cli import _console
from robustbench_kpca.cli._options import Quiet


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe of `rbk list recipes`, or a TOML file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for weights and curves.")] = Path("runs"),
    resume: Annotated[bool, typer.Option(help="Go on after the last finished epoch.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model from a recipe; write its weights with their provenance, and its curves."""
    from robustbench_kpca.evaluation.environment import revision
    from robustbench_kpca.models.checkpoint import read_header
    from robustbench_kpca.training.loop import Epoch
    from robustbench_kpca.training.loop import train as run
    from robustbench_kpca.training.recipe import load_recipe

    name, parsed, text = load_recipe(recipe)
    with _console.progress(quiet=quiet) as start:
        update = start(name)

        def report(epoch: Epoch) -> None:
            update(epoch.epoch + 1, parsed.epochs)
            if epoch.epoch % 10 == 9 or epoch.epoch + 1 == parsed.epochs:
                _console.note(
                    f"epoch {epoch.epoch + 1}/{parsed.epochs}: loss {epoch.loss:.3f}, train "
                    f"{100 * epoch.train_accuracy:.1f} %, val {100 * epoch.val_accuracy:.1f} %",
                    quiet=quiet,
                )

        path = run(name, parsed, text, out, resume=resume, revision=revision(), report=report)
    header = read_header(path)
    _console.out.print(f"{path}: test accuracy {100 * float(header['test_accuracy']):.2f} %", markup=False)
