"""Whether a language model sees the words that it is to predict: later words must not change earlier logits.

A mask in every softmax is not enough: in RPC attention with one mu for the whole window, mu carries the sum of all keys
to every place. In evaluation a stride of 1 hides such a leak, since only the last place is scored; training does not.
"""

import torch
from torch import Tensor

from robustbench_kpca.types import Images, LanguageModel

CUTS = 16


@torch.no_grad()
def leaking_places(model: LanguageModel, words: Images, cuts: int = CUTS) -> Tensor:
    """Tell at which places logits change, by any amount, when later words are changed; bool (batch, length).

    Every word from a cut on is replaced by the next of the vocabulary, in one forward pass a cut. The passes have the
    same shape, so equal inputs give equal logits, to the bit. A model that draws noise is found to leak everywhere.

    A leak shows only where it changes something. RPC attention with one mu for the window, for example, does not depend
    on mu while its sparse part is empty, as it often is in an untrained model.

    Args:
        model: in evaluation mode.
        words: by number, (batch, 1, 1, length), on the model's device.
        cuts: number of places that are changed first, evenly spread; at least `length` - 1 tries every place.

    """
    length = words.shape[-1]
    leaking = torch.zeros(len(words), length, dtype=torch.bool, device=words.device)
    clean = model(words)
    count = min(cuts, length - 1)
    for number in range(count):
        cut = 1 + number * (length - 1) // count
        changed = words.clone()
        changed[..., cut:] = (changed[..., cut:] + 1) % model.vocab_size
        differs = (model(changed)[..., :cut] != clean[..., :cut]).flatten(2).any(1)  # logits of any word
        leaking[:, :cut] |= differs
    return leaking


def future_leak(model: LanguageModel, words: Images, cuts: int = CUTS) -> int:
    """Return the number of places at which `leaking_places` finds a leak; 0 is as it must be."""
    return int(leaking_places(model, words, cuts).sum())
