"""The limits used in verdicts, and what was known when each limit was set (see the version history).

The two sources make opposite claims about the same models, so choosing a limit after the measurement would decide the
result. Unless stated otherwise, limits were set before any trained model was measured. Others were added after an
independent review had shown that verdicts were possible without them, and before any new measurement.
"""

SIGNIFICANCE = 0.05
"""Level of every test, after Holm's adjustment over the heads of a model."""

ALIGNED = 0.8
"""Least linear CKA of V with the theoretical values for a head to count as kernel PCA.

The claim is an equality (1 up to a rotation of the axes). 0.8 is generous: V = alpha V_theory + (1 - alpha) noise, both
of norm 1, reaches it at alpha between 0.6 and 0.7 for Gaussian keys of deviation 0.3 to 1, 197 tokens and width 64. The
debiased CKA is not used: it omits the diagonal, which contains nearly all information about the theoretical values
(0.17 at alpha = 0.9 and deviation 1).
"""

SUBSPACE = 0.9
"""Least subspace overlap of V with the theoretical values for a head to count as kernel PCA with axes of any length.

Theorem 1 fixes the directions of the axes but not their lengths. The linear CKA depends on the lengths; the overlap is
1 for any lengths. The limit is stricter than `ALIGNED` because two random subspaces already overlap by D / (N - 1),
which is 0.33 for 197 tokens and width 64; the closer this is to 1, the less an overlap proves. Set after the review,
before any new measurement; the overlap on DeiT-Tiny, 0.46, was known.
"""

EIGEN_RESIDUAL = 0.2
"""Largest sine of the angle between K a and a, with K the centred Gram matrix, for an axis a to count as eigenvector.

It is 0 for an eigenvector, and 0.2 for a 5 to 1 mixture of two eigenvectors with clearly different eigenvalues.
"""

INEQUALITY_SHARE = 0.99
"""Least fraction of tokens with |h|^2 <= |phi(q)|^2, an inequality that holds for every projection.

The inequality is necessary but not sufficient: any outputs that are small enough satisfy it.
"""

PROJECTION_ERROR = 0.5
"""Largest distance of a head's outputs from the projections of phi(q), relative to the larger norm of the two.

It is 0 for a projection, for any rotation of its axes, and 1 for outputs that are far too small or far too large. At
0.5, three quarters of the squared norm are explained by the projection. Set after the review, before any new
measurement.
"""

EIGENVALUE_FACTOR = 2.0
"""A reported eigenvalue statistic counts as reproduced if the measured one is within this factor of it."""

HEADS_SHARE = 0.5
"""Least fraction of a model's heads with a property for the claim to be supported."""

DRAWS_PER_HEAD = 40
"""Draws of the null model per head, so that p after Holm's adjustment can still reach 1 / 40."""

LEAST_DRAWS = 999
"""Smallest number of draws of the null model."""

SPLIT_RESIDUAL = 0.1
"""Largest |K - L - S| / |K| for keys to count as split; 0 for an exact split.

When this limit and the next two were set, residual and density of the bundled models' pursuits were known
(benchmarks/pursuit.md). It is 10^6 times the tolerance of textbook principal component pursuit. The residual must also
be lower than that of plain attention, image by image: set after the review, before any new measurement.
"""

SPARSE = 0.1
"""Largest fraction of nonzero entries for S to count as sparse; if S is empty, nothing was removed from the keys.

S must also be sparser than for random keys, image by image (paired t test over images, one-sided, `SIGNIFICANCE` after
Holm), unless S of random keys is empty in most images: then what is removed is specific to the layer's keys. Set after
the review, before any new measurement.
"""

SELF_ATTENTION = 0.5
"""Largest mean attention of a token to itself for a head to mix tokens; above 0.5 it exceeds all other attention."""

LOW_RANK_PART = 0.5
"""Largest ratio of the effective ranks of L and K for L to count as a low-rank part.

The ratio must also be lower than with plain attention's output as L, image by image (the same paired test): set after
the review, before any new measurement.
"""

LOW_RANK_SHARE = 0.1
"""Fraction of an attention matrix's singular values, rounded up, that should contain `LOW_RANK_ENERGY`."""

LOW_RANK_ENERGY = 0.9
"""Fraction of the sum of squares of all singular values that the largest ones should contain."""

LOW_RANK_LEFT = 0.5
"""Largest ratio of the remaining sum of squares (outside those singular values) to that of each control.

The controls are the same matrix with each row's entries shuffled, and attention of Gaussian queries and keys with the
head's scale. Nearly uniform rows have low rank without any structure: if the shuffled matrix also reaches
`LOW_RANK_ENERGY`, the claim cannot be tested. Set after the review, before any new measurement.
"""

OBJECTIVE = 0.1
"""Largest |J| relative to the sum of its terms' magnitudes for the KSVD objective to count as 0, as when stationary."""

STATIONARITY = 0.2
"""Largest |gradient of J| relative to the sum of its parts' magnitudes for a point to count as stationary.

J = 0 holds at any sign change of J; only a stationary point is a kernel SVD.
"""

OUTLIER_F1 = 0.8
"""Least F1 score of the support of S for planted outliers to count as found. If textbook pursuit does not reach it
either, the problem is too hard and the claim is not testable."""

OUTLIER_SHARE = 0.05
"""Fraction of entries of a planted matrix that are outliers."""

OUTLIER_SIZE = 10.0
"""Size of a planted outlier in deviations of the low-rank part; large outliers are easy for any thresholding rule."""

PLANTED_RANK = 0.05
"""Rank of a planted low-rank part over the smaller side of the matrix, at least rank 1."""
