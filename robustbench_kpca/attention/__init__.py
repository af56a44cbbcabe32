"""The attention variants, one file each; `models.place` puts any of them into chosen layers of a timm ViT.

Those without parameters of the sequence length (all but scaled, primal and kep_svgp) also fit timm's `attn_layer`.
"""

from robustbench_kpca.registry import Family

ATTENTIONS = Family("attention", __name__, "ATTENTION")
