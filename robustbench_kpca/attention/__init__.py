"""The attention variants, one file each. `models.place` puts any of them into chosen layers of a timm ViT.

Scaled, primal and kep_svgp attention are built for one number of tokens. The others also fit timm's `attn_layer`.
"""

from robustbench_kpca._core.registry import Family

ATTENTIONS = Family("attention", __name__, "ATTENTION", needs=("forward",))
