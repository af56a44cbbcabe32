"""Models of transformers with the inputs and outputs of this project."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.types import END_OF_LINE


class Unwrapped(nn.Module):
    """A model of transformers that returns its logits alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, classes)."""
        logits: Tensor = self.net(pixel_values=x).logits
        return logits

    def own_state(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of the wrapped model under the names that they have here."""
        return {name if name.startswith("net.") else f"net.{name}": value for name, value in state.items()}


class Enlarged(Unwrapped):
    """A segmenter of transformers, whose logits are enlarged to the size of the picture by bilinear interpolation."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, classes, height, width)."""
        return F.interpolate(super().forward(x), x.shape[2:], mode="bilinear", align_corners=False)


class CausalLM(Unwrapped):
    """A causal language model of transformers as a `types.LanguageModel`: a word is one of its tokens.

    Words have the numbers of the tokens, with one exception: in every vocabulary here the end of a line is number 0
    (`types.END_OF_LINE`). So the token that ends a text (`eos_token_id`) and token 0 change their numbers with each
    other. A model without such a token keeps its numbers; then attacks leave its token 0 alone, whatever that is.

    Args:
        net: the model.
        window: number of tokens that it reads at once; by default the number of its positions.

    Raises:
        BadInputError: it does not state its number of positions, or the window is larger.
    """

    def __init__(self, net: Any, window: int | None = None) -> None:
        super().__init__(net)
        config = net.config.get_text_config()
        positions = getattr(config, "max_position_embeddings", None)
        length = positions if window is None else window
        if not isinstance(length, int) or not 1 <= length <= (positions or length):
            raise BadInputError(
                f"a window of {length} tokens for {type(net).__name__}",
                expected="a whole number, at least 1" + (f" and at most {positions}" if positions else ""),
                fix="set model.window",
            )
        self.vocab_size, self.num_classes, self.window = config.vocab_size, config.vocab_size, length
        self.cuts = "logits_to_keep" in inspect.signature(net.forward).parameters
        ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        self.end = ends[0] if isinstance(ends[0], int) else END_OF_LINE  # `ends` is [None] where there is none
        if not 0 <= self.end < self.vocab_size:
            raise BadInputError(
                f"eos_token_id {self.end} of {type(net).__name__}",
                expected=f"0 to {self.vocab_size - 1}, a token",
                fix="mend eos_token_id in the model's config.json",
            )

    def forward(self, x: Tensor, *, last: bool = False) -> Tensor:
        """Return logits of the next token, (batch, vocabulary, 1, length); with `last` of the last place only.

        Raises:
            BadInputError: more tokens than the window, or neither tokens nor distributions over them.
        """
        if x.ndim != 4 or x.shape[1] not in (1, self.vocab_size) or not 1 <= x.shape[-1] <= self.window:
            raise BadInputError(
                f"an input of shape {tuple(x.shape)}",
                expected=f"(batch, 1 or {self.vocab_size}, 1, at most {self.window})",
            )
        if x.shape[1] == 1:
            tokens = x[:, 0, 0].long()
            ends, begins = tokens == END_OF_LINE, tokens == self.end
            inputs = {"input_ids": tokens.masked_fill(ends, self.end).masked_fill(begins, END_OF_LINE)}
        else:
            x = self._renumbered(x)
            embedding: Any = self.net.get_input_embeddings()  # type: ignore[operator]
            vectors = embedding(torch.arange(self.vocab_size, device=x.device))
            inputs = {"inputs_embeds": x[:, :, 0].transpose(1, 2).to(vectors.dtype) @ vectors}
        cut = {"logits_to_keep": 1} if last and self.cuts else {}
        logits: Tensor = self.net(**inputs, **cut, use_cache=False).logits
        return self._renumbered((logits[:, -1:] if last else logits).transpose(1, 2).unsqueeze(2))

    def _renumbered(self, values: Tensor) -> Tensor:
        """Return values of tokens, (batch, vocabulary, ...), as those of words, or the other way round."""
        if self.end == END_OF_LINE:
            return values
        order = torch.arange(self.vocab_size, device=values.device)
        order[[END_OF_LINE, self.end]] = order[[self.end, END_OF_LINE]]
        return values.index_select(1, order)
