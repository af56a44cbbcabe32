"""Models of transformers with the inputs and outputs of this project."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from robustbench_kpca.errors import BadInputError


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
        found = positions if window is None else window
        if not isinstance(found, int) or not 1 <= found <= (positions or found):
            raise BadInputError(
                f"a window of {found} tokens for {type(net).__name__}",
                expected="a whole number, at least 1" + (f" and at most {positions}" if positions else ""),
                fix="set model.window",
            )
        self.vocab_size, self.num_classes, self.window = config.vocab_size, config.vocab_size, found
        self.cuts = "logits_to_keep" in inspect.signature(net.forward).parameters

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
            shown = {"input_ids": x[:, 0, 0].long()}
        else:
            embedding: Any = self.net.get_input_embeddings()  # type: ignore[operator]
            vectors = embedding(torch.arange(self.vocab_size, device=x.device))
            shown = {"inputs_embeds": x[:, :, 0].transpose(1, 2).to(vectors.dtype) @ vectors}
        kept = {"logits_to_keep": 1} if last and self.cuts else {}
        logits: Tensor = self.net(**shown, **kept, use_cache=False).logits
        return (logits[:, -1:] if last else logits).transpose(1, 2).unsqueeze(2)
