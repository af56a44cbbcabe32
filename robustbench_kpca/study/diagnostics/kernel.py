"""Kernel PCA of one head's keys as Teo & Nguyen define it, computed in logarithms to avoid overflow.

Teo & Nguyen (2024), arXiv:2406.13762, section 2: kernel exp(x . y / sqrt(D)), normalised by g(x) = sum_j exp(x . k_j /
sqrt(D)); equation 11 is the eigenproblem, theorem 1 the theoretical values. Shapes are (..., tokens N, width D).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Keys = Float[Tensor, "*batch tokens width"]
Square = Float[Tensor, "*batch tokens tokens"]


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues, largest absolute value first, and eigenvectors of the centred Gram matrix e^log_scale * gram.

    The scale is separate because it may be e^-1000: entries of `gram` are at most 1 before centring.
    """

    log_g: Float[Tensor, "*batch tokens"]
    gram: Square
    log_scale: Float[Tensor, "*batch"]
    values: Float[Tensor, "*batch tokens"]
    """Eigenvalues of `gram`; multiply by e^log_scale for those of the Gram matrix."""
    axes: Square | None
    """Unit eigenvectors, one per column; None if only the eigenvalues were computed. The sign that a library returns is
    arbitrary and depends on the order of the tokens: here the entry of largest magnitude is positive."""

    @property
    def rank(self) -> Float[Tensor, "*batch"]:
        """Number of eigenvalues above rounding error, N eps times the largest."""
        floor = self.values.abs()[..., :1] * self.values.shape[-1] * torch.finfo(self.values.dtype).eps
        return (self.values.abs() > floor).sum(-1).to(self.values.dtype)

    def eigenvalues(self, count: int) -> Float[Tensor, "*batch count"]:
        """Return the absolute values of the first `count` eigenvalues, padded with 0."""
        sizes = (self.values.abs() * self.log_scale.exp().unsqueeze(-1))[..., :count]
        return torch.nn.functional.pad(sizes, (0, count - sizes.shape[-1]))

    def leading_axes(self, count: int) -> Float[Tensor, "*batch tokens count"]:
        """Return the first `count` axes; columns beyond the numerical rank are 0."""
        assert self.axes is not None
        axes = torch.nn.functional.pad(self.axes[..., :count], (0, max(0, count - self.axes.shape[-1])))
        resolved = torch.arange(count, device=axes.device) < self.rank.unsqueeze(-1)
        return axes * resolved.unsqueeze(-2)

    def theoretical_values(self, count: int) -> tuple[Float[Tensor, "*batch tokens count"], Float[Tensor, "*batch"]]:
        """Return V_theory / c and log c: V_theory = G (A - column means of A), G = diag(1 / g), A the leading axes."""
        axes = self.leading_axes(count)
        log_c = -self.log_g.amin(-1)
        weights = (-self.log_g - log_c.unsqueeze(-1)).exp().unsqueeze(-1)
        return weights * (axes - axes.mean(-2, keepdim=True)), log_c

    def orthonormal_values(self, count: int) -> tuple[Float[Tensor, "*batch tokens count"], Float[Tensor, "*batch"]]:
        """Return V_theory / c and log c for axes a scaled so that a . K a = 1, which gives orthonormal features.

        Only with this scaling are a head's outputs the coordinates of a projection; the study compares unit axes a.
        """
        values, log_c = self.theoretical_values(count)
        sizes = torch.nn.functional.pad(self.values.abs()[..., :count], (0, max(0, count - self.values.shape[-1])))
        sizes = torch.where(sizes > 0, sizes, 1)
        return values / sizes.sqrt().unsqueeze(-2), log_c - self.log_scale / 2


def spectrum(keys: Keys, *, axes: bool = True) -> Spectrum:
    """Decompose the centred Gram matrix of the normalised kernel, in at least double precision.

    log K_ij = k_i . k_j / sqrt(D) - log g_i - log g_j is at most 0, so no exponential overflows.
    """
    logits = log_kernel(keys.double(), keys.double())
    log_g = logits.logsumexp(-1)
    log_gram = logits - log_g.unsqueeze(-1) - log_g.unsqueeze(-2)
    log_scale = log_gram.amax((-2, -1))
    gram = double_centred((log_gram - log_scale[..., None, None]).exp())
    if axes:
        values, vectors = torch.linalg.eigh(gram)
        order = values.abs().argsort(-1, descending=True)
        vectors = vectors.take_along_dim(order.unsqueeze(-2), -1)
        return Spectrum(log_g, gram, log_scale, values.take_along_dim(order, -1), signed(vectors))
    values = torch.linalg.eigvalsh(gram)
    return Spectrum(log_g, gram, log_scale, values.take_along_dim(values.abs().argsort(-1, descending=True), -1), None)


def signed(axes: Square) -> Square:
    """Flip signs so that the entry of largest magnitude in every column is positive."""
    largest = axes.take_along_dim(axes.abs().argmax(-2, keepdim=True), -2)
    return axes * torch.where(largest < 0, -1.0, 1.0)


def log_kernel(x: Keys, y: Keys) -> Float[Tensor, "*batch one two"]:
    """Return x_i . y_j / sqrt(D), the logarithm of the paper's kernel."""
    logits: Tensor = x @ y.transpose(-2, -1) / x.shape[-1] ** 0.5
    return logits


def double_centred(gram: Square) -> Square:
    """Return H K H with H = I - 1/N: rows and columns then sum to 0."""
    rows = gram - gram.mean(-1, keepdim=True)
    return rows - rows.mean(-2, keepdim=True)


def sharp_bound(log_g: Float[Tensor, "*batch tokens"]) -> Float[Tensor, "*batch"]:
    """Return max_j 1 / g(k_j), an upper bound on the eigenvalues of the centred Gram matrix.

    With G = diag(1 / g), the Gram matrix is G^1/2 (G^1/2 kappa G^1/2) G^1/2. The bracket is similar to the
    row-stochastic G kappa, so its largest eigenvalue is 1, and centring cannot increase the largest eigenvalue. As
    g(k_j) > kappa(k_j, k_j) = exp(|k_j|^2 / sqrt(D)) >= 1, no eigenvalue ever reaches 1.
    """
    return (-log_g).amax(-1).exp()


def trace_bound(tokens: int, width: int) -> float:
    """Return N exp(-(D - 1) / sqrt(D)), an upper bound on the trace for standardised keys.

    lambda_max <= trace = sum_j kappa_jj / g_j^2 <= sum_j 1 / kappa_jj, and |k_j|^2 = D - 1. By `sharp_bound` the
    bound holds for lambda_max even without the factor N.
    """
    return tokens * math.exp(-(width - 1) / width**0.5)
