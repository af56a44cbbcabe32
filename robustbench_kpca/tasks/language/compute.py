"""Evaluate language models by a sliding window; attack them by changing words that they read."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from robustbench_kpca.attack_loop.engine import CleanBatch
from robustbench_kpca.attack_loop.pool import Sample
from robustbench_kpca.data.text import Text
from robustbench_kpca.errors import BadInputError
from robustbench_kpca.inference.input_space import InputSpace
from robustbench_kpca.inference.journal import Journal
from robustbench_kpca.inference.loader import in_batches
from robustbench_kpca.inference.runner import Presentation, Runner
from robustbench_kpca.inference.sliding_window.windows import BATCH_VALUES
from robustbench_kpca.protocols.scenario import Attack, Corruption, Scenario, cells_of
from robustbench_kpca.tasks.audit_plan import AuditPlan
from robustbench_kpca.tasks.compute import BATCH_SIZE, Compute, Row
from robustbench_kpca.tasks.drawing import Drawing
from robustbench_kpca.tasks.language import TASK
from robustbench_kpca.tasks.language.attacked import rows_of, worse_of
from robustbench_kpca.tasks.language.positions import EVERY_PLACE, LAST_PLACE, PositionResults, Shown
from robustbench_kpca.tasks.language.success import HigherLoss
from robustbench_kpca.tasks.language.swapped import swapped_stream
from robustbench_kpca.tasks.language.windows import Windows, reader, require_words, windows_of
from robustbench_kpca.types import IGNORE, Images

Item = tuple[int, Tensor, Tensor]


class Language(Compute[Text]):
    """Language modelling: every word of a text is predicted from the words before it."""

    success = HigherLoss()
    causal = True
    audit = AuditPlan(
        samples=16, attacks={}, strongest=(), white_box=(), black_box=(),
        left_out="attacks of an audit change pixels, and words are not changed by a little", limits={},
    )  # fmt: skip

    def require_data(self, data: Text, protocol: Scenario) -> None:
        """Refuse corruptions of pictures and signals, and blocks that nothing can be attacked in."""
        if isinstance(protocol, Corruption) and protocol.profile != "tokens":
            raise BadInputError(
                f"protocol '{protocol.title}' has the corruptions '{protocol.profile}', but data '{data.name}' are text",
                expected="profile = 'tokens'", fix="see: rbk list protocols",
            )  # fmt: skip

    def match_classes(self, data: Text, classes: int, names: Sequence[str] | None) -> tuple[Text, str]:  # noqa: ARG002
        """Refuse a model that knows another number of words."""
        require_words(data, classes)
        return data, f"{classes} words, by number"

    def presentation(self, model: nn.Module, *, attacked: bool) -> Presentation:  # noqa: ARG002
        """Under attack, ask for the next word at every place; otherwise at the last place of a window."""
        return EVERY_PLACE if attacked else LAST_PLACE

    def batch_size(self, model: nn.Module, data: Text, protocol: Scenario | None) -> int:
        """Return 64, or fewer if the logits of a batch exceed 256 MiB."""
        attacked = protocol is None or isinstance(protocol, Attack)
        windows = windows_of(model, data, protocol)
        places = windows.window if attacked or windows.stride > 1 else 1
        return max(1, min(BATCH_SIZE, BATCH_VALUES // (data.classes * places)))

    def first_inputs(self, model: nn.Module, data: Text, protocol: Scenario | None, count: int) -> Images:
        """Return the first windows of the text as it is; in attacks and audits the first blocks with their context."""
        windows = windows_of(model, data, protocol)
        if protocol is None or isinstance(protocol, Attack):
            return torch.stack([_before(data, windows, index)[0] for index in range(min(count, len(data)))])
        starts: list[int] = []
        for index in range(min(count, len(data))):
            starts += [one for one in windows.start(np.arange(*data.span(index))).tolist() if one not in starts[-1:]]
            if len(starts) >= count:
                break
        cut = [data.stream[start : start + windows.window].astype(np.float32) for start in starts[:count]]
        return torch.from_numpy(np.stack(cut))[:, None, None]

    # --- forward passes only ---

    def try_cells(self, data: Text, scenario: Corruption, seed: int, frost: str) -> None:  # noqa: ARG002
        """Swap words of the first block, once with each corruption."""
        part = _beginning(data)
        for name, severity in scenario.cells:
            if severity:
                swapped_stream(part, name, severity, seed)

    def shown(
        self, data: Text, protocol: Scenario, rows: Sequence[int], *,
        batch_size: int, workers: int, seed: int, frost: str,  # noqa: ARG002 (windows of all blocks share batches)
    ) -> Iterator[tuple[list[int], Shown]]:  # fmt: skip
        """Yield blocks one by one, with the text of their cell: the words that are read and predicted."""
        places, cell, text = cells_of(protocol), -1, (data.stream, np.zeros(len(data.stream), bool))
        for row in rows:
            if row // len(data) != cell:
                cell = row // len(data)
                name, severity = places[cell]
                if severity:
                    text = swapped_stream(data, name, severity, seed)
                else:
                    text = data.stream, np.zeros(len(data.stream), bool)
            yield [row], text

    def results(
        self, name: str, runner: Runner, data: Text, protocol: Scenario, journal: Journal | None
    ) -> PositionResults:
        """Return an empty container for the results of a model."""
        return PositionResults(name, runner, data, protocol, TASK.table(protocol.kind), journal)

    # --- attacks ---

    def batches(self, data: Text, indices: Sequence[int], batch_size: int, workers: int = 0) -> Iterator[CleanBatch]:
        """Yield blocks, each with the words before it, and the words after each place; see `_before`."""
        raise NotImplementedError

    def rows(self, sample: Sample, space: InputSpace) -> list[Row]:
        """Return the one row of a block."""
        return rows_of(sample, space)

    def is_settled(self, rows: list[Row]) -> bool:  # noqa: ARG002
        """Return False: more changed words can always make a block less probable."""
        return False

    def combined(self, rows: list[Row], smaller: list[Row]) -> list[Row]:
        """Return the row in which the block is less probable."""
        return worse_of(rows, smaller)
