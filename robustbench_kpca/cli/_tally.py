"""Show many models under many protocols: a line for each model once all of its records are made."""

from typing import TYPE_CHECKING

from robustbench_kpca._core.progress import Progress, Screen
from robustbench_kpca.evaluation.reporter import Reporter

if TYPE_CHECKING:
    from robustbench_kpca.records.record import Record


class Tally(Reporter):
    """Counts records, and shows a model in one line once all of its records are made.

    Args:
        screen: shows them.
        models: number of models; protocols: number of protocols, each with one record a model.
    """

    def __init__(self, screen: Screen, models: int, protocols: int) -> None:
        super().__init__(screen)
        self.protocols, self.records = protocols, models * protocols
        self.values: dict[str, list[str]] = {}

    def start(self, title: str) -> Progress:
        """Begin a progress bar, after the number of records so far."""
        return super().start(f"{sum(map(len, self.values.values()))} of {self.records}  {title}")

    def recorded(self, record: "Record") -> None:
        """Take note of a record, and show its model after the last one."""
        from robustbench_kpca.metrics import leading, metric_for

        name, spec = leading(record.metrics), record.spec
        values = self.values.setdefault(spec.model.name, [])
        values.append(f"{spec.protocol.name} {metric_for(name).unit.text(record.metrics[name].value)}")
        if len(values) == self.protocols:
            self.screen.say(f"{spec.model.name}  {', '.join(values)}")
