"""A loss before the softmax: how much all queries attend to the keys of the tokens that an attack changed.

Lovisotto, Finnie, Munoz, Murummadi & Metzen (2022), "Give Me Your Attention: Dot-Product Attention Considered Harmful
for Adversarial Patch Robustness", arXiv:2203.13639, sections 4.1 to 4.3. The gradient of a softmax that is nearly one
vanishes; that of its argument does not.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError, EvaluationError
from robustbench_kpca._engine.attack_loop.targets import token_side
from robustbench_kpca.types import Images, PerSample

Heads: TypeAlias = Float[Tensor, "batch heads token width"]
Changed: TypeAlias = Bool[Tensor, "batch cell"]
TINY = 1e-12


class Watched:
    """The queries and keys of every attention layer in the last pass of a model, in the model's order.

    Fused kernels return no attention, so the outputs of the layers' `q_norm` and `k_norm` are taken, which layers of
    timm and of this package have. In symmetric attention the keys are the queries.
    """

    def __init__(self, layers: int) -> None:
        self.layers: list[dict[str, Tensor]] = [{} for _ in range(layers)]

    def first(self, rows: int) -> list[tuple[Heads, Heads]]:
        """Return (Q, K) of every layer for the first rows of the batch.

        Raises:
            EvaluationError: the pass kept no gradients, since the batch did not fit into memory at once.
        """
        pairs = [(seen.get("q_norm", seen["k_norm"])[:rows], seen["k_norm"][:rows]) for seen in self.layers if seen]
        if any(not key.requires_grad or len(key) < rows for _, key in pairs):
            raise EvaluationError("an attention loss on part of a batch", fix="give a smaller --batch-size")
        return pairs


def layers_with_keys(model: nn.Module) -> list[nn.Module]:
    """Return the layers whose queries and keys can be seen, in the model's order."""
    return [layer for layer in model.modules() if all(hasattr(layer, name) for name in ("q_norm", "k_norm"))]


@contextmanager
def watched(model: nn.Module) -> Iterator[Watched]:
    """Watch the attention layers of a model.

    Raises:
        BadInputError: it has none whose queries and keys can be seen.
    """
    layers = layers_with_keys(model)
    if not layers:
        raise BadInputError("attention_loss for a model without attention layers that have q_norm and k_norm")
    seen, hooks = Watched(len(layers)), []
    try:
        for number, layer in enumerate(layers):
            for name in ("q_norm", "k_norm"):

                def note(module: nn.Module, given: object, out: Tensor, at: tuple[int, str] = (number, name)) -> None:  # noqa: ARG001
                    seen.layers[at[0]][at[1]] = out

                hooks.append(getattr(layer, name).register_forward_hook(note))
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def changed_tokens(x: Images, clean: Images, model: nn.Module) -> Changed:
    """Tell which cells of the grid of tokens differ from the clean image; all cells of an image that is the clean one.

    Raises:
        BadInputError: the model does not state the side of its tokens.
    """
    side = token_side(model)
    if side is None:
        raise BadInputError("attention_loss for a model that states no size of its tokens", expected="a `patch_size`")
    cells = F.max_pool2d((x != clean).any(1, keepdim=True).to(torch.float32), side).flatten(1) > 0
    return cells | ~cells.any(1, keepdim=True)


def attention_loss(layers: list[tuple[Heads, Heads]], changed: Changed) -> PerSample:
    """Return the smooth maximum over heads, then layers, of the mean logit that queries give to changed tokens.

    With Q and K divided by the mean length of their tokens, and i over the changed tokens, layer l and head h have

        L_lh = mean_j mean_i q_j . k_i / sqrt(D),    loss = log sum_l exp(log sum_h exp(L_lh)).

    Layers with fewer tokens than the image has cells are left out; tokens before the cells, such as a class token, are
    queries only.
    """
    values: list[Tensor] = []
    for query, key in layers:
        prefix = key.shape[2] - changed.shape[1]
        if prefix < 0:
            continue
        asked, told = (part / part.norm(dim=3).mean(2)[:, :, None, None].clamp_min(TINY) for part in (query, key))
        weight = changed.to(key.dtype) / changed.sum(1, keepdim=True)
        target = torch.einsum("nhtd,nt->nhd", told[:, :, prefix:], weight)
        values.append((asked.mean(2) * target).sum(2) / key.shape[3] ** 0.5)
    if not values:
        raise BadInputError("attention_loss for a model whose layers have fewer tokens than the image has cells")
    return torch.stack([value.logsumexp(1) for value in values], 1).logsumexp(1)
