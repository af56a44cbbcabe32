"""The stream of a text under a corruption of its words."""

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.corruptions import require_profile
from robustbench_kpca.corruptions.words import PROFILE, WORD_CORRUPTIONS, swapped_words
from robustbench_kpca.data.text import Stream, Text
from robustbench_kpca.protocols.grid import check_severity


def swapped_stream(text: Text, corruption: str, severity: int, seed: int) -> tuple[Stream, NDArray[np.bool_]]:
    """Return the corrupted stream of a text, as long as the clean one, and where it differs; severity 0: the clean one.

    It is a function of the whole stream and the other arguments, so it is the same for every part of the text.

    Raises:
        BadInputError: an unknown corruption or one of other data, a severity outside 1 to 5, or a vocabulary that has
            neither the new words nor `<unk>`.

    """
    if severity == 0:
        return text.stream, np.zeros(len(text.stream), np.bool_)
    check_severity(severity)
    require_profile(corruption, PROFILE)
    parameter = WORD_CORRUPTIONS.get(corruption).parameters[PROFILE][severity - 1]
    vocabulary = text.vocabulary
    swapped = swapped_words(text.stream, vocabulary.words, vocabulary.end, corruption, parameter=parameter, seed=seed)
    return swapped, swapped != text.stream
