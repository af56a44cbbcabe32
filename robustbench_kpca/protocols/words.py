"""Words that protocols for language give a meaning of their own."""

UNKNOWN_WORD = "<unk>"
"""Stands for every word that a vocabulary does not have."""
SWAPPED_WORD = "AAA"
"""Replaces words, as in the authors' code of Teo & Nguyen (2024), arXiv:2406.13762."""
