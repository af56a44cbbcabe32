"""The study's two terms of J_proj on texts, of which it takes two.

Source: Sarıtaş & Yıldız (2025), arXiv:2505.07908. Its scripts divide by 8 here, too, also for heads of width 32.
"""

from robustbench_kpca.study.diagnostics.saritas2025.study_norms import StudyNorms


class StudyTextNorms(StudyNorms):
    """As on images."""

    title = "The study's protocol: the two norms of the projection loss on texts"


CLAIM = StudyTextNorms()
