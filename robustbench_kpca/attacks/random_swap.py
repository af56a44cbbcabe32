"""Replace random words, as many as are allowed, by random others: the baseline for every attack on words.

The corruption word swap does the same with one draw; here the worst of many draws counts. What attacks find beyond this
baseline is theirs: Ebrahimi, Rao, Lowd & Dou (2018), "HotFlip: White-Box Adversarial Examples for Text Classification",
arXiv:1712.06751, compare with random changes, too.
"""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from robustbench_kpca._core.strict import FORBID
from robustbench_kpca.attacks.shared.ball import require_norm
from robustbench_kpca.attacks.shared.draws import uniforms
from robustbench_kpca.attacks.shared.words import fixed, require_vocabulary
from robustbench_kpca.protocols.scenario import Count
from robustbench_kpca.protocols.threat import Threat
from robustbench_kpca.types import Images, Keys, Labels, Mask, Query, State


@dataclass(frozen=True, config=FORBID)
class RandomSwap:
    """Replace k = max(1, floor(eps * words)) words, `queries` times anew from the clean text; the worst draw counts.

    Places are drawn without repetition among those where no line ends, words uniformly among all others but the end of
    a line. A sample costs `queries` + 1 forward passes per restart.
    """

    version: ClassVar[int] = 1
    replaces_words: ClassVar[bool] = True
    most_passes: ClassVar[tuple[str, str]] = ("queries + 1", "0")
    queries: Count

    def start(self, x: Images, y: Labels, threat: Threat, keys: Keys) -> State:  # noqa: ARG002
        """Begin with the clean words."""
        require_norm(threat, "random_swap", "words")
        return {
            "x": x,
            "clean": x,
            "key": keys,
            "query": torch.zeros_like(keys),
            "finished": torch.zeros_like(keys, dtype=torch.bool),
        }

    def step(self, state: State, threat: Threat, query: Query) -> State:
        """Show one draw; the query keeps the worst."""
        x = _draw(state, threat, query.classes)
        query.logits(x)
        count = state["query"] + 1
        return state | {"x": x, "query": count, "finished": count >= self.queries}

    def ahead(self, state: State, threat: Threat, queries: Labels) -> State:  # noqa: ARG002
        """Skip draws."""
        return state | {"query": state["query"] + queries}

    def kept(self, before: State, after: State) -> Mask:  # noqa: ARG002
        """Return False everywhere: no draw depends on an earlier one."""
        return torch.zeros_like(after["finished"])


def _draw(state: State, threat: Threat, vocabulary: int) -> Images:
    clean = state["clean"]
    require_vocabulary(vocabulary)
    length = clean.shape[3]
    words, line_ends = clean.flatten(1), fixed(clean).flatten(1)
    draws = uniforms(state["key"], state["query"], 2 * length)
    order = draws[:, :length].masked_fill(line_ends, 2.0).argsort(dim=1, stable=True)  # ends come last
    places = order[:, : threat.swaps(length)]
    old = words.gather(1, places)
    new = 1 + (draws[:, length:].gather(1, places) * (vocabulary - 2)).floor()  # 0 ends a line; skip the old word
    new = torch.where(new >= old, new + 1, new).to(old.dtype)
    return words.scatter(1, places, torch.where(line_ends.gather(1, places), old, new)).view_as(clean)


ATTACK = RandomSwap
