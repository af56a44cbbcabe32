"""Write `data/lists/samples.txt.xz`: the samples and labels of every set that is known by its digest.

Run it where a board is of new data: `python tests/forgery/known_samples.py`. Sets of the package are loaded whole; of
the others the committed records say which samples a digest stands for, and all of one digest must say the same.
"""

import lzma
from pathlib import Path

from robustbench_kpca.data.known import KNOWN, SAMPLES
from robustbench_kpca.data.load import load_data
from robustbench_kpca.records.record import load_record
from robustbench_kpca.tasks.facts import labels

BOARDS = Path(__file__).parents[2] / "leaderboards"


def known_sets() -> dict[str, dict[str, str]]:
    """Return digest -> sample -> label."""
    sets: dict[str, dict[str, str]] = {}
    for name, split in KNOWN:
        data = load_data(name, split)
        sets[data.digest()] = dict(zip(data.ids, map(str, getattr(data, "labels", [""] * len(data))), strict=True))
    for path in sorted(BOARDS.rglob("*.record.json")):
        record = load_record(path)
        own = labels(record)
        if sets.setdefault(record.spec.data.digest, own) != own:
            raise SystemExit(f"{path} has other samples or labels than its digest stands for")
    return sets


def packed(sets: dict[str, dict[str, str]]) -> bytes:
    """Return one line a set: its digest, then label and name of each sample."""
    cells = {digest: [f"{label},{name}" for name, label in sorted(own.items())] for digest, own in sets.items()}
    return lzma.compress("\n".join("\t".join([digest, *cells[digest]]) for digest in sorted(cells)).encode(), preset=9)


if __name__ == "__main__":
    SAMPLES.write_bytes(packed(known_sets()))
