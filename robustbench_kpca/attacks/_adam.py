"""One Adam update, with a separate step count for each sample.

Kingma & Ba (2015), "Adam: A Method for Stochastic Optimization", arXiv:1412.6980, algorithm 1, with its defaults.
"""

from jaxtyping import Float, Int64
from torch import Tensor

from robustbench_kpca.attacks.shared.ball import per_sample

Values = Float[Tensor, "batch *shape"]

_KEEP_MEAN, _KEEP_SQUARE, _FLOOR = 0.9, 0.999, 1e-8


def adam(
    gradient: Values, mean: Values, square: Values, steps: Int64[Tensor, " batch"], learning_rate: float
) -> tuple[Values, Values, Values]:
    """Return the update to subtract, and the new running means of the gradient and of its square.

    m <- 0.9 m + 0.1 g, v <- 0.999 v + 0.001 g^2, then lr (m / (1 - 0.9^t)) / (sqrt(v / (1 - 0.999^t)) + 1e-8), where
    t - 1 is the sample's number of `steps` before this one.
    """
    mean = (_KEEP_MEAN * mean).add_((1 - _KEEP_MEAN) * gradient)
    square = (_KEEP_SQUARE * square).add_((gradient**2).mul_(1 - _KEEP_SQUARE))
    time = per_sample(steps.double() + 1, gradient)
    mean_scale, square_scale = ((1 - keep**time).to(gradient.dtype) for keep in (_KEEP_MEAN, _KEEP_SQUARE))
    root = (square / square_scale).sqrt_().add_(_FLOOR)
    return (mean / mean_scale).mul_(learning_rate).div_(root), mean, square
