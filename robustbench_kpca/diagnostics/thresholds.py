"""Where a verdict turns, and what was known when each limit was written (see the history).

The two sources make opposite claims about the same models, so whoever chooses a limit after looking chooses the winner.
Limits that say nothing else were written before any trained model was measured. Three more were written after an
independent review had shown that verdicts could be reached without them, and before anything was measured again.
"""

SIGNIFICANCE = 0.05
"""Level of every test, after Holm's adjustment over the heads of a model."""

ALIGNED = 0.8
"""Linear CKA of V with the theoretical values from which on a head counts as kernel PCA.

The claim is an equality (1 up to a rotation of the axes). 0.8 is generous: V = alpha V_theory + (1 - alpha) noise, both
of norm 1, reaches it at alpha between 0.6 and 0.7 for Gaussian keys of deviation 0.3 to 1, 197 tokens and width 64. The
debiased CKA is no criterion: it leaves out the diagonal, which holds nearly all that the theoretical values say (0.17
at alpha = 0.9 and deviation 1).
"""

SUBSPACE = 0.9
"""Subspace overlap of V with the theoretical values from which on a head counts as kernel PCA with axes of any length.

Theorem 1 fixes the directions of the axes and not their lengths, on which the linear CKA depends; the overlap is 1 for
any. Stricter than `ALIGNED`, for two random subspaces already overlap by D / (N - 1), which is 0.33 for 197 tokens and
width 64, and the nearer this is to 1 the less an overlap says. Written after the review, before measuring again; the
overlap on DeiT-Tiny, 0.46, was known.
"""

EIGEN_RESIDUAL = 0.2
"""Sine of the angle between the centred Gram matrix times an axis and that axis, up to which it counts as eigenvector.

0 for an eigenvector; an axis that mixes two eigenvectors of clearly different eigenvalues in the ratio 5 to 1 has 0.2.
"""

INEQUALITY_SHARE = 0.99
"""Share of the tokens for which a projection's inequality, |h|^2 <= |phi(q)|^2, must hold; of a projection it is 1.

It is necessary and not sufficient: outputs that are small enough obey it whatever they are.
"""

PROJECTION_ERROR = 0.5
"""Distance of a head's outputs from the projections of phi(q), over the larger of both, up to which they are those.

0 of a projection, whatever the rotation of its axes; 1 of outputs that are far too small or far too large. At 0.5 three
quarters of the squared length are the projection's. Written after the review, before measuring again.
"""

EIGENVALUE_FACTOR = 2.0
"""A reported eigenvalue statistic counts as found again if the measured one is within this factor of it."""

HEADS_SHARE = 0.5
"""Share of a model's heads that must show a property for the claim to be supported for the model."""

DRAWS_PER_HEAD = 40
"""Draws of the null for every head of the model, so that Holm's adjustment can still reach 1 / 40."""

LEAST_DRAWS = 999
"""And never fewer than these."""

SPLIT_RESIDUAL = 0.1
"""|K - L - S| / |K| up to which keys count as split; 0 of a split.

Of the bundled models' pursuits, residual and density were known when this and the next two were written
(docs/hazards.md); this one is 10^6 times what textbook principal component pursuit stops at. The residual must also be
lower than plain attention's, image by image: written after the review, before measuring again.
"""

SPARSE = 0.1
"""Share of entries of S that may differ from 0 for it to count as sparse; it must have some, or nothing was removed.

As any control it must beat random keys, image by image (paired t over images, one-sided, `SIGNIFICANCE` after Holm),
unless S of random keys is empty in most images: what is taken out where those lose nothing is the keys' own. Written
after the review, before measuring again.
"""

SELF_ATTENTION = 0.5
"""Mean attention of a token to itself up to which a head mixes: beyond, a token hears itself more than all others."""

LOW_RANK_PART = 0.5
"""Effective rank of L over that of K up to which L counts as the low-rank part.

It must also be lower than with plain attention's output for L, image by image (the same paired test): written after
the review, before measuring again.
"""

LOW_RANK_SHARE = 0.1
"""Share of an attention matrix's singular values, rounded up, that should hold `LOW_RANK_ENERGY`."""

LOW_RANK_ENERGY = 0.9
"""Share of the sum of squares of all singular values that those should hold."""

LOW_RANK_LEFT = 0.5
"""What those leave of the sum of squares, over what they leave of each control's, up to which a matrix beats it.

The controls are the same matrix with each row's entries shuffled, and attention of Gaussian queries and keys of the
head's own sizes. Rows that are even enough have low rank without any structure: where the shuffled matrix holds
`LOW_RANK_ENERGY`, too, nothing can be told. Written after the review, before measuring again.
"""

OBJECTIVE = 0.1
"""|J| over the sum of the sizes of its terms up to which the KSVD objective counts as 0, as at a stationary point."""

STATIONARITY = 0.2
"""|gradient of J| over the sum of the sizes of its parts, up to which a point counts as stationary. Any sign change has
J = 0; only a stationary point is a kernel SVD."""

OUTLIER_F1 = 0.8
"""F1 score of the support of S against planted outliers from which on they count as found; textbook pursuit must reach
it, too, or the problem was too hard to tell."""

OUTLIER_SHARE = 0.05
"""Share of entries of a planted matrix that are outliers."""

OUTLIER_SIZE = 10.0
"""Size of a planted outlier in deviations of the low-rank part: gross, which favours every rule that shrinks."""

PLANTED_RANK = 0.05
"""Rank of a planted low-rank part over the smaller side of the matrix, at least rank 1."""
