"""Layers made by hand, and what a claim says of them."""

import math

import numpy as np
import torch
from torch import nn

from robustbench_kpca.study.diagnostics import CLAIMS
from robustbench_kpca.study.diagnostics.kernel import log_kernel
from robustbench_kpca.study.diagnostics.layer import Layer
from robustbench_kpca.study.diagnostics.totals import Totals, block_orders, draws_for


def randn(*shape, seed=0, std=1.0):
    return std * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gram_of(k, least=0.0):
    """The centred Gram matrix as the papers write it, entry by entry, `least` added to products of g; and g."""
    n, width = k.shape
    kappa = np.array([[math.exp(k[i] @ k[j] / math.sqrt(width)) for j in range(n)] for i in range(n)])
    g = kappa.sum(1)
    normal = np.array([[kappa[i, j] / (g[i] * g[j] + least) for j in range(n)] for i in range(n)])
    ones = np.full((n, n), 1 / n)
    return normal - ones @ normal - normal @ ones + ones @ normal @ ones, g


def layer(q, k, v=None, first=0, module=None, *, x=None):
    """A layer of these queries, keys and values, whose outputs are those of softmax attention."""
    h = None if v is None else log_kernel(q, k).softmax(-1) @ v
    heads = tuple(range(k.shape[1]))
    ids = tuple(str(first + image) for image in range(len(k)))
    return Layer(0, "made", module or nn.Identity(), k if x is None else x, q, k, v, h, heads, ids, 0)


def judge(name, made, images=10, block=5):
    """What a claim finds in one layer, or in blocks that `made(first, count)` makes."""
    claim = CLAIMS.get(name)
    parts = [made] if isinstance(made, Layer) else [
        made(first, min(block, images - first)) for first in range(0, images, block)
    ]  # fmt: skip
    units = [(0, head) for head in parts[0].heads]
    totals = Totals(claim, units, draws_for(len(units)))
    for one in parts:
        totals.add([claim.observe(one)], block_orders(0, one.ids[0], draws_for(len(units)), len(one.ids)))
    results = totals.results()
    return results, claim.verdict(results)
