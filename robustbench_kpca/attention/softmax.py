"""Softmax attention: softmax(Q K^T / sqrt(D)) V, timm's own layer.

Vaswani et al. (2017), "Attention Is All You Need", arXiv:1706.03762, equation 1.
"""

from timm.models.vision_transformer import Attention as SoftmaxAttention

ATTENTION = SoftmaxAttention
