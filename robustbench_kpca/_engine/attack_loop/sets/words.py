"""Texts in which a few words are replaced. What is to be predicted stays: it is no part of the input."""

import torch
from torch import Tensor

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.attack_loop.checks import Checks
from robustbench_kpca._engine.attack_loop.sets.base import PerturbationSet
from robustbench_kpca.attacks.shared.ball import distance
from robustbench_kpca.attacks.shared.words import fixed, is_words
from robustbench_kpca.types import Attack, Images, Mask

OFF_SUM = 1e-3  # allowed rounding error of the sum of a distribution over up to a million words


class ReplacedWords(PerturbationSet):
    """All texts that differ from the clean one in at most max(1, floor(eps * words)) places.

    The end of a line is neither replaced nor written. An attack may also show distributions over words, (batch,
    vocabulary, 1, length): they are points to search from, and decide nothing.
    """

    def require_attack(self, name: str, attack: Attack) -> None:
        """Refuse attacks that change values."""
        if not getattr(attack, "replaces_words", False):
            raise BadInputError(
                f"attack '{name}' changes values, but the protocol has norm = 'words'",
                fix="choose hotflip, gbda or random_swap",
            )

    def check(self, x: Tensor, clean: Images, attack: str, checks: Checks, *, outside: bool = False) -> None:
        """Refuse what is no text and no distribution or, without `outside`, a text with too many other words."""
        if self.is_input(x):
            self._check_text(x, clean, attack, checks, most=clean.shape[3] if outside else self._most(clean))
        else:
            self._check_distributions(x, attack, checks)

    def is_input(self, x: Tensor) -> bool:
        """Tell words from distributions over them."""
        return is_words(x)

    def beyond(self, x: Images, clean: Images) -> Mask:
        """Tell in which texts more words are replaced than allowed."""
        return distance(x, clean, "words") > self._most(clean)

    def example(self) -> Images:
        """Return a text of one line."""
        return torch.ones(1, 1, 1, 8)

    def _most(self, clean: Images) -> int:
        return self.threat.swaps(clean.shape[3])

    def _check_text(self, x: Images, clean: Images, attack: str, checks: Checks, most: int) -> None:
        def refuse(swaps: float, invalid: float) -> None:
            if swaps > most or invalid:
                raise EvaluationError(
                    f"attack '{attack}' proposed " + ("what is no text" if invalid else f"{int(swaps)} other words"),
                    expected=f"whole numbers, the ends of lines as they were, and at most {most} other words",
                    fix="this is a bug of the attack: report it",
                )

        no_text = (x != x.round()) | (x < 0) | (fixed(x) != fixed(clean))  # NaN differs from itself
        checks.add(torch.stack([distance(x, clean, "words").amax(), no_text.sum().double()]), refuse)

    def _check_distributions(self, x: Tensor, attack: str, checks: Checks) -> None:
        def refuse(least: float, off: float) -> None:
            if not (least >= 0 and off <= OFF_SUM):
                raise EvaluationError(
                    f"attack '{attack}' proposed weights of words from {least:.6g}, with sums off by {off:.6g}",
                    expected="distributions: weights of at least 0 whose sum is 1",
                    fix="this is a bug of the attack: report it",
                )

        checks.add(torch.stack([x.amin(), (x.sum(1) - 1).abs().amax()]), refuse)
