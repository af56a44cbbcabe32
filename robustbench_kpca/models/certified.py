"""Classifiers made of another one, which prove how far an answer holds; the proofs are in `records.proof`."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.models.loading import load_model
from robustbench_kpca.models.source import class_names_of, describe, is_differentiable, stated_view
from robustbench_kpca.protocols.scenario import Certificate, Scenario
from robustbench_kpca.records.proof import Proof, proof_of
from robustbench_kpca.types import Images, Logits

SPREAD = 10.0
"""Logits of an answer with all votes are this much apart: enough for a loss, and not too much for its gradient."""


class Certified(nn.Module):
    """Logits are shares of votes, times `SPREAD`; gradients are those of mean probabilities in their place.

    Where shares are equal, the answer is the first class. The base model always sees as many images as it is given.
    """

    def __init__(self, base: nn.Module, proof: Proof) -> None:
        super().__init__()
        self.base, self.proof, self.training = base, proof, base.training
        base_config = getattr(base, "config", None)
        self.config: dict[str, Any] = {"proof": proof.name, **proof.model_dump()}
        self.config["of"] = base_config if isinstance(base_config, dict) else {}
        self.differentiable = is_differentiable(base)
        self.vocabulary_sha256 = getattr(base, "vocabulary_sha256", None)
        describe(self, stated_view(base), class_names_of(base))

    @abstractmethod
    def counted(self, x: Images) -> Logits:
        """Return what a proof counts, shape (batch, classes)."""

    def evidence(self, counted: Logits) -> tuple[Tensor, Tensor, Tensor]:
        """Return the answers, their votes, and the rival's: see `Proof.radius`."""
        answers = counted.argmax(1, keepdim=True)
        first = torch.arange(counted.shape[1], device=counted.device) < answers
        rivals = (counted + first.to(counted)).scatter(1, answers, -1)
        return answers[:, 0], counted.gather(1, answers)[:, 0], rivals.amax(1)

    def own_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of the base model under the names that they have here."""
        renamed = getattr(self.base, "own_state", dict)(state)
        return {f"base.{name}": value for name, value in renamed.items()}


class Viewed(Certified):
    """The base model votes on views of the image, each with parts of it hidden."""

    @abstractmethod
    def views(self, height: int, width: int) -> Iterator[Tensor]:
        """Yield masks of the pixels that each view shows: booleans that broadcast to (height, width)."""

    def counted(self, x: Images) -> Logits:
        """Return the votes; the answer is the class with the most, the first of equal ones."""
        return self.tally(self._logits(x))

    def forward(self, x: Images) -> Logits:
        """Return logits."""
        logits = self._logits(x)
        votes = self.tally(logits)
        shares = torch.where(torch.isfinite(logits).all(-1, keepdim=True), logits, 0).softmax(-1).mean(1)
        return _through(votes / votes.sum(1, keepdim=True), shares)

    def tally(self, logits: Float[Tensor, "batch view class"]) -> Logits:
        """Count the votes; a view whose logits are not finite has none."""
        return one_hot(logits).sum(1)

    def look(self, x: Images, visible: Tensor) -> Logits:
        """Return the base model's logits of images whose pixels outside of a mask are filled."""
        logits: Tensor = self.base(torch.where(visible.to(x.device), x, x.new_tensor(self.config["fill"])))
        return logits

    def _logits(self, x: Images) -> Float[Tensor, "batch view class"]:
        return torch.stack([self.look(x, visible) for visible in self.views(*x.shape[2:])], 1)


class Drawn(Certified):
    """One vote a forward pass, on a randomly changed image: attacks average over `draws`, certificates draw more."""

    stochastic = True

    @abstractmethod
    def changed(self, x: Images, draws: Tensor) -> Images:
        """Change images by standard normal numbers, one an entry of the image."""

    def counted(self, x: Images) -> Logits:
        """Return the vote on images that are changed already."""
        return one_hot(self.base(x))

    def forward(self, x: Images) -> Logits:
        """Return logits of one draw from torch's generator."""
        logits = self.base(self.changed(x, torch.randn_like(x)))
        return _through(one_hot(logits), logits.softmax(1))

    def copies(self, image: Tensor, count: int, rng: np.random.Generator) -> Images:
        """Return changed copies of one image; earlier draws of the generator are not used again."""
        draws = torch.from_numpy(rng.standard_normal((count, *image.shape))).to(image)
        return self.changed(image.expand(count, *image.shape), draws)


def one_hot(logits: Float[Tensor, "*batch class"]) -> Float[Tensor, "*batch class"]:
    """Return 1 for the class of the largest logit, the first of equal ones; nothing where a logit is not finite."""
    finite = torch.isfinite(logits).all(-1, keepdim=True)
    exact = torch.promote_types(logits.dtype, torch.float32)  # bfloat16 counts to 256 only
    return F.one_hot(logits.argmax(-1), logits.shape[-1]).to(exact) * finite


def _through(shares: Logits, soft: Logits) -> Logits:
    return SPREAD * (shares.detach() + (soft - soft.detach()))  # the bracket is exactly 0: ties stay ties


def base_of(name: str, pretrained: bool, options: Mapping[str, Any], *kinds: type[Proof]) -> tuple[nn.Module, Proof]:
    """Return the base model and the proof that options ask for.

    Args:
        name: name of the base model.
        pretrained: with its own weights.
        options: options of the proof, and those of the base model.
        *kinds: kinds of proof; each has an option that chooses it.

    Raises:
        BadInputError: no such option, or several; the base model draws noise.
    """
    chosen = [kind for kind in kinds if kind.option in options]
    if len(chosen) != 1:
        choices = " or ".join(f"--set model.{kind.option}=N" for kind in kinds)
        raise BadInputError(f"'{name}' with {len(chosen)} ways to change its images", fix=f"add {choices}")
    of_proof = {key: value for key, value in options.items() if key in chosen[0].model_fields}
    proof = proof_of({"proof": chosen[0].name, **of_proof}, f"options of '{name}'")
    assert proof is not None
    rest = {key: value for key, value in options.items() if key not in of_proof}
    base = load_model(name, untrained=not pretrained, **rest)
    if any(getattr(part, "stochastic", False) for part in base.modules()):
        raise BadInputError(f"'{name}' draws noise of its own, so its votes prove nothing")
    return base, proof


def require_certifiable(model: nn.Module, scenario: Scenario) -> None:
    """Refuse a certificate of a model that states no proof, or the proof of another norm.

    Raises:
        BadInputError: such a model.
    """
    if not isinstance(scenario, Certificate):
        return
    if not isinstance(model, Certified) or model.proof.norm != scenario.norm:
        stated = f"a proof in {model.proof.norm}" if isinstance(model, Certified) else "no proof"
        raise BadInputError(
            f"protocol '{scenario.title}' asks for a proof in {scenario.norm}, but the model states {stated}",
            expected="ablated:NAME or masked:NAME for patches, smoothed:NAME for l2 and l0",
        )
