"""Which network the name of a model stands for on a board.

One name on two networks is a model that was trained again, or had other options; a row that mixed them would be of
neither.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from robustbench_kpca.records.record import SUFFIX, Record
from robustbench_kpca.report.board import OTHER_NETWORK, Run
from robustbench_kpca.report.board_spec import BoardSpec


def leading_records(spec: BoardSpec, records: Iterable[Record], weights: Mapping[str, str]) -> dict[str, Record]:
    """Return, by name, the record that says which network a model is on this board.

    It is the newest one with the options that the board states, and of the weights at hand where there are some.

    Args:
        weights: digests of the weights at hand, by model.
    """
    leading: dict[str, Record] = {}
    for record in sorted(records, key=lambda own: own.created):
        model = record.spec.model
        known = (None, model.parameters_sha256)
        if model.agrees(spec.described(model.name).options) and weights.get(model.name) in known:
            leading[model.name] = record
    return leading


def of_network(records: Iterable[Record], leading: Record | None) -> list[Record]:
    """Return the records that are of the network of the leading one."""
    return [own for own in records if leading is not None and own.spec.model.network == leading.spec.model.network]


def of_other_networks(
    runs: Iterable[Run], leading: Mapping[str, Record], weights: Mapping[str, str]
) -> tuple[str, ...]:
    """Say of which models some runs have records of another network only, and what to do."""
    counts = Counter(run.model for run in runs if run.state == OTHER_NETWORK)
    remarks = []
    for model, count in counts.items():
        if model in weights:
            wanted = "the weights at hand: they are to be evaluated again."
        elif model in leading:
            record = leading[model]
            named = f"{record.spec.stem()}{SUFFIX} of {record.created}"
            wanted = f"its newest record, {named}: evaluate it again, or move its newer records away."
        else:
            wanted = "the board asks for: evaluate it again."
        what = f"Records of {count} runs of {model} are of another network (other weights or options)"
        remarks.append(f"{what} than {wanted}")
    return tuple(remarks)
