"""Identity attention: every token keeps its own value. It is the ablation without any mixing of tokens.

The softmax of Principal Attention Pursuit can become the identity: that of Algorithm 1 of arXiv:2406.13762 does so on
random keys within four to six iterations. So a gain of RPC attention means something only if it is larger than the gain
of identity attention in the same layer.
"""

from robustbench_kpca.attention.shared.heads import Heads, KeyMask
from robustbench_kpca.attention.symmetric import SymmetricAttention


class IdentityAttention(SymmetricAttention):
    """out = proj(V). The parameters are those of symmetric attention, so that weights fit both; keys are not used."""

    def attend(
        self,
        q: Heads,  # noqa: ARG002
        k: Heads,  # noqa: ARG002
        v: Heads,
        *,
        causal: bool = False,  # noqa: ARG002
        mask: KeyMask | None = None,  # noqa: ARG002
    ) -> Heads:
        """Return the values."""
        return v


ATTENTION = IdentityAttention
