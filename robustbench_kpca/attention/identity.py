"""Identity attention: every token keeps its own value; the ablation that shows what mixing is worth.

Principal Attention Pursuit can drive its softmax to the identity (arXiv:2406.13762's Algorithm 1 on random keys does so
within four to six iterations), so what RPC attention gains must be more than what this gains in the same layer.
"""

from robustbench_kpca.attention.symmetric import Heads, SymmetricAttention


class IdentityAttention(SymmetricAttention):
    """out = proj(V). Same parameters as symmetric attention, so weights interchange; the keys are not used."""

    def attend(self, k: Heads, v: Heads, *, causal: bool = False) -> Heads:  # noqa: ARG002
        """Leave the values as they are."""
        return v


ATTENTION = IdentityAttention
