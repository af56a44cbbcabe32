"""Whether an entry of an open board is accepted: every reason against it, from its files alone. No torch; no code runs.

Rows are not made again here (`verification/entries.py`), so rows that are false and agree with one another pass.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations
from pathlib import Path

import numpy as np

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.evaluation.versions import algorithms
from robustbench_kpca.protocols.presets import board_path
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.records.audit import FOLDER, AuditFile
from robustbench_kpca.records.audit_versions import LATEST
from robustbench_kpca.records.record import SUFFIX, Record
from robustbench_kpca.records.spot_check import FILE
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.breaks import attack_of
from robustbench_kpca.report.consistency import load_consistent
from robustbench_kpca.report.entries import RECORDS, Entry, load_entry, of_these_data, with_rows
from robustbench_kpca.report.matching import fill, load_spec

_STATES = {
    "missing": "is missing: no record of this protocol, and no declared hole",
    "stale": "was made by another attack or version of the protocol than the board's",
    "other data": "is of other samples than the board's",
    "another network": "is of another network than the rest",
}
MOST_BYTES = 8_000_000
"""Bytes of all files of an entry: records of 10,000 samples take 200,000 each; larger weights lie elsewhere."""


def board_of(entry: Entry, records: Sequence[Record]) -> Board:
    """Return the board with this entry alone.

    Raises:
        BadInputError: there is no such board, or it takes no entries; the records contradict one another.
    """
    path = board_path(entry.card.board)
    spec = load_spec(path)
    if spec.entries is None:
        raise BadInputError(f"board '{entry.card.board}' takes no entries", expected="a board of leaderboards/open")
    spec = with_rows(spec.model_copy(update={"models": (), "row": (), "model": ()}), [entry])
    return fill(path.parent.name, spec, of_these_data(spec, records), str(path), remake="", missing="")


def refusals(folder: Path) -> list[str]:
    """Return every reason for which an entry is not accepted; none if it is.

    Its card is as `Card` says, its folder holds nothing else, every cell is filled or a declared hole, every metric
    follows from its rows, every attack has a full audit of today's version without a flag, algorithms are of today's
    version, and no identity between records is broken.
    """
    unread: dict[Path, str] = {}
    records = []
    try:
        entry = load_entry(folder)
        for file in entry.records:
            try:
                records.append(load_consistent(file))
            except BadInputError as error:
                unread[file] = str(error)
        board = board_of(entry, records)
    except BadInputError as error:
        return [str(error)]
    cells = [] if unread else list(_unfilled(board))
    ready = [run.record for run in board.runs if run.record is not None]
    reasons = [*_strangers(entry, records if cells else ready, unread), *unread.values(), *cells]
    counts = {record.spec.model.parameters for record in ready} - {entry.card.parameters}
    reasons += [
        f"the network has {count:,} parameters, and the card says {entry.card.parameters:,}" for count in counts
    ]
    for record in ready:
        reasons += [f"{record.spec.protocol.name}: {reason}" for reason in _of_record(record)]
    return reasons + list(broken_identities(ready))


def _unfilled(board: Board) -> Iterator[str]:
    """Yield the cells without a number that no declared hole explains, and why they have none."""
    for run in board.runs:
        if run.record is None:
            titles = [column.title for column in board.spec.column if run.evaluation in board.spec.needed(column)]
            yield f"{' and '.join(titles)} ({run.evaluation.protocol}) {_STATES[run.state]}"


def stale(board: Board) -> list[str]:
    """List the cells of a board whose evaluator was mended since, or whose protocol changed."""
    lines = [f"{run.model}: {run.evaluation.protocol} {_STATES['stale']}" for run in board.runs if run.state == "stale"]
    for record in (run.record for run in board.runs if run.record is not None):
        lines += [f"{record.spec.model.name}: {record.spec.protocol.name} {why}" for why in _outdated(record)]
    return lines


def evaluator(record: Record) -> str:
    """Name the versions of the algorithms that made a record, and of its audit."""
    audited = [] if record.audit is None else [f"audit {record.audit.schema_version}"]
    ours = [f"{name} {version}" for name, version in record.algorithms.items()]
    revision = record.environment.revision
    return ", ".join([*ours, *audited, *([] if revision is None else [f"revision {revision[:12]}"])])


def _strangers(entry: Entry, records: Iterable[Record], unread: Iterable[Path]) -> Iterator[str]:
    """Refuse files that neither the card nor a record names, links, and too many bytes."""
    named = {entry.folder / name for name in (*entry.card.beside, FILE)}
    for record in records:
        assert record.path is not None
        named |= {record.path, record.path.with_name(record.outcomes_file.file)}
        if record.audit is not None:
            named.add(AuditFile.of(record.audit).path(record.path.parent))
    for path in unread:
        named |= {*path.parent.glob(f"{path.name.removesuffix(SUFFIX)}.*"), *(path.parent / FOLDER).glob("*")}
    total = 0
    for path in sorted(entry.folder.rglob("*")):
        if path.is_symlink() or not (
            path.is_file() or path in (entry.folder / RECORDS, entry.folder / RECORDS / FOLDER)
        ):
            yield f"{path.relative_to(entry.folder)} is no file"
        elif path.is_file():
            total += path.stat().st_size
            if path not in named:
                yield f"{path.relative_to(entry.folder)} is named by neither {', '.join(entry.card.beside)} nor a cell"
    if total > MOST_BYTES:
        yield f"the folder has {total:,} bytes; expected at most {MOST_BYTES:,}"
    for name in entry.card.beside:
        if not (entry.folder / name).is_file():
            yield f"{name} is missing"


def _of_record(record: Record) -> Iterator[str]:
    """Yield what is wrong with one record that fills a cell."""
    yield from _outdated(record)
    yield from (f"flag: {flag}" for flag in record.flags)
    if record.kind == "attack":
        audit = record.audit
        if audit is None or audit.plan.level != "full":
            yield f"no full audit ({'none' if audit is None else audit.plan.level}); evaluate with --audit full"
        elif audit.schema_version != LATEST:
            yield f"its audit is of version {audit.schema_version}; expected {LATEST}"
        yield from (f"its audit flags {check.name}" for check in (() if audit is None else audit.flags))


def _outdated(record: Record) -> Iterator[str]:
    scenario = record.spec.protocol.scenario
    for name, now in algorithms(scenario).items():
        then = record.algorithms.get(name, 1)
        if then != now:
            yield f"was made with version {then} of {name}; here {now}"


def broken_identities(records: Sequence[Record]) -> Iterator[str]:
    """Yield impossible pairs, up to 1 % of the samples, in which runs differ by rounding.

    An ensemble leaves no more robust than one of its members, a larger budget no more than a smaller one, and samples
    that two sets share have the same outcome.
    """
    attacks = [(record, attack) for record in records if (attack := attack_of(record)) is not None]
    for (weak, weak_attack), (strong, strong_attack) in permutations(attacks, 2):
        if weak.spec.data.digest == strong.spec.data.digest and _is_weaker(weak_attack, strong_attack):
            ours, theirs = (len(_robust(record)) for record in (weak, strong))
            if theirs > ours + rounded(weak.spec.data.n):
                yield (
                    f"{strong.spec.protocol.name} leaves {theirs} robust, and {weak.spec.protocol.name}, which it "
                    f"contains, {ours}"
                )
    for (record, _), (other, _) in combinations(attacks, 2):
        if record.spec.protocol.digest == other.spec.protocol.digest:
            shared = _samples(record) & _samples(other)
            differing = len((_robust(record) ^ _robust(other)) & shared)
            if differing > rounded(len(shared)):
                yield f"{record.spec.protocol.name}: {differing} of {len(shared)} samples differ between two sets"


def _is_weaker(weak: Attack, strong: Attack) -> bool:
    """Whether whatever breaks a sample in the first attack is tried by the second, too."""
    if {**weak.model_dump(), "stage": (), "eps": 0} | _WORDS != {**strong.model_dump(), "stage": (), "eps": 0} | _WORDS:
        return False
    smaller = weak.stage == strong.stage and float(weak.eps) < float(strong.eps)
    return smaller or (
        weak.eps == strong.eps and len(weak.stage) < len(strong.stage) and all(s in strong.stage for s in weak.stage)
    )


_WORDS = {"title": "", "citations": ()}
"""Fields of a protocol that change nothing."""


def _samples(record: Record) -> set[str]:
    return set(record.outcomes["sample"].astype(str).tolist())


def _robust(record: Record) -> set[str]:
    """Return the samples that are answered rightly before and after the attack."""
    outcomes = record.outcomes
    kept = (outcomes["broken_by"].astype(str) == "") & (outcomes["clean_prediction"] == outcomes["label"])
    return set(outcomes["sample"].astype(str)[np.asarray(kept)].tolist())


def rounded(samples: int) -> int:
    """Return how many verdicts under attack rounding may have moved: 1, and 1 % of the samples."""
    return 1 + samples // 100
