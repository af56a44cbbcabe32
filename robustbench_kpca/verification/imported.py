"""Images of files shown to the model once: those kept beside a record, and adversarial ones that somebody else found.

Those of others are read, checked, and written as a record. Their file has the form of RobustBench's external
evaluations: one float32 tensor of the shape of the clean images, in their order, with values in [0, 1]. Where an attack
failed, it holds any image of the set, such as the clean one.
"""

import io
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from robustbench_kpca._core.errors import BadInputError, UnfitError, reason_of
from robustbench_kpca._core.files import read_file, sha256
from robustbench_kpca._engine.attack_loop.pool import Sample
from robustbench_kpca._engine.attack_loop.sets import set_of
from robustbench_kpca._engine.attack_loop.threat import threat_for
from robustbench_kpca._engine.inference.acceleration import accelerated
from robustbench_kpca._engine.inference.input_space import InputSpace
from robustbench_kpca._engine.inference.mode import frozen
from robustbench_kpca._engine.inference.runner import Runner, device_for
from robustbench_kpca.attacks.shared.ball import distance, furthest
from robustbench_kpca.audit.preflight import CHECKS
from robustbench_kpca.data.samples import Samples
from robustbench_kpca.evaluation.evaluation import Evaluation
from robustbench_kpca.evaluation.requests import NamedModel
from robustbench_kpca.models.checkpoint import parameters_sha256
from robustbench_kpca.protocols.scenario import IMPORTED, Attack, parse_scenario
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.records.images import LIMIT, KeptImages
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.shards import Made
from robustbench_kpca.records.table import CLEAN
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.rules import ROUNDING
from robustbench_kpca.types import Images
from robustbench_kpca.verification.rerun import asked_for, require_same
from robustbench_kpca.verification.stated import AS_RECORDED, Conditions


@dataclass(frozen=True)
class Rechecked:
    """How many samples were looked at, and a line for each that the record contradicts."""

    samples: int
    differences: tuple[str, ...]


def recheck(record: Record, images: KeptImages, model: nn.Module, device: str | None = None) -> Rechecked:
    """Show the kept images to the model, and compare its predictions and the perturbations with the record.

    Raises:
        BadInputError: the record is of no attack, or of a model with other weights.
    """
    scenario = parse_scenario(dict(record.spec.protocol.resolved), record.spec.protocol.name)
    if not isinstance(scenario, Attack):
        raise BadInputError(f"{record.spec.stem()} is of no attack", expected="a record with adversarial images")
    recorded, actual = record.spec.model.parameters_sha256, parameters_sha256(model)
    if recorded != actual:
        raise BadInputError(
            f"the model has weights {actual[:16]}, that of the record {recorded[:16]}",
            fix="give the same model and weights",
        )
    clean, attacked = map(torch.from_numpy, images.floats())
    where, space = device_for(model, device), InputSpace.of(model, scenario.space)
    runner = Runner(model.to(where), record.spec.batch_size, where, scenario.draws)
    rows = {row["sample"]: row for row in record.outcomes.rows()}
    success = task_named(record.spec.data.task).compute.success
    with frozen(model):
        answers = []
        for first in range(0, len(attacked), runner.batch_size):
            logits = runner.logits(attacked[first : first + runner.batch_size].to(where)).cpu()
            answers += success.judge(logits, torch.zeros(len(logits), dtype=torch.int64))[0].tolist()
    sizes = distance(space.enter(attacked), space.enter(clean), scenario.norm).tolist()
    inside = ((attacked >= -1e-6) & (attacked <= 1 + 1e-6)).flatten(1).all(1) | (scenario.space != "pixel")
    differences: list[str] = []
    for sample, answer, size, valid in zip(images.samples, answers, sizes, inside.tolist(), strict=True):
        differences += _differences(sample, rows.get(sample), answer, size, scenario, valid=valid)
    return Rechecked(len(images.samples), tuple(differences))


def _differences(
    sample: str, row: dict[str, object] | None, answer: int, size: float, scenario: Attack, *, valid: bool
) -> Iterator[str]:
    if row is None:
        yield f"{sample}: not in the record"
        return
    if answer != row["prediction"]:
        yield f"{sample}: predicted {answer}, recorded {row['prediction']}"
    if size > scenario.eps * (1 + 1e-5) + ROUNDING:
        yield f"{sample}: perturbed by {size:.6g}, eps is {scenario.eps:.6g}"
    if not valid:
        yield f"{sample}: values outside [0, 1]"


MOST = LIMIT // 2
"""Bytes of a file: a record keeps these images and the clean ones."""


def import_images(
    file: Path, record: Record, *, by: str, method: str, out: Path, how: Conditions = AS_RECORDED
) -> Record:
    """Check the images of a file, show them to the model of a record, and write a record of what they break.

    Args:
        record: a record of our own attack: it names model, samples and the perturbation set.
        by: who found the images.
        method: how, in words.
        out: folder of the new record. It keeps the images, for `rbk records verify --kept-images`.

    Raises:
        BadInputError: as `read_images` and `require_fit`; the record is not of an attack in pixel space on images with
            one label each; model or samples are not those of the record.
    """
    spec = record.spec
    our_protocol = parse_scenario(dict(spec.protocol.resolved), spec.protocol.name)
    task = task_named(spec.data.task)
    if not isinstance(our_protocol, Attack) or our_protocol.space != "pixel" or task.compute.success.graded:
        raise BadInputError(
            f"{spec.stem()} is of {our_protocol.kind} of {task.name}",
            expected="a record of an attack in pixel space on images with one label each",
        )
    images, digest = read_images(file)
    imported = {"by": by, "method": method, "sha256": digest}
    fixed = {"policy": "strongest", "labels": "true", "precision": "fp32", "below": [], "stage": [], "citations": []}
    titled = {"title": f"Images found by {by}", "imported": imported, "storage": None}
    stated = our_protocol.model_dump(mode="json") | fixed | titled
    scenario = parse_scenario(stated, "imported images")
    assert isinstance(scenario, Attack)
    model, data, options = asked_for(record, (), how, None, images=None, labels=None)
    samples = Samples.require(data)
    clean, _ = samples.tensors()
    require_fit(images, clean, samples.ids, threat_for(scenario, model))
    options = replace(
        how.run,
        out=out,
        seed=spec.seed,
        batch_size=spec.batch_size,
        device=how.run.device or options.device,
        compile=options.compile,
        tf32=options.tf32,
        allow=tuple(CHECKS),
    )
    with accelerated([model], options.compile, tf32=options.tf32):
        named = NamedModel(model, spec.model.name, spec.model.source)
        command = (f"rbk records import-images, of {file.name}",)
        evaluation = Evaluation.begin(
            named, data, f"{IMPORTED}-{digest[:12]}", scenario, options=options, command=command
        )
        require_same(spec, evaluation.spec, exact=False)
        with evaluation.holding_lock():
            return evaluation.finished or _record_of(evaluation, scenario, clean, images)


def read_images(file: Path) -> tuple[Tensor, str]:
    """Read one tensor without running code; return it with the SHA-256 of its file.

    Args:
        file: `.npy`, `.safetensors` with one tensor, or a file of `torch.save`; at most `MOST` bytes.

    Raises:
        BadInputError: it cannot be read, is larger, or holds something else than one tensor of float32.
    """
    content = read_file(file, "file of images", MOST)
    try:
        tensor = _tensor(content, file.suffix)
    except Exception as error:  # noqa: BLE001 (a damaged file can fail anywhere in its reader)
        raise BadInputError(
            f"{file} holds no images ({reason_of(error)})", expected="one tensor: .npy, .safetensors or torch.save"
        ) from None
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.float32 or tensor.layout != torch.strided:
        kind = str(tensor.dtype).removeprefix("torch.") if isinstance(tensor, Tensor) else type(tensor).__name__
        raise BadInputError(f"{file} holds {kind}", expected="one dense tensor of float32")
    return tensor.detach(), sha256(content)


def _tensor(content: bytes, suffix: str) -> Any:
    if suffix == ".npy":
        return torch.from_numpy(np.load(io.BytesIO(content), allow_pickle=False))
    if suffix == ".safetensors":
        [tensor] = load_safetensors(content).values()
        return tensor
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(member.file_size for member in archive.infolist()) > MOST:
                raise UnfitError("larger than its limit")
    return torch.load(io.BytesIO(content), "cpu", weights_only=True)


def require_fit(images: Tensor, clean: Images, ids: Sequence[str], threat: Threat) -> None:
    """Refuse images that are not the clean ones, in their order, changed within the perturbation set.

    Raises:
        BadInputError: another shape; NaN or a value outside [0, 1]; an image too far from its clean one. Where it is
            near another clean image, the order is wrong.
    """
    if images.shape != clean.shape:
        raise BadInputError(
            f"images of shape {tuple(images.shape)}", expected=f"{tuple(clean.shape)}, as the clean samples"
        )
    valid = ((images >= 0) & (images <= 1)).flatten(1).all(1)
    if not bool(valid.all()):
        name = ids[int((~valid).int().argmax())]
        raise BadInputError(f"the image of sample '{name}' has values outside [0, 1] or NaN", expected="[0, 1]")
    allowed = set_of(threat if threat.counted else replace(threat, eps=furthest(threat.eps)))
    beyond = allowed.beyond(images, clean)
    if not bool(beyond.any()):
        return
    at = int(beyond.int().argmax())
    fitting = ~allowed.beyond(images[at].expand_as(clean), clean)
    if bool(fitting.any()):
        other = ids[int(fitting.int().argmax())]
        raise BadInputError(f"the image of sample '{ids[at]}' is one of '{other}'", expected="the order of the samples")
    raise BadInputError(
        f"the image of sample '{ids[at]}' is too far from the clean one ({int(beyond.sum())} are)",
        expected=str(threat),
    )


def _record_of(evaluation: Evaluation, scenario: Attack, clean: Images, images: Images) -> Record:
    """Show clean and given images to the model; samples that it gets wrong before count as wrong, as in any attack."""
    runner, data, started = evaluation.subject.runner, Samples.require(evaluation.data), time.perf_counter()
    compute = task_named(data.task).compute
    labels = torch.tensor(data.labels)

    def judged(pictures: Images) -> list[tuple[int, float, int]]:
        answers: list[tuple[int, float, int]] = []
        for first in range(0, len(pictures), runner.batch_size):
            rows = slice(first, first + runner.batch_size)
            logits = runner.logits(pictures[rows].to(runner.device)).cpu()
            parts = (*compute.success.judge(logits, labels[rows]), compute.success.rank(logits, labels[rows]))
            answers += zip(*(part.tolist() for part in parts), strict=True)
        return answers

    with frozen(runner.model):
        before, after = judged(clean), judged(images)
    samples: list[Sample] = []
    for at, label in enumerate(data.labels):
        wrong = before[at][0] != label
        prediction, margin, rank = before[at] if wrong else after[at]
        how: dict[str, Any] = {"before": CLEAN if wrong else "", "forwards": 0 if wrong else scenario.draws}
        how["broken_by"] = CLEAN if wrong else "" if prediction == label else IMPORTED
        how |= {"worst": clean[at] if wrong else images[at], "worst_margin": margin}
        how |= {"prediction": prediction, "rank": rank, "target": label}
        samples.append(Sample(at, data.ids[at], label, clean[at], before[at][0], **how))
    space = InputSpace.of(runner.model, scenario.space)
    rows = [row for sample in samples for row in compute.rows(sample, data, space)]
    outcomes = Outcomes.from_rows(task_named(data.task).table(scenario.table), rows)
    remarks = evaluation.subject.first.again(runner, evaluation.options.allow)
    work = Made(len(data), time.perf_counter() - started, runner.batch_size, tuple(remarks))
    decided = torch.stack([sample.worst for sample in samples])
    return evaluation.finish(outcomes, work, images=KeptImages.of(tuple(data.ids), clean.numpy(), decided.numpy()))
