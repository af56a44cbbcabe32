"""What a record states beside its outcomes: names, times, versions, and data and weights that the package knows.

A rule is a function of a record and its protocol, as in `tasks.rules`, which has those about a table. Does not import
torch.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from math import inf

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.data.known import CLASSES, KNOWN, labels_of
from robustbench_kpca.protocols.scenario import MANY, Attack, Scenario
from robustbench_kpca.records.names import mistakable
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks.titles import misnamed, preset_title

Rule = Callable[[Record, Scenario], str | None]
Rows = NDArray[np.bool_]

LEAST: Mapping[str, tuple[int, ...]] = {
    "numpy": (2, 0), "scipy": (1, 14), "timm": (1, 0, 23), "torch": (2, 11), "torchvision": (0, 26),
}  # fmt: skip
"""The oldest packages that this one runs with, as in `pyproject.toml`."""
_PYTHON = (3, 11)
_BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
"""A date before this package was begun: a clock that is further behind would have been noticed."""
_CLOCKS = timedelta(days=1)
"""How far clocks may differ."""
_LABELS: dict[tuple[str, str], Mapping[str, str]] = {}
"""Digests of data and of a table of them (empty: of the first one) -> labels by sample; equal ones are kept once."""


def first(outcomes: Outcomes, wrong: Rows, text: str) -> str | None:
    """Return `text` about the first row of `wrong`, filled in with that row's columns; None if there is none."""
    if not wrong.any():
        return None
    at = int(wrong.argmax())
    row = {name: column[at] for name, column in outcomes.columns.items()}
    return f"row {at + 1}, sample '{row['sample']}': {text.format(**row)}"


def labels(record: Record) -> Mapping[str, str]:
    """Return the samples of a record with their labels, "" where there are none; computed once for each table."""
    data, table = record.spec.data.digest, record.outcomes_file.sha256
    if (data, table) not in _LABELS:
        outcomes = record.outcomes
        owner, samples = outcomes.numbered("sample")
        rows = np.empty(len(samples), np.intp)
        rows[owner] = np.arange(len(owner))  # one of the rows of each sample, which have one label (`one-label-each`)
        values = map(str, outcomes["label"][rows].tolist()) if "label" in outcomes.columns else [""] * len(rows)
        made = dict(zip(samples.tolist(), values, strict=True))
        _LABELS[data, table] = _LABELS[data, ""] if _LABELS.setdefault((data, ""), made) == made else made
    return _LABELS[data, table]


def known_samples(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that samples and labels are those that a known digest stands for.

    This finds rows under invented names in place of those that an attack broke, and edited labels, also where all
    records of a board have them. Where the digest of a part is not known, each sample must be one of the whole set.
    """
    data = record.spec.data
    published = labels_of(data.digest)
    if published:
        if labels(record) == published:
            return None
    elif (data.name, data.split) in KNOWN:
        digest = KNOWN[data.name, data.split].digest
        by_number = data.matched is None or "by number" in data.matched
        return _odd_sample(record, labels_of(digest), "", labelled=by_number)
    else:
        return None
    return _odd_sample(record, published, " that have its digest", labelled=True) or _left_out(record, published)


def _odd_sample(record: Record, published: Mapping[str, str], which: str, *, labelled: bool) -> str | None:
    data = f"{record.spec.data.name} ({record.spec.data.split})"
    for name, label in labels(record).items():
        if name not in published:
            return f"sample '{name}' is none of the samples of {data}{which}"
        if labelled and label != published[name]:
            return f"sample '{name}' has the label {label}, which is {published[name]} in {data}"
    return None


def _left_out(record: Record, published: Mapping[str, str]) -> str:
    missing = next(iter(published.keys() - labels(record).keys()), "")
    return f"sample '{missing}' of its data is left out"


def true_titles(record: Record, scenario: Scenario) -> str | None:
    """Check that name and title of a protocol name no attack that it does not run, such as AutoAttack over PGD.

    Pages show the title of the preset for a protocol that is one, whatever its record says.
    """
    label = record.spec.protocol.name
    if preset_title(label, scenario.digest()):
        return None
    return misnamed(label, [scenario]) or misnamed(scenario.title, [scenario])


def possible_numbers(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that counts and settings are numbers that an evaluation can have."""
    spec, where = record.spec, record.environment
    ranges = {
        "seed": (spec.seed, 0, 2**63 - 1),
        "batch_size": (spec.batch_size, 1, MANY),
        "classes": (spec.data.classes, 0, MANY),
        "known samples": (spec.data.known or 0, 0, spec.data.n),
        "entropy": (spec.data.entropy or 0, 0, MANY),
        "parameters": (spec.model.parameters, 0, 10**13),
        "threads": (where.threads, 1, MANY),
    }
    for name, (value, least, most) in ranges.items():
        if not least <= value <= most:
            return f"{name} = {value:g}, outside of {least:g} to {most:g}"
    outcomes = record.outcomes
    for name in ("label", "prediction", "clean_prediction", "unmasked_prediction", "rank", "class"):
        if name in outcomes.columns:
            impossible = first(outcomes, outcomes[name] > MANY, f"{name} = {{{name}}}")
            if impossible is not None:
                return impossible
    return None


def possible_versions(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that Python and packages are of versions that this package runs with."""
    where = record.environment
    for name, least in {"Python": _PYTHON, **LEAST}.items():
        stated = where.python if name == "Python" else where.packages.get(name, "missing")
        number = re.match(r"\d+(\.\d+)*", stated)  # a version without a number claims nothing
        if number and tuple(map(int, number[0].split("."))) < least:
            wanted = ".".join(map(str, least))
            return f"it was made with {name} {stated[:20]}, but this package needs {wanted} or later"
    return None


def plain_names(record: Record, scenario: Scenario) -> str | None:
    """Check that no name of the record can be mistaken for another one: see `records.names`."""
    spec = record.spec
    names = {"model": spec.model.name, "data": spec.data.name, "split": spec.data.split, "protocol": spec.protocol.name}
    if isinstance(scenario, Attack) and scenario.imported is not None:
        names["finder"] = scenario.imported.by
    return next((f"the {what} {why}" for what, name in names.items() if (why := mistakable(name))), None)


def true_times(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that the record was made on a date that this package has seen, in a time that is not negative."""
    try:
        created = datetime.fromisoformat(record.created).astimezone(UTC)
    except (ValueError, OverflowError):
        return f"created = {record.created[:40]!r} is no date"
    if not _BEGUN <= created <= datetime.now(UTC) + _CLOCKS:
        when = "before this package" if created < _BEGUN else "in the future"
        return f"created = {record.created[:40]!r} is {when}"
    times = [record.seconds, *([] if record.audit is None else [record.audit.seconds])]
    return next((f"{time:g} seconds" for time in times if not 0 <= time < inf), None)


def known_data(record: Record, scenario: Scenario) -> str | None:  # noqa: ARG001
    """Check that a whole split of a set of the package has the digest that it has everywhere.

    A known digest has a known number of samples and of classes, whatever the data are called. For a part of a split,
    only the classes are known here; a board pins that part by `digest` in its `board.toml`.
    """
    data = record.spec.data
    for (name, split), whole in KNOWN.items():
        if data.digest == whole.digest and data.n != whole.n:
            return f"{data.n} samples with the digest of all {whole.n} of {name} ({split})"
        named = (data.name, data.split) == (name, split) and data.matched is None
        if (named or data.digest == whole.digest) and data.classes != CLASSES[name]:
            return f"{data.classes} classes of {name}, which has {CLASSES[name]}"
    whole_split = KNOWN.get((data.name, data.split))
    if whole_split is None or data.n < whole_split.n:
        return None
    if data.n > whole_split.n:
        return f"{data.n} samples of {data.name} ({data.split}), which has {whole_split.n}"
    if data.digest == whole_split.digest:
        return None
    return (
        f"all {data.n} samples of {data.name} ({data.split}) have the digest {whole_split.digest[:12]}, "
        f"but those of the record have {data.digest[:12]}"
    )


FACTS: Mapping[str, Rule] = {
    "known-data": known_data,
    "known-samples": known_samples,
    "plain-names": plain_names,
    "true-titles": true_titles,
    "true-times": true_times,
    "possible-numbers": possible_numbers,
    "possible-versions": possible_versions,
}
