"""The attention variants, one file each; every class fits timm's `attn_layer` and can be swapped block by block."""

from robustbench_kpca.registry import Family

ATTENTIONS = Family("attention", __name__, "ATTENTION")
