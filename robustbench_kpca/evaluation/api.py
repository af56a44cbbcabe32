"""The functions `evaluate` and `attack`, for any module that maps images in [0, 1] to logits."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import torch
from torch import Tensor, nn

from robustbench_kpca._core.early_exit import no_early_exit
from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.progress import Progress, python_screen
from robustbench_kpca._core.strict import parse_fraction
from robustbench_kpca._engine.attack_loop.passes import takes_gradients
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.mode import frozen
from robustbench_kpca._engine.inference.runner import device_for, require_module
from robustbench_kpca.audit.preflight import at_edge, preflight
from robustbench_kpca.data.given import as_dataset
from robustbench_kpca.evaluation.evaluation import batch_on, runner_for
from robustbench_kpca.evaluation.execute import execute
from robustbench_kpca.evaluation.options import run_options
from robustbench_kpca.evaluation.part import attack_all
from robustbench_kpca.evaluation.plan import Job, make_plan
from robustbench_kpca.evaluation.reporter import Reporter
from robustbench_kpca.evaluation.requests import Models, data_of, models_of
from robustbench_kpca.models.source import class_names_of
from robustbench_kpca.protocols.scenario import Attack, Override
from robustbench_kpca.records.audit import Audit, Level
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.compute import BATCH_SIZE, first_batch
from robustbench_kpca.tasks.prepare import prepare
from robustbench_kpca.types import Images, Mask

Protocols = list[str] | list[Path] | list[str | Path] | tuple[str | Path, ...]
Budgets = Sequence[str | float]
_LOG = logging.getLogger("robustbench_kpca")


@dataclass(frozen=True)
class AttackResult:
    """The result of `attack`, one row per sample in the given order.

    Attributes:
        images: in pixel space: the first image that broke the sample, else the image of lowest margin found; the clean
            image where the sample was not attacked.
        broken: whether the sample is misclassified; includes errors on clean images.
        ranks: number of classes ranked above the true label on that image; at most 4 is correct in the top 5.
        forwards: forward passes, without the one on the clean image.
        backwards: backward passes.

    Examples:
        >>> from robustbench_kpca import attack, load_data, load_model
        >>> images, labels = load_data("digits", limit=4).tensors()
        >>> attack(load_model("vit_digits"), images, labels, "fgsm-linf-8_255").images.shape
        torch.Size([4, 3, 32, 32])
    """

    images: Images
    broken: Mask
    ranks: Tensor
    forwards: Tensor
    backwards: Tensor


_Fields = TypedDict(  # noqa: UP013 (a line a field)
    "_Fields",
    {
        "alpha": Override, "alpha_init": Override, "alpha_max": Override, "backward_of": Override,
        "below": Override, "beta": Override, "binary_steps": Override, "candidates": Override,
        "clean": Override, "clip": Override, "confidence": Override, "corners": Override,
        "corruptions": Override, "decay": Override, "delta": Override, "draws": Override, "eps": Override,
        "eta": Override, "flip": Override, "frost": Override, "gamma": Override, "init_norm": Override,
        "initial": Override, "initial_const": Override, "learning_rate": Override,
        "loss": Override, "lr": Override, "mode": Override, "norm": Override,
        "optimizer": Override, "p_init": Override, "patch": Override, "places": Override, "policy": Override,
        "precision": Override, "profile": Override, "projection": Override,
        "queries": Override, "random_start": Override, "rank": Override, "reference": Override,
        "resize": Override, "restarts": Override, "rho": Override, "rise": Override, "samples": Override,
        "scales": Override, "selection": Override, "severities": Override, "sigma": Override,
        "skip_clipped": Override, "space": Override, "sparsity": Override, "step_size": Override,
        "steps": Override, "storage": Override, "stride": Override, "target": Override, "targets": Override,
        "temperature": Override, "threshold": Override, "tries": Override, "unit": Override, "window": Override,
    },
    total=False,
)  # fmt: skip
"""What protocols of the package have; a field of a protocol of your own is given as `**{"reach": 3}`."""


class Settings(_Fields, total=False):
    """Keywords of `evaluate`: how models and data are given and shown, `RunOptions`, and fields of protocols.

    name: name of a single model in the record; by default its own, or the name of its class.
    source: where modules came from, for the record.
    classes: number of classes of the images, where their labels do not have all of them.
    size: side in pixels to which pictures are resized, without cropping. By default pictures of a folder or of a
        collection are as a named model, or `describe`, states it, or else as they are; arrays always as they are.
    crop: such as 0.875: the short side is resized to size / crop, and the centre cropped. The record says how pictures
        were resized and cropped (`spec.data.resized`).
    audit: the audit for the records of attacks, made before them for each eps: `"full"` (about a minute) or `"quick"`;
        True: quick for fewer than 256 samples, else full; False omits it; or an existing audit (`audit.run.audit`).
    progress: called with the numbers of samples done and of all and, by name, what else is known (`progress.Progress`).
        By default a bar on a terminal or in a notebook, else a line a minute in the log.
    quiet: show nothing; flags are logged. Else audits, records and remarks are shown as `rbk eval` shows them, on a
        terminal or in a notebook, and by the logger `robustbench_kpca` elsewhere.
    """

    name: str | None
    source: str
    classes: int | None
    size: int | None
    crop: float | None
    audit: Audit | Level | bool
    progress: Progress | None
    quiet: bool
    out: Path | str | None
    allow: Collection[str]
    keep_adversarial: int
    fresh: bool
    seed: int
    batch_size: int | None
    frost_folder: Path | str | None
    workers: int | None
    processes: int | None
    executor: str | None
    part: str | None
    device: str | None
    compile: str | None
    tf32: bool


class Several(Settings, total=False):
    """Keywords where `evaluate` returns a list.

    curve: values of eps, at each of which attacks run, from the smallest. A sample broken at one counts as broken at
        every larger one; the protocol in each record lists the smaller ones in its field `below`.
    independent: with `curve`: attack at each eps alone, as published tables of several budgets usually do.
    """

    curve: Budgets
    independent: bool


@overload
def evaluate(
    model: nn.Module | str,
    images: Any = None,
    labels: Any = None,
    *,
    protocol: str | Path,
    **settings: Unpack[Settings],
) -> Record: ...
@overload
def evaluate(
    model: Models, images: Any = None, labels: Any = None, *, protocol: Protocols, **settings: Unpack[Several]
) -> list[Record]: ...
@overload
def evaluate(
    model: Mapping[str, nn.Module],
    images: Any,
    labels: Any = None,
    *,
    protocol: str | Path,
    **settings: Unpack[Several],
) -> list[Record]: ...
@no_early_exit()
@torch.inference_mode(mode=False)
def evaluate(
    model: Models,
    images: Any = None,
    labels: Any = None,
    *,
    protocol: str | Path | Protocols,
    **settings: Unpack[Several],
) -> Record | list[Record]:
    """Evaluate a model under a protocol. Several models, or a list of protocols, give a list of records.

    Args:
        model: the name of a model, as in `rbk eval --model`; or any module in evaluation mode that maps images in
            [0, 1] to logits: (batch, classes) or, for segmentation, (batch, classes, height, width). Or several modules
            by their names in records: each sample is then loaded and corrupted once for all of them.
        images: float tensor or array (batch, channels, height, width) in [0, 1], or uint8 array (batch, height, width,
            3), with `labels`; a loader of such pairs; the name of a data set (`"digits"`, `"shapes"`) or a folder; a
            `Dataset` of this package, of torch or of Hugging Face (`data.given.as_dataset`). A named model may do
            without: it is evaluated on the set of its family.
        labels: one integer per image, if `images` is a tensor or array.
        protocol: name of a preset (`rbk list protocols`), path of a TOML file, or address of an attack, whose eps is
            then a keyword; or a list of these.
        **settings: see `Settings`, such as `name="mine"`, `size=32`, `seed=1`, `out="runs"`, `executor="ray"`; fields
            of the protocol to replace, such as `eps="3/255"`; and, for a list of records, see `Several`.

    Returns:
        The record; or a list of records, model by model, in the order of protocols and of eps.
        `record.metrics["robust_accuracy"]` has `.value`, `.low`, `.high`, `.n`.

    Raises:
        BadInputError: the input would give a meaningless result; nothing is written.
        EvaluationError: the evaluation started but could not finish.

    Examples:
        >>> from robustbench_kpca import evaluate
        >>> record = evaluate("vit_digits", protocol="fgsm-linf-8_255", audit=False, quiet=True)
        >>> record.metrics["robust_accuracy"].n
        364
    """
    several = isinstance(protocol, (list, tuple)) or isinstance(model, Mapping)
    protocols: Sequence[str | Path] = protocol if isinstance(protocol, (list, tuple)) else [protocol]
    if not protocols:
        raise BadInputError("no protocol", expected="the name of one, or several", fix="see: rbk list protocols")
    remaining: dict[str, Any] = dict(settings)
    curve, independent = remaining.pop("curve", ()), remaining.pop("independent", False)
    if len(curve) > 0 and not several:
        raise BadInputError(
            "a curve of one protocol", expected="a list, as is returned", fix=f"protocol=[{protocol!r}]"
        )
    audit, quiet = remaining.pop("audit", True), remaining.pop("quiet", False)
    progress: Progress | None = remaining.pop("progress", None)
    models = models_of(model, remaining.pop("name", None), remaining.pop("source", "python"))
    view = {key: remaining.pop(key, None) for key in ("classes", "size", "crop")}
    options, overrides = run_options(remaining)
    budgets = tuple({parse_fraction(value): str(value) for value in curve}.values())
    jobs = [Job(each, protocols, overrides, budgets, independent) for each in models]
    plan = make_plan(jobs, data_of(model, images, labels, **view), options, audit=audit)
    with python_screen(quiet=quiet) as screen:
        records = execute(plan, Reporter(screen, progress))
    return records if several else records[0]


@no_early_exit()
@torch.inference_mode(mode=False)
def attack(
    model: nn.Module,
    images: Any,
    labels: Any,
    protocol: str | Path,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    device: str | None = None,
    allow: Collection[str] = (),
    **overrides: Override,
) -> AttackResult:
    """Attack a batch of images; other arguments as in `evaluate`. The id of sample i is "i".

    Args:
        model: see `evaluate`.
        images: see `evaluate`.
        labels: see `evaluate`.
        protocol: an attack.
        seed: see `RunOptions`.
        batch_size: see `RunOptions`; by default 64, on a GPU more for small models.
        device: see `RunOptions`.
        allow: see `RunOptions`.
        **overrides: see `evaluate`.

    Examples:
        >>> from robustbench_kpca import attack, load_data, load_model
        >>> images, labels = load_data("digits", limit=4).tensors()
        >>> attack(load_model("vit_digits"), images, labels, "pgd20-linf-8_255", eps="16/255").broken.tolist()
        [True, True, True, True]
    """
    label, scenario = prepare(protocol, overrides)
    if not isinstance(scenario, Attack):
        raise BadInputError(f"protocol '{label}' is not an attack", fix="see: rbk list attacks, rbk list protocols")
    require_module(model)
    data = as_dataset(images, labels)
    task_named(data.task).compute.require_data(data, scenario)
    decided: dict[int, Sample] = {}
    where = device_for(model, device)
    if batch_size is None:
        batch_size = batch_on(where, BATCH_SIZE, model, data, scenario)
    runner = runner_for(model, data, scenario, batch_size, where)
    compute = task_named(data.task).compute
    classes = runner.identify(first_batch(compute, data, runner)[0]).shape[1]
    data = as_dataset(images, labels, classes=classes)  # a batch need not have labels of every class
    data, _ = compute.match_classes(data, classes, class_names_of(model))
    first = first_batch(compute, data, runner)
    preflight(runner, *first, allow)
    for text in at_edge(runner, first[0], data.form) if takes_gradients(scenario) else []:
        _LOG.warning("warning: %s", text)
    with frozen(model):
        outcomes = attack_all(
            runner, data, scenario, seed=seed, keep=lambda sample: decided.update({sample.index: sample})
        )
    ordered = [decided[index] for index in range(len(data))]
    return AttackResult(
        InputSpace.of(model, scenario.space).leave(torch.stack([sample.worst for sample in ordered])),
        torch.from_numpy(outcomes["broken_by"] != ""),
        torch.tensor([sample.rank for sample in ordered]),
        torch.from_numpy(outcomes["forwards"]),
        torch.from_numpy(outcomes["backwards"]),
    )
