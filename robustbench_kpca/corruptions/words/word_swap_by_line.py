"""Word swap by the authors' rule: of every line, 1.5 % of the words, at least one, become "AAA"; stop words never do.

Teo & Nguyen (2024), arXiv:2406.13762, section 4.3, do not state a rate; code of the same group has 1.5 %, other papers
2.5 %. Their rule is that of TextAttack (Morris et al. 2020, arXiv:2005.05909), whose class Augmenter is called on each
line. With n words in a line,

    max( floor(rate n), 1 )

of them are replaced, or as many as there are candidates. A word is a run of letters, digits, and signs ' - _ * @, that
begins with a letter or digit: "=" and "," are none, "U.S." has two, and of "@-@" nothing is left. NLTK's 179 English
stop words are counted in n, but are no candidates. What is around a word in its token stays, so "<unk>" becomes
"<AAA>" and "U.S." "AAA.S.", which no vocabulary has: the first is then `<unk>` again, which was counted, but changes
nothing. Short lines, such as titles, lose far more than 1.5 %.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np

from robustbench_kpca.corruptions.words import PROFILE, Draw
from robustbench_kpca.protocols.words import SWAPPED_WORD

_LISTED = """
i me my myself we our ours ourselves you you're you've you'll you'd your yours yourself yourselves he him his
himself she she's her hers herself it it's its itself they them their theirs themselves
what which who whom this that that'll these those am is are was were be been being have has had having do does did
doing a an the and but if or because as until while of at by for with about against between into through during
before after above below to from up down in out on off over under again further then once here there when where why
how all any both each few more most other some such no nor not only own same so than too very s t can will just
don don't should should've now d ll m o re ve y ain aren aren't couldn couldn't didn didn't doesn doesn't hadn
hadn't hasn hasn't haven haven't isn isn't ma mightn mightn't mustn mustn't needn needn't shan shan't shouldn
shouldn't wasn wasn't weren weren't won won't wouldn wouldn't
"""
STOP_WORDS = frozenset(_LISTED.split())
"""NLTK's list of 179 English stop words (corpus `stopwords`, as distributed from 2017 to 2024; later ones have 198).

The list of M. F. Porter's Snowball project, without the words that are not in NLTK's, and with contractions and their
halves. It is compared case by case: "The" is none of them.
"""
_WORD = re.compile(r"[\w'*@`˗×-]+")
_BEFORE = "'-_*@"  # not part of a word where they begin it


class WordSwapByLine:
    """`parameter` is the rate. The candidates with the smallest random numbers are replaced."""

    version: ClassVar[int] = 1
    parameters: ClassVar[dict[str, tuple[float, ...]]] = {PROFILE: (0.015, 0.025, 0.05, 0.1, 0.2)}

    def replaced(self, line: Sequence[str], parameter: float, draw: Draw) -> dict[int, str]:
        """Return the new tokens of a line by their place."""
        words = [(place, span) for place, token in enumerate(line) for span in spans(token)]
        candidates = [(place, span) for place, span in words if line[place][slice(*span)] not in _FIXED]
        order = np.argsort(draw(len(candidates)), kind="stable")
        new: dict[int, list[tuple[int, int]]] = {}
        for chosen in order[: max(int(parameter * len(words)), 1)]:
            place, span = candidates[chosen]
            new.setdefault(place, []).append(span)
        return {place: _replace(line[place], chosen) for place, chosen in new.items()}


CORRUPTION = WordSwapByLine()
_FIXED = STOP_WORDS | {SWAPPED_WORD}


@lru_cache(maxsize=2**16)
def spans(token: str) -> tuple[tuple[int, int], ...]:
    """Return where the words of a token begin and end."""
    places = []
    for run in _WORD.finditer(token):
        word = run[0].lstrip(_BEFORE)
        if word:
            places.append((run.end() - len(word), run.end()))
    return tuple(places)


def _replace(token: str, chosen: Sequence[tuple[int, int]]) -> str:
    for start, stop in sorted(chosen, reverse=True):
        token = token[:start] + SWAPPED_WORD + token[stop:]
    return token
