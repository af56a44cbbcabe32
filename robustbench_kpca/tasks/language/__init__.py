"""Language modelling: every word of a text is predicted from the words before it."""

from robustbench_kpca.records.table import COUNTS, ColumnType, Table
from robustbench_kpca.tasks.task import Score, Task

_POSITIONS: dict[str, ColumnType] = {
    "sample": "str",  # the block
    "position": "int",  # place of the word in the stream
    "article": "int",
    "swapped": "int",  # 1 if this word was put there by a corruption
    "nll": "float",  # -log p(word | words before it), in nats
}
_CELLS: dict[str, ColumnType] = {"corruption": "str", "severity": "int", **_POSITIONS}
# One row per block under attack: the clean words are to be predicted from the changed ones.
_ATTACK: dict[str, ColumnType] = {
    "sample": "str",
    "article": "int",
    "words": "int",  # number of words that are predicted
    "read": "int",  # number of words that are read, of which a share may be replaced
    "clean_nll": "float",  # their mean -log p without the attack, in nats
    "nll": "float",  # and with it
    "swaps": "int",  # number of words that were changed
    "attack": "str",  # the attack that found the changes
    **dict.fromkeys(COUNTS, "int"),
}
_COLUMNS = {"clean": _CELLS, "corruption": _CELLS, "attack": _ATTACK}

TASK = Task(
    name="language",
    unit="word",
    tables={kind: Table("language", kind, columns) for kind, columns in _COLUMNS.items()},
    scores={"perplexity": Score("perplexity", percent=False), "accuracy": Score("accuracy")},
    compute_at=f"{__name__}.compute:COMPUTE",
    pages_at=f"{__name__}.pages:PAGES",
)
