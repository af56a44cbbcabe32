"""The spot check of a board: which random rows of its records were evaluated again, and what came out. No torch.

It is a file `spot-check.json` beside the `board.toml`. An entry is of one table of outcomes, by its digest; where the
table is replaced, the entry counts no longer.
"""

import secrets
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, model_validator

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.files import read_file, write_atomic
from robustbench_kpca._core.strict import STRICT, validate_json
from robustbench_kpca.records.differences import chance_of_finding
from robustbench_kpca.records.record import Record

FILE = "spot-check.json"
SHARES = (0.1, 0.05, 0.01)
"""Shares of forged samples whose discovery is stated."""


class Entry(BaseModel):
    """What came out for one record.

    Attributes:
        model: its name.
        protocol: its name.
        outcomes: SHA-256 of the table.
        checked: the day, such as "2026-11-22".
        total: samples of the record.
        samples: samples evaluated again; 0 if the record could not be remade.
        rows: rows compared.
        differing: of them, those that differ.
        exact: whether every column had to be equal to the last digit.
        why: why the record could not be remade, or why the comparison was not exact.
    """

    model_config = STRICT
    model: str
    protocol: str
    outcomes: str
    checked: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    total: int = Field(ge=1)
    samples: int = Field(ge=0)
    rows: int = Field(ge=0)
    differing: int = Field(ge=0)
    exact: bool
    why: str

    @model_validator(mode="after")
    def _counts_fit(self) -> "Entry":
        if not (self.samples <= self.total and self.differing <= self.rows and (self.rows > 0) == (self.samples > 0)):
            raise BadInputError(f"the spot check of {self.model} under {self.protocol}: its counts do not fit")
        return self

    @property
    def verdict(self) -> str:
        """How many rows differ, or why the record was not made again."""
        return f"{self.differing} of {self.rows} rows differ" if self.samples else f"not remade: {self.why}"

    def power(self, share: float) -> float:
        """Return the probability that these samples hold a forged one, had this share of all been forged."""
        return chance_of_finding(max(1, round(share * self.total)), self.total, self.samples)


class SpotCheck(BaseModel):
    """All entries, by the stem of the record, and how the samples were chosen."""

    model_config = STRICT
    schema_version: Literal[1] = 1
    samples: int = Field(ge=1)
    seed: int = Field(ge=0)
    records: dict[str, Entry] = {}

    @classmethod
    def begin(cls, samples: int, seed: int | None) -> "SpotCheck":
        """Return one without entries; without a seed, with a new one, so that nobody knows it beforehand."""
        return cls(samples=samples, seed=secrets.randbelow(2**32) if seed is None else seed)

    def entry(self, record: Record) -> Entry | None:
        """Return the entry of a record; None if there is none of this very table."""
        entry = self.records.get(record.spec.stem())
        return entry if entry is not None and entry.outcomes == record.outcomes_file.sha256 else None

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_atomic(path, self.content())

    def content(self) -> bytes:
        """Return the content of the file."""
        ordered = self.model_copy(update={"records": dict(sorted(self.records.items()))})
        return (ordered.model_dump_json(indent=1) + "\n").encode()


def load_spot_check(path: Path) -> SpotCheck:
    """Read a spot check.

    Raises:
        BadInputError: missing, damaged, or counts that do not fit together.
    """
    return validate_json(SpotCheck, read_file(path, "spot check"), str(path))


def exit_code(check: SpotCheck, before: SpotCheck, records: Sequence[Record]) -> int:
    """Return 1 if rows of a record differ, 3 if one was not made again since `before`, else 0; 3 without records."""
    entries = [(check.entry(record), before.entry(record)) for record in records]
    if any(entry is not None and entry.differing for entry, _ in entries):
        return 1
    remade = [entry is not None and entry.samples > 0 and entry != earlier for entry, earlier in entries]
    return 0 if remade and all(remade) else 3


def stated_before(before: SpotCheck, records: Sequence[Record]) -> str:
    """Say how many records only a file that was there before says to be equal; empty if none."""
    count = sum((entry := before.entry(record)) is not None and entry.samples > 0 for record in records)
    if not count:
        return ""
    return (
        f"{count} of {len(records)} records were not made again now: what came out stands in a {FILE} that was "
        "there. It is a statement of its maker; --fresh checks them here."
    )


def lines(check: SpotCheck | None, records: Sequence[Record]) -> list[str]:
    """Return sentences about the spot check of these records; none if there was no spot check."""
    if check is None:
        return []
    entries = [(record, check.entry(record)) for record in records]
    remade = [(record, entry) for record, entry in entries if entry is not None and entry.samples]
    result = _done([entry for _, entry in remade], check) if remade else "no record was remade."
    wrong = [
        f"{record.spec.model.name} under {record.spec.protocol.name} ({entry.differing} of {entry.rows} rows)"
        for record, entry in remade
        if entry.differing
    ]
    missing = sum(entry is None for _, entry in entries)
    refused = Counter(entry.why for _, entry in entries if entry is not None and not entry.samples)
    return [
        f"Spot check: {result}",
        *([f"Rows differ in: {'; '.join(wrong)}."] if wrong else []),
        *([f"{missing} of {len(entries)} records have not been checked."] if missing else []),
        *(f"{count} could not be remade: {why}." for why, count in sorted(refused.items())),
    ]


def _done(entries: Sequence[Entry], check: SpotCheck) -> str:
    days = sorted({entry.checked for entry in entries})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    fewest = min(entry.samples for entry in entries)
    rows, wrong = sum(entry.rows for entry in entries), sum(entry.differing for entry in entries)
    rounded = sum(not entry.exact for entry in entries)
    verdict = "all are equal" if not wrong else f"{wrong} differ"
    verdict += f" ({rounded} records up to rounding)" if rounded else " to the last digit" if not wrong else ""
    least = ", ".join(
        f"{100 * share:g} % of its samples with {100 * min(e.power(share) for e in entries):.0f} %" for share in SHARES
    )
    return (
        f"on {when}, {fewest} random samples or more of each of {len(entries)} records were evaluated again (seed "
        f"{check.seed}); of {rows} rows, {verdict}. A forged record would have been found with these probabilities, by "
        f"how much of it is forged: {least}."
    )
