"""Outcomes of a certificate: the answer, the votes that it had, and the radius inside which they prove it."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from robustbench_kpca._core.randomness import generator, sample_key
from robustbench_kpca._engine.attack_loop.query import check_clean
from robustbench_kpca._engine.inference.runner import Presentation
from robustbench_kpca.models.certified import Certified, Drawn
from robustbench_kpca.protocols.scenario import Certificate
from robustbench_kpca.tasks.classification.answers import Answers
from robustbench_kpca.types import Images, Labels, Logits


def _counted(model: Any, x: Images) -> Logits:
    counted: Logits = model.counted(x)
    return counted


COUNTED = Presentation(
    _counted, lambda counts, x: counts.ndim == 2 and len(counts) == len(x), "one row of counts per image"
)
"""Shows a `models.certified.Certified` images for its proof."""


class CertifiedAnswers(Answers):
    """Answers with their proof. Draws belong to the sample: they follow from seed and sample id."""

    real = np.float64  # radii are rounded down in it

    def __init__(self, *args: Any, seed: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seed = seed

    @property
    def forwards(self) -> int:
        """Number of inputs shown: one an image, or all its draws."""
        assert isinstance(self.protocol, Certificate)
        return self.done * max(self.protocol.selection + self.protocol.samples, 1)

    def columns_of(self, first: int, images: Images, labels: Labels) -> dict[str, Tensor]:
        """Return the columns of rows `first`, `first` + 1, ..."""
        model, protocol = self.runner.model, self.protocol
        assert isinstance(model, Certified)
        assert isinstance(protocol, Certificate)
        if isinstance(model, Drawn):
            rows = [self._drawn(model, image, first + at) for at, image in enumerate(images)]
        else:
            counted = self.runner.logits(images.to(self.runner.device)).cpu()
            check_clean(counted, labels)
            rows = list(zip(*(part.long().tolist() for part in model.evidence(counted)), strict=True))
        radii = [model.proof.radius(votes, rival, protocol.eps, protocol.alpha) for _, votes, rival in rows]
        answers, votes, rivals = (torch.tensor(part) for part in zip(*rows, strict=True))
        radius = torch.tensor(radii, dtype=torch.float64)
        return {
            "prediction": torch.where((radius < 0) | (votes == 0), -1, answers),
            "votes": votes,
            "rival": rivals,
            "radius": radius.clamp_min(0),
            "certified": (radius >= protocol.radius).long(),
        }

    def _drawn(self, model: Drawn, image: Tensor, row: int) -> tuple[int, int, int]:
        """Choose a class by some draws, and count it in others; return it, its votes and those of all others."""
        assert isinstance(self.protocol, Certificate)
        chosen = int(self._votes(model, image, row, "selection", self.protocol.selection).argmax())
        votes = int(self._votes(model, image, row, "samples", self.protocol.samples)[chosen])
        return chosen, votes, self.protocol.samples - votes

    def _votes(self, model: Drawn, image: Tensor, row: int, scope: str, count: int) -> Tensor:
        rng = generator(sample_key(self.seed, f"certificate {scope}", self.samples.ids[row]))
        votes: Any = 0
        size = self.runner.batch_size  # which the runner halves where memory runs out
        for start in range(0, count, size):
            copies = model.copies(image, min(size, count - start), rng)
            votes = votes + self.runner.logits(copies.to(self.runner.device)).sum(0).cpu()
        return torch.as_tensor(votes)
