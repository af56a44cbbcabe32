"""The training loop: on any device and number of processes that accelerate supports; resumable after every epoch."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from accelerate import Accelerator

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import require_writable
from robustbench_kpca._core.lock import locked
from robustbench_kpca._core.progress import timed
from robustbench_kpca._engine.inference.acceleration import products
from robustbench_kpca._engine.inference.environment import place
from robustbench_kpca.models.bundle import read_header
from robustbench_kpca.training.ledger import Ledger, Options
from robustbench_kpca.training.machine import own_generators, own_threads
from robustbench_kpca.training.recipe import Recipe
from robustbench_kpca.training.run import Run, require_same_data, source_of
from robustbench_kpca.training.seeds import Wanted
from robustbench_kpca.training.together import Together


def train(name: str, recipe: Recipe, text: str, folder: Path, options: Options = Options()) -> Path:  # noqa: B008
    """Train a model; return the path of its weights, which are not there yet if `options.stop_at` ended the run.

    Files in `folder`, which is made if necessary: `<name>.safetensors` (weights and provenance), `<name>.csv` (curves),
    `<name>.spent.json` (time) and, where the recipe has a moving average of weights, `<name>.ema.safetensors`. After
    every epoch `<name>.resume.pt` is replaced; with `options.resume` training continues from it, with bit-identical
    results on a CPU with the same number of threads.
    All randomness comes from the recipe's seed; the states of the global generators are restored afterwards.

    Raises:
        BadInputError: the folder cannot be written, it holds a run of another recipe or on other data, another process
            trains under this name, or the data cannot be used.
        EvaluationError: the loss or the weights are no longer finite; the last good epoch stays on disk.
    """
    return train_together([Wanted(name, recipe, text)], [folder], options)[0]


def train_together(wanted: Sequence[Wanted], folders: Sequence[Path], options: Options) -> list[Path]:
    """Train models of one recipe with several seeds in one pass (`Together`); return the paths of their weights.

    Each has a folder, which may be that of others. It writes the files that it would write alone. One that is behind
    the others, since they were stopped between two files, is trained alone until it is not.

    Raises:
        BadInputError: as `train` does, and where the recipe cannot be trained so.
        EvaluationError: as `train` does; all stop where one diverges.
    """
    for folder in folders:
        require_writable(folder)
    places = list(zip(wanted, folders, strict=True))
    with own_generators(), own_threads(wanted[0].recipe.threads), products("ieee"), ExitStack() as stack:
        # `cpu=True` where there is no accelerator: only then accelerate connects several processes on the CPU, too.
        # The other options are set here because accelerate would read them from environment variables.
        accelerator = Accelerator(
            cpu=not torch.accelerator.is_available(),
            mixed_precision="no",
            gradient_accumulation_steps=1,
            dynamo_backend="no",
        )
        if accelerator.is_main_process:
            for training, folder in places:
                stack.enter_context(locked(folder / f".{training.name}.lock", wait=False))
        unfinished = [_unfinished(training, folder, options, accelerator) for training, folder in places]
        runs = [run for run in unfinished if run is not None]
        if len(runs) > 1:
            Together(runs)  # refuses what cannot be trained so, before anything is destroyed
        for run in runs:
            _begin(run, together=len(runs))
        if runs and _train(runs):
            for run in runs:
                run.finish()
        return [folder / f"{training.name}.safetensors" for training, folder in places]


def _unfinished(training: Wanted, folder: Path, options: Options, accelerator: Accelerator) -> Run | None:
    """Return a run that has to be trained; None where it is finished."""
    name, recipe, text = training
    ledger = Ledger(name, text, folder, revision=options.revision, keep_every=options.keep_every)
    if not options.fresh and ledger.finished(resume=options.resume):
        _require_own_data(ledger.weights_path(), recipe, options, accelerator)
        return None
    return Run(name, recipe, ledger, options, accelerator)


def _begin(run: Run, *, together: int) -> None:
    """Bring a run to where its last finished epoch left it."""
    replaced = run.ledger.replaced() if run.options.fresh else []
    if run.options.fresh and run.accelerator.is_main_process:  # only now, so that a refusal destroys nothing
        run.ledger.forget()
    run.accelerator.wait_for_everyone()
    run.restore()
    run.begin(replaced, together)


def _train(runs: Sequence[Run]) -> bool:
    """Train all runs to their last epoch; return whether there was time for it."""
    together: Together | None = None
    epochs, accelerator, options = runs[0].recipe.epochs, runs[0].accelerator, runs[0].options
    while (fewest := min(run.done for run in runs)) < epochs:
        behind = [run for run in runs if run.done == fewest]
        chosen = behind if len(behind) == len(runs) else behind[:1]
        with ExitStack() as times:
            for run in chosen:
                weights, here = run.ledger.weights_path(), place(accelerator.device)
                times.enter_context(timed(weights, here, write=accelerator.is_main_process, share=1 / len(chosen)))
            if len(chosen) > 1:
                together = together or Together(chosen)
                together.epoch()
            else:
                chosen[0].epoch()
            for run in chosen:
                run.save()
        if options.on_epoch is not None:
            for run in chosen:
                options.on_epoch(run.name, run.ledger.history[-1])
        if min(run.done for run in runs) < epochs and runs[0].late():
            return False
    return True


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
        runs: name of each -> text of its recipe.
    """
    for name, text in runs.items():
        Ledger(name, text, folder, revision=None, keep_every=0).check(resume=resume)
