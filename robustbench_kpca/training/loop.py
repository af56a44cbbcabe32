"""The training loop: on any device and number of processes that accelerate supports; resumable after every epoch."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from accelerate import Accelerator

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import require_writable
from robustbench_kpca._core.lock import locked
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.training.generators import own_generators
from robustbench_kpca.training.ledger import Ledger
from robustbench_kpca.training.machine import own_threads
from robustbench_kpca.training.options import Options
from robustbench_kpca.training.recipe import Recipe
from robustbench_kpca.training.run import Run, require_same_data
from robustbench_kpca.training.spent import timed
from robustbench_kpca.training.tables import source_of


def train(name: str, recipe: Recipe, text: str, folder: Path, options: Options = Options()) -> Path:  # noqa: B008
    """Train a model; return the path of its weights, which are not there yet if `options.stop_at` ended the run.

    Files in `folder`: `<name>.safetensors` (weights and provenance), `<name>.csv` (curves), `<name>.spent.json` (time)
    and, where the recipe has a moving average of weights, `<name>.ema.safetensors`. After every epoch
    `<name>.resume.pt` is replaced; with `options.resume` training continues from it, with bit-identical results on a
    CPU with the same number of threads.
    All randomness comes from the recipe's seed; the states of the global generators are restored afterwards.

    Args:
        name: of the run and of its files.
        recipe: what is trained, and how.
        text: of the recipe, for the provenance.
        folder: where files are written; it is made if necessary.
        options: that do not change the numbers.

    Raises:
        BadInputError: the folder cannot be written, it holds a run of another recipe or on other data, another process
            trains under this name, or the data cannot be used.
        EvaluationError: the loss or the weights are no longer finite; the last good epoch stays on disk.

    """
    require_writable(folder)
    with own_generators(), own_threads(recipe.threads), ExitStack() as stack:
        # `cpu=True` where there is no accelerator: only then accelerate connects several processes on the CPU, too.
        # The other options are set here because accelerate would read them from environment variables.
        accelerator = Accelerator(
            cpu=not torch.accelerator.is_available(),
            mixed_precision="no",
            gradient_accumulation_steps=1,
            dynamo_backend="no",
        )
        if accelerator.is_main_process:
            stack.enter_context(locked(folder / f".{name}.lock", wait=False))
        ledger = Ledger(name, text, folder, revision=options.revision, keep_every=options.keep_every)
        replaced = ledger.replaced() if options.fresh else []
        if not options.fresh and ledger.finished(resume=options.resume):
            _require_own_data(ledger.weights_path(), recipe, options, accelerator)
            return ledger.weights_path()
        run = Run(name, recipe, ledger, options, accelerator)
        if options.fresh and accelerator.is_main_process:  # only now: what cannot be trained destroys nothing
            ledger.forget()
        accelerator.wait_for_everyone()
        run.restore()
        run.begin(replaced)
        while len(run.ledger.history) < recipe.epochs:
            with timed(ledger.weights_path(), accelerator.device, write=accelerator.is_main_process):
                epoch = run.epoch()
                run.save()
            if options.on_epoch is not None:
                options.on_epoch(epoch)
            if len(run.ledger.history) < recipe.epochs and run.late():
                return ledger.weights_path()
        return run.finish()


def _require_own_data(weights: Path, recipe: Recipe, options: Options, accelerator: Accelerator) -> None:
    """Refuse to return finished weights for other data; where none are given, and none are there, nothing is asked."""
    try:
        source = source_of(recipe, options.data, accelerator)
    except BadInputError:
        if options.data is None:
            return
        raise
    require_same_data(read_header(weights), source, weights)


def require_free(folder: Path, runs: Mapping[str, str], *, resume: bool) -> None:
    """Refuse, before the first of several runs starts, what `train` would refuse of any.

    Args:
        folder: where files are written.
        runs: name of each -> text of its recipe.
        resume: as in `Options`.

    Raises:
        BadInputError: a run of such a name is there and is not to be resumed, or is of another recipe.

    """
    for name, text in runs.items():
        Ledger(name, text, folder, revision=None, keep_every=0).check(resume=resume)
