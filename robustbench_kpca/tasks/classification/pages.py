"""Tables of a classifier's records: accuracy and error by corruption, severity and group, and CE."""

from typing import TYPE_CHECKING, Any

from robustbench_kpca.metrics.corruption import (
    corruption_errors,
    mean_by_group,
    mean_errors,
    relative_corruption_errors,
)
from robustbench_kpca.metrics.shared.alexnet import ALEXNET
from robustbench_kpca.metrics.shared.corruption_grid import CorruptionGrid
from robustbench_kpca.protocols.corruption_names import counted
from robustbench_kpca.protocols.scenario import Corruption, parse_scenario
from robustbench_kpca.records.estimate import Estimate, mean
from robustbench_kpca.records.record import Record
from robustbench_kpca.tasks.classification.rules import RULES
from robustbench_kpca.tasks.pages import Pages

if TYPE_CHECKING:
    import pandas as pd


class ClassificationPages(Pages):
    """Top-1 accuracy and top-1 error."""

    hub_task = "image-classification"
    quantity = "accuracy"
    error = "top-1 error"
    rules = RULES

    def cells(self, record: Record) -> list[dict[str, Any]]:
        """Return per cell: corruption, severity, top-1 and top-5 accuracy in [0, 1] with Wilson intervals."""
        top1, top5 = (CorruptionGrid.of(record.outcomes, top).top1() for top in (1, 5))
        return [
            {"corruption": name, "severity": severity, "top1": accuracy.__dict__, "top5": top5[name, severity].__dict__}
            for (name, severity), accuracy in top1.items()
        ]

    def by_corruption(self, record: Record) -> "pd.DataFrame":
        """Return per corruption, in percent: error at each severity, their mean and, relative to AlexNet, CE."""
        import pandas as pd

        grid = CorruptionGrid.of(record.outcomes)
        table = grid.table(record.spec.model.name)
        columns = {str(level): [table.cells[name, level] for name in grid.corruptions] for level in grid.severities}
        columns["mean"] = list(mean_errors(table).values())
        scenario = parse_scenario(dict(record.spec.protocol.resolved), record.spec.protocol.name)
        if isinstance(scenario, Corruption) and scenario.reference == "alexnet":
            known = [ALEXNET.knows(name, grid.severities) for name in grid.corruptions]
            if all(known):  # for the extra corruptions only means over five severities are published
                columns["CE"] = list(corruption_errors(table, ALEXNET).values())
                if scenario.clean:
                    columns["relative CE"] = list(relative_corruption_errors(table, ALEXNET).values())
        return 100 * pd.DataFrame(columns, index=pd.Index(grid.corruptions, name="corruption"))

    def by_group(self, record: Record) -> dict[str, float]:
        """Return the mean error in [0, 1] by group of corruptions."""
        return mean_by_group(mean_errors(CorruptionGrid.of(record.outcomes).table(record.spec.model.name)))

    def along_severity(self, record: Record) -> dict[int, Estimate]:
        """Return top-1 accuracy by severity, averaged over all but the extra corruptions; 0: clean images."""
        grid = CorruptionGrid.of(record.outcomes)
        clean = {} if grid.clean_wrong is None else {0: mean((~grid.clean_wrong).astype(float))}
        averaged = [at for at, name in enumerate(grid.corruptions) if name in counted(grid.corruptions)]
        levels = enumerate(grid.severities)
        return clean | {level: mean(1 - grid.wrong[:, averaged, at].mean(axis=1)) for at, level in levels}

    def headline(self, record: Record) -> list[str]:
        """Return all metrics, the clean accuracy first."""
        return sorted(record.metrics, key=lambda name: name != "clean_accuracy")


PAGES = ClassificationPages()
