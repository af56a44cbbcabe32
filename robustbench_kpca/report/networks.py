"""Rules about the networks of a board: each answers an image once, has one name, and outcomes of its own.

A rule yields a pair of records, of which at least one is false, and what the first of them does.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustbench_kpca.models.bundle import parameters_of
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.records.outcomes import Outcomes
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks import task_named
from robustbench_kpca.tasks.rules import is_noisy

Found = Iterator[tuple[Record, Record | None, str]]
Values = NDArray[np.int64]

FEW, ALIKE = 16, 0.9
"""So many samples, and this share of them, are not found at equal distances in two networks by chance.

Between honest networks of the committed boards at most 40 % were: under APGD on time series, which have no box.
"""
_ONE_LOOK = frozenset({"fgsm", "noise", "random_swap"})
"""Attacks of one step, or none: two networks may well give equal images (three of four, under FGSM on time series)."""
_INFORMATIVE = {"l2": (0, np.inf), "confidence": (0, 0.9999), "nll": (1e-3, np.inf), "max_logit": (-np.inf, np.inf)}
"""Columns with many digits, and between which values chance does not make them equal."""
_ORDERS: dict[str, NDArray[np.object_]] = {}
"""Digest of data -> its samples, in the order of the first table that was met."""
_ANSWERS: dict[tuple[str, str], Values | None] = {}
_OUTCOMES: dict[tuple[str, str], Values | None] = {}


def own_weights(records: Sequence[Record]) -> Found:
    """Expect of a model that is called as one of the package the weights of its file."""
    for record in records:
        model = record.spec.model
        packaged = parameters_of(model.name)
        if packaged not in ("", model.parameters_sha256):
            which = f"weights with the digest {model.parameters_sha256[:12]}"
            yield record, None, f"has {which} under the name of '{model.name}', whose weights here have {packaged[:12]}"


def one_answer(records: Sequence[Record]) -> Found:
    """Expect one answer of a network to a clean image: in clean records, and before attacks and corruptions.

    This finds a table of another network. On one processor, in batches of one size, answers are equal to the last digit
    of their probe; elsewhere rounding may change a few.
    """
    exact: dict[tuple[Any, ...], Record] = {}
    for record in records:
        if is_noisy(record):
            continue
        network, place = (*_network(record), record.spec.data.digest), _place(record)
        resolved = record.spec.protocol.resolved
        presentation = (str(resolved.get("inference")), record.kind == "certificate")
        other = exact.setdefault(("probe", network, place, presentation), record) if place else record
        if other.spec.model.probe_sha256 != record.spec.model.probe_sha256:
            yield record, other, "has other answers on the first batch, with the same weights, settings and machine"
        answers = _once(_ANSWERS, record, _answers)
        if answers is None:
            continue
        tolerance = 1 + len(answers) // 100
        for key, allowed in ((place, 0), ("any", tolerance)) if place else (("any", tolerance),):
            other = exact.setdefault((network, key, presentation), record)
            differing = np.flatnonzero(answers != _once(_ANSWERS, other, _answers))
            if len(differing) > allowed:
                which = f"{len(differing)} clean samples otherwise, such as '{_sample(record, differing[0])}'"
                yield record, other, f"answers {which}, as the same network"


def one_name(records: Sequence[Record]) -> Found:
    """Expect two rows to be of two networks: not of one under two names, nor of other weights with its very answers."""
    first: dict[tuple[Any, ...], Record] = {}
    for record in records:
        model = record.spec.model
        other = first.setdefault(_network(record), record)
        if other.spec.model.name != model.name:
            yield record, other, f"is of the network of '{other.spec.model.name}', by weights and configuration"
        if record.kind != "certificate":  # whose answers are votes, which different networks share
            other = first.setdefault((model.probe_sha256, record.spec.data.digest), record)
            if other.spec.model.parameters_sha256 != model.parameters_sha256:
                yield record, other, "has the same answers on the first batch, of other weights"


def own_outcomes(records: Sequence[Record]) -> Found:
    """Expect other outcomes of other networks: not the same distances, confidences and passes for nearly all samples.

    Two attentions on the same weights may answer alike, and differ in their gradients alone.
    """
    groups: dict[tuple[str, str], list[tuple[Record, Values]]] = {}
    for record in records:
        outcomes = _once(_OUTCOMES, record, _outcomes)
        if outcomes is None:
            continue
        group = groups.setdefault((record.spec.data.digest, record.spec.protocol.digest), [])
        for other, other_outcomes in group:
            both = (outcomes != 0) & (other_outcomes != 0)
            same = both & (outcomes == other_outcomes)
            repeated = same.sum() > ALIKE * both.sum() and len(np.unique(outcomes[same])) >= FEW
            if repeated and _differ(record, other):
                which = f"{same.sum()} samples, such as '{_sample(record, same.argmax())}'"
                yield record, other, f"has the same outcomes of {which}, of another network"
        group.append((record, outcomes))


def _differ(record: Record, other: Record) -> bool:
    """Whether two records are of other weights or, where gradients were followed, of other models."""
    model, other_model = record.spec.model, other.spec.model
    followed = record.passes.backwards > 0
    return model.parameters_sha256 != other_model.parameters_sha256 or (followed and model.name != other_model.name)


def _network(record: Record) -> tuple[str, ...]:
    """Return weights, configuration and code of a network; also its name, where the configuration is not known."""
    model = record.spec.model
    unknown = () if model.config else (model.name, model.source)
    return (*model.network, record.spec.code.get("model", ""), *unknown)


def _place(record: Record) -> str:
    """Return batch size, machine and packages; "" for an accelerator, whose sums have no fixed order."""
    where = record.environment
    if where.device != "cpu":
        return ""
    return json.dumps([record.spec.batch_size, where.model_dump(exclude={"revision"})], sort_keys=True)


def _once(computed: dict[tuple[str, str], Values | None], record: Record, compute: Any) -> Values | None:
    """Compute something of a table once for all tables of a pack."""
    key = (record.spec.data.digest, record.outcomes_file.sha256)
    if key not in computed:
        computed[key] = compute(record)
    return computed[key]


def _sample(record: Record, place: np.intp) -> str:
    return str(_ORDERS[record.spec.data.digest][place])


def _answers(record: Record) -> Values | None:
    """Return a number for the clean answer to each sample, in the order of the samples; None without such answers."""
    rows = task_named(record.spec.data.task).pages.clean_answers(record)
    return None if rows is None else _in_order(record, rows[0], rows[1])


def _in_order(record: Record, outcomes: Outcomes, values: Values) -> Values:
    """Return the sum of the values of each sample, in one order for all records of these data."""
    owner, samples = outcomes.numbered("sample")
    sums = np.zeros(len(samples), np.int64)
    np.add.at(sums, owner, values)
    order = _ORDERS.setdefault(record.spec.data.digest, samples)
    if np.array_equal(order, samples):
        return sums
    places = {name: place for place, name in enumerate(samples)}
    return sums[[places[name] for name in order]]


def _outcomes(record: Record) -> Values | None:
    """Return a number for the outcome of each sample, 0 where chance may decide it; None where it may everywhere."""
    scenario = record.spec.protocol.scenario
    if isinstance(scenario, Attack) and {stage.attack for stage in scenario.stage} <= _ONE_LOOK:
        return None
    outcomes = record.outcomes
    name = next((name for name in _INFORMATIVE if name in outcomes.columns), None)
    if name is None:
        return None
    least, most = _INFORMATIVE[name]
    values = outcomes[name].view(np.int64).copy()
    for place, whole in enumerate(("forwards", "backwards", "prediction")):
        if whole in outcomes.columns:
            values ^= outcomes[whole] << (16 * place)
    informative = (outcomes[name] > least) & (outcomes[name] < most)
    return _in_order(record, outcomes, np.where(informative, values, 0)) if informative.sum() >= FEW else None
