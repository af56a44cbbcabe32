"""A plugin of RobustBench-KPCA: an attack, a corruption, an attention, a metric, and a model with the attention."""

import numpy as np

from robustbench_kpca import MultiHeadAttention, corruption, load_model, metric, one_gradient, place


@one_gradient(steps=10)
def climb(x, gradient, state):
    """Climb the loss by a quarter of the radius a step."""
    return x + 0.25 * state["eps"] * gradient.sign()


@corruption
def grain(image, severity, rng):
    """Add grain, as of a fast film."""
    return np.clip(image + rng.normal(0, 4 * severity, image.shape), 0, 255).astype(np.uint8)


class LinearAttention(MultiHeadAttention):
    """Attention without softmax: scores are divided by the number of tokens."""

    def attend(self, q, k, v):
        """Return the weighted values."""
        return q @ (k.transpose(-1, -2) @ v) / v.shape[-2]


@metric(kinds=["clean", "attack"], lower_is_better=True)
def error(outcomes):
    """Return the share of wrong answers."""
    return outcomes["prediction"] != outcomes["label"]


def linear_vit_digits():
    """Return the bundled ViT of digits with linear attention in its first block."""
    return place(load_model("vit_digits"), "linear", "first")


def register():
    """Add the members to their registries; called when a name is missing or names are listed."""
    from robustbench_kpca.attacks import ATTACKS
    from robustbench_kpca.attention import ATTENTIONS
    from robustbench_kpca.corruptions import CORRUPTIONS
    from robustbench_kpca.metrics import METRICS

    ATTACKS.add("climb", climb)
    CORRUPTIONS.add("grain", grain)
    ATTENTIONS.add("linear", LinearAttention)
    METRICS.add(error)
