"""One perturbation for all images, fitted on some of them by `fit`, and scored on others by the attack `universal`.

Moosavi-Dezfooli, Fawzi, Fawzi & Frossard (2017), "Universal Adversarial Perturbations", arXiv:1610.08401, for the
measure. The fit takes the sign of the gradient of a batch's mean loss, as PGD does: Madry et al. (2018),
arXiv:1706.06083.
"""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import read_file, sha256, write_atomic
from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import project, require_norm
from robustbench_kpca.attacks.shared.losses import cross_entropy
from robustbench_kpca.protocols.threat import Norm, Threat
from robustbench_kpca.types import Images, Keys, Labels, Query, State

MOST = 100_000_000
"""Bytes of a file of `fit`."""


@dataclass(frozen=True, config=FORBID)
class Universal:
    """x' = clip(x + delta), in pixel space: one forward pass, the loop's check of x'.

    The loop hands an attack batches, and answers may not depend on what else is in them: so the fit, which needs all
    images at once, comes before. Images that delta was fitted on are refused.

    Attributes:
        file: that `fit` wrote.
        sha256: of that file.
    """

    norms: ClassVar[tuple[Norm, ...]] = ("linf",)
    most_passes: ClassVar[tuple[str, str]] = ("1", "0")
    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:  # noqa: ARG002
        """Add the perturbation."""
        require_norm(threat, "universal", *self.norms)
        delta, fitted = _read(self.file, self.sha256)
        if delta.shape != x.shape[1:]:
            raise BadInputError(
                f"{self.file} of shape {tuple(delta.shape)}", expected=f"{tuple(x.shape[1:])}, an image"
            )
        if seen := fitted.intersection(_digests(x)):
            raise BadInputError(f"{len(seen)} images that {self.file} was fitted on", expected="others to score it on")
        if float(delta.abs().max()) > threat.eps + 1e-6:
            raise BadInputError(f"{self.file} with changes up to {float(delta.abs().max()):.4g}", expected=str(threat))
        return {"x": project(x + delta.to(x), x, threat), "finished": torch.zeros_like(keys, dtype=torch.bool)}

    def step(self, state: State, threat: Threat, query: Query) -> State:  # noqa: ARG002
        """Finish without a query: the loop evaluates x'."""
        return state | {"finished": torch.ones_like(state["finished"])}


def fit(
    query: Query, x: Images, y: Labels, threat: Threat, file: Path, *, epochs: int, step_size: float, batch: int
) -> str:
    """Fit a perturbation and write it with digests of the images; return the SHA-256 of the file.

        delta <- clip(delta + step_size * sign(mean_i grad CE(f(clip(x_i + delta)), y_i)); eps)

    for every batch in the order given, `epochs` times, from delta = 0.

    Args:
        query: of the model, such as `_engine.attack_loop.follow.PlainQuery(WholeBatches(model))`.
        x: images in [0, 1], (images, channels, height, width).
        y: their labels.
        threat: L-infinity, untargeted.
        file: to be written.
        epochs: passes over all images.
        step_size: in the units of eps.
        batch: images a step.

    Raises:
        BadInputError: another norm, or a target.
    """
    require_norm(threat, "universal", *Universal.norms)
    if threat.targeted:
        raise BadInputError("a universal perturbation with a target", expected="target = 'none'")
    delta = torch.zeros_like(x[0])
    for _ in range(epochs):
        for some, labels in zip(x.split(batch), y.split(batch), strict=True):

            def loss(logits: Tensor, labels: Labels = labels) -> Tensor:
                return cross_entropy(logits, labels)

            _, gradient = query.gradient(project(some + delta, some, threat), loss)
            delta = (delta + step_size * gradient.mean(0).sign()).clamp(-threat.eps, threat.eps)
    fitted = torch.tensor([list(bytes.fromhex(digest)) for digest in sorted(_digests(x))], dtype=torch.uint8)
    content = save({"delta": delta.cpu().float(), "fitted": fitted})
    write_atomic(Path(file), content)
    return sha256(content)


def _digests(x: Images) -> set[str]:
    return {hashlib.sha256(image.float().cpu().contiguous().numpy().tobytes()).hexdigest() for image in x}


@lru_cache(maxsize=4)
def _read(file: str, digest: str) -> tuple[Tensor, frozenset[str]]:
    content = read_file(Path(file), "perturbation", MOST)
    if sha256(content) != digest:
        raise BadInputError(f"{file} with SHA-256 {sha256(content)}", expected=f"{digest}, as the protocol says")
    try:
        held = load(content)
        fitted = frozenset(bytes(row.tolist()).hex() for row in held["fitted"])
        return held["delta"], fitted
    except (SafetensorError, KeyError) as error:
        raise BadInputError(f"{file} holds no universal perturbation", expected="a file of `universal.fit`") from error


ATTACK = Universal
