"""A leaderboard: the rows and columns of its `board.toml`, and the numbers that records give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from robustbench_kpca.metrics import Metric, Paired, metric_for
from robustbench_kpca.metrics.shared.power import ALPHA, Detectable
from robustbench_kpca.protocols.scenario import Attack
from robustbench_kpca.records.audit import Audit
from robustbench_kpca.records.estimate import Estimate
from robustbench_kpca.records.record import Record
from robustbench_kpca.records.spot_check import SpotCheck
from robustbench_kpca.records.trainings import Comparison
from robustbench_kpca.report import rows
from robustbench_kpca.report.board_spec import BoardSpec, Column, Evaluation, Row
from robustbench_kpca.report.breaks import within_set
from robustbench_kpca.report.entries import Entry
from robustbench_kpca.report.question import Question
from robustbench_kpca.report.ranking import Group, Ranking, p_values_of_all, ranking

OTHER_DATA, OTHER_NETWORK = "other data", "another network"


@dataclass(frozen=True)
class Run:
    """One evaluation of one model that a board needs: `ready`, `missing`, `stale`, `other data` or `another network`.

    A stale one was made under another version of its protocol, or its record is of an older schema. `other data`: there
    is a record, but not of the samples whose digest the board states. `another network`: there is a record, but the
    name of the model stands for other weights or options now, as after it was trained again.
    """

    model: str
    evaluation: Evaluation
    state: str
    record: Record | None


@dataclass(frozen=True)
class Board:
    """A board with the records it could find; its numbers are computed once, when they are first asked for.

    Rows and columns are named by their titles; the title of a row of one model is the model's name.
    """

    name: str
    spec: BoardSpec
    runs: tuple[Run, ...]
    remake: str
    """The command that renders it."""
    missing: str
    """The command that lists the runs that are missing."""
    spot_check: SpotCheck | None = None
    """What came out where a random choice of samples was evaluated again."""
    remarks: tuple[str, ...] = ()
    """What is known of its models beside their records."""
    others: tuple[str, ...] = ()
    """Sentences about models of which there are records of another network only, or whose weights are not here."""
    plan: str = ""
    """A sentence about the plan that its records follow: which, and whether it is older; empty where there is none."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files of weights at hand, by model, as commands name them: in place of those that the records were made with."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    """Entries of an open board, by the name of their model."""

    imported: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    """Records of images that others found, by model."""
    adjusted: Mapping[Question, tuple[int, float]] = field(default_factory=dict)
    """Question of a family -> the comparisons of the family, and the p-value that is adjusted for them."""

    @property
    def left_out(self) -> str:
        """A sentence about records that do not belong on the board; empty if there are none."""
        count = sum(run.state == OTHER_DATA for run in self.runs)
        data = f"Records of {count} runs are of other data than those whose digest the board states." if count else ""
        return " ".join(filter(None, (data, *self.others)))

    def record(self, model: str, evaluation: Evaluation) -> Record | None:
        """Return the record of an evaluation, if it is there and current."""
        return self._ready.get((model, evaluation))

    def records(self, model: str, column: Column) -> list[Record]:
        """Return the records of one model in a column, none of them unless all are there; then of others' images."""
        stored = [self.record(model, needed) for needed in self.spec.needed(column)]
        complete = [] if None in stored else [record for record in stored if record is not None]
        found_by_others = self.imported.get(model, ()) if column.imported else ()
        return complete + [record for record in found_by_others if any(within_set(record, ours) for ours in complete)]

    def trainings(self, title: str, column: Column) -> list[list[Record]]:
        """Return the records of a row in a column: one list for each of its models that has all of them."""
        return list(self.seeds(title, column).values())

    def seeds(self, title: str, column: Column) -> dict[int, list[Record]]:
        """Return them by seed, as the board states it, else by the place of the model in its row."""
        of_models = {seed: self.records(model, column) for seed, model in self._rows[title].by_seed.items()}
        return {seed: records for seed, records in of_models.items() if records}

    def beside(self, title: str, other: str, column: Column) -> list[dict[int, list[Record]]]:
        """Return the other rows of several trainings in a column: their spread counts where two are compared."""
        return [row for name, row in self._several[column.title].items() if name not in (title, other)]

    def planned(self, title: str) -> int:
        """Return the number of trainings that a row is to have."""
        return len(self._rows[title].models)

    def is_alone(self, title: str, column: Column) -> bool:
        """Whether one of several trainings of a row was evaluated: it has no spread, and stands for no recipe."""
        return self.planned(title) > 1 == len(self.trainings(title, column))

    @cached_property
    def metrics(self) -> dict[str, Metric | None]:
        """Metrics by column title, with the errors of the reference model where a column names one.

        None where that model has no record.
        """
        return {column.title: self._metric(column) for column in self.spec.column}

    @cached_property
    def winners(self) -> dict[str, list[str]]:
        """By column title, the clear winners there: at most one row of several trainings, and one of one training.

        A clear winner `beats` every row that it is compared with.
        """
        return {column.title: self._clear_winners(column) for column in self.spec.column}

    def estimate(self, title: str, column: Column) -> Estimate | None:
        """Return the number of a cell; None where a record is missing."""
        return self._estimates[title, column.title]

    def certified(self, title: str, column: Column) -> Estimate | None:
        """Return what the certificate of a column proves of the trainings that were attacked; None if not of all."""
        if column.proven is None or self.seeds(title, column.proven).keys() != self.seeds(title, column).keys():
            return None
        return rows.estimate(metric_for(column.proven.metric), column.proven, self.trainings(title, column.proven))

    def unattacked(self, title: str, column: Column) -> Estimate | None:
        """Return the number without the attack that the records of a cell hold, on the same samples; None: they do not.

        For the accuracy under an attack, that is the accuracy on the clean images that were attacked.
        """
        name = metric_for(column.metric).unattacked
        metric = None if name is None else metric_for(name)
        if metric is None or "attack" not in metric.kinds:
            return None
        return rows.estimate(metric, column, self.trainings(title, column))

    def estimate_of(self, model: str, column: Column) -> Estimate | None:
        """Return the number of one model of a row."""
        return self._single[model, column.title]

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns as they are shown: without attack first, then attacks by norm and eps."""
        return tuple(sorted(self.spec.column, key=self._order))

    def _order(self, column: Column) -> tuple[bool, bool, float]:
        scenarios = [evaluation.resolve()[1] for evaluation in self.spec.needed(column)]
        attacks = [attack for attack in scenarios if isinstance(attack, Attack)]
        eps = max((float(attack.eps) for attack in attacks), default=0.0)
        return bool(attacks), any(attack.norm != "linf" for attack in attacks), eps

    @cached_property
    def ranking(self) -> Ranking:
        """The ranks of the rows; rows share one where neither `beats` the other. See `report/ranking.py`."""
        column = self._rank_column
        return ranking(self._ranked, [self._group(values, column) for values in self.compared[column.title]])

    def _group(self, values: dict[str, float], column: Column) -> Group:
        best_first = {title: values[title] for title in self._ranked if title in values}
        cells = {title: self.trainings(title, column) for title in best_first}
        p_values = p_values_of_all(self.metrics[column.title], column, cells, self.paired)
        return Group(best_first, self.level(next(iter(best_first)), column), p_values)

    @property
    def ranks(self) -> dict[str, int | None]:
        """By row title, 1 + the number of rows that are clearly better in the ranked column; None where it has none.

        That is: without a number, or where the row `is_alone`.
        """
        return self.ranking.ranks

    def ranked(self) -> list[str]:
        """Row titles, best first by `rank_by`: those of several trainings, those of one, those without a number."""
        return list(self._ranked)

    def ranked_rows(self) -> list[Row]:
        """Rows in that order."""
        return [self._rows[title] for title in self._ranked]

    def paired(self, title: str, other: str, column: Column) -> Paired | None:
        """Compare two rows in one column, on the same samples; None where they cannot be compared.

        A row that `is_alone` is compared with none, and no two rows are in a column that is `untested`.
        """
        key = (title, other, column.title)
        if key not in self._duels:
            metric = self.metrics[column.title]
            both = self.seeds(title, column), self.seeds(other, column)
            never = self.is_alone(title, column) or self.is_alone(other, column) or bool(column.untested)
            self._duels[key] = (
                None if metric is None or never else rows.paired(metric, column, *both, self.beside(*key[:2], column))
            )
        return self._duels[key]

    def comparison(self, title: str, other: str, column: Column) -> Comparison | None:
        """Compare two rows of several trainings on the seeds that they share; None as in `paired`."""
        metric = self.metrics[column.title]
        if metric is None or column.untested:
            return None
        both = self.seeds(title, column), self.seeds(other, column)
        return rows.compared(metric, column, *both, self.beside(title, other, column))

    @cached_property
    def compared(self) -> dict[str, list[dict[str, float]]]:
        """By column title, the groups of rows that are compared with one another, each row with its number.

        Those of several trainings are one group, those of one training another; a row that `is_alone` is in none. A
        column that is `untested` has no group.
        """
        by_column: dict[str, list[dict[str, float]]] = {}
        for column in self.spec.column:
            groups: dict[bool, dict[str, float]] = {}
            for title in self._rows:
                estimate = self.estimate(title, column)
                if estimate is not None and not self.is_alone(title, column) and not column.untested:
                    groups.setdefault(len(self.trainings(title, column)) > 1, {})[title] = estimate.value
            by_column[column.title] = list(groups.values())
        return by_column

    def level(self, title: str, column: Column) -> float:
        """Return the p-value below which the numbers of a row and of another one differ beyond chance.

        It is 0.05 divided by the number of rows that the row is compared with: the others of its group in `compared`
        (Bonferroni). So the probability that any row equal to it is said to differ is at most 0.05. All rows of a group
        have one level.
        """
        size = next((len(group) for group in self.compared[column.title] if title in group), 1)
        return ALPHA / max(size - 1, 1)

    def beats(self, title: str, other: str, column: Column) -> bool:
        """Whether a row is better than another one in a column beyond chance, by a test on the same samples.

        Between two models the test is McNemar's, sign flips for graded scores, or the bootstrap for what is not a mean;
        between rows of several trainings, a t-test with their seeds as blocks (`records/trainings.py`). Its p-value is
        held against `level`. False where there is no test.
        """
        duel, metric = self.paired(title, other, column), metric_for(column.metric)
        return duel is not None and metric.better(duel.first, duel.second) and duel.p_value < self.level(title, column)

    def row(self, title: str) -> Row:
        """Return the row of a title."""
        return self._rows[title]

    def audits(self, row: Row) -> list[Audit | None]:
        """Return the audits in a row's records of attacks, each once; None stands for records without one."""
        if row.title not in self._audits:
            audits = self._audits[row.title] = []
            for run in (run for model in row.models for run in self.runs_of_model(model)):
                if run.record and run.record.kind == "attack" and run.record.audit not in audits:
                    audits.append(run.record.audit)
        return self._audits[row.title]

    def runs_of(self, row: Row, column: Column) -> list[int]:
        """Return the places in `runs` of the records that a cell is computed from."""
        places = [self._places.get((model, needed)) for model in row.models for needed in self.spec.needed(column)]
        return [place for place in places if place is not None]

    def runs_of_model(self, model: str) -> list[Run]:
        """Return the runs of one model."""
        return self._of_model.get(model, [])

    @cached_property
    def _of_model(self) -> dict[str, list[Run]]:
        runs: dict[str, list[Run]] = {}
        for run in self.runs:
            runs.setdefault(run.model, []).append(run)
        return runs

    @cached_property
    def _places(self) -> dict[tuple[str, Evaluation], int]:
        return {(run.model, run.evaluation): place for place, run in enumerate(self.runs) if run.record is not None}

    @cached_property
    def _audits(self) -> dict[str, list[Audit | None]]:
        return {}

    @cached_property
    def detectable(self) -> dict[str, Detectable | None]:
        """By column title, what `report.power` found there."""
        return {}

    @cached_property
    def _duels(self) -> dict[tuple[str, str, str], Paired | None]:
        return {}

    @cached_property
    def _several(self) -> dict[str, dict[str, dict[int, list[Record]]]]:
        """By column title, the rows of several trainings there."""
        rows = {column.title: {row: self.seeds(row, column) for row in self._rows} for column in self.spec.column}
        return {title: {row: seeds for row, seeds in of.items() if len(seeds) > 1} for title, of in rows.items()}

    @cached_property
    def _rows(self) -> dict[str, Row]:
        return {row.title: row for row in self.spec.rows}

    @cached_property
    def _ready(self) -> dict[tuple[str, Evaluation], Record]:
        return {(run.model, run.evaluation): run.record for run in self.runs if run.record is not None}

    @cached_property
    def _estimates(self) -> dict[tuple[str, str], Estimate | None]:
        return {
            (title, column.title): self._number(column, self.trainings(title, column))
            for title in self._rows
            for column in self.spec.column
        }

    @cached_property
    def _single(self) -> dict[tuple[str, str], Estimate | None]:
        """The numbers of single models; a row of one model has its number."""
        return {
            (model, column.title): self._estimates[row.title, column.title]
            if len(row.models) == 1
            else self._number(column, [records] if (records := self.records(model, column)) else [])
            for row in self.spec.rows
            for model in row.models
            for column in self.spec.column
        }

    @property
    def _rank_column(self) -> Column:
        return next(column for column in self.spec.column if column.title == self.spec.rank_by)

    @cached_property
    def _ranked(self) -> list[str]:
        column = self._rank_column
        sign = 1 if metric_for(column.metric).lower_is_better else -1

        def key(title: str) -> tuple[bool, bool, float, str]:
            estimate = self.estimate(title, column)
            single = self.planned(title) == 1
            return (estimate is None, single, 0 if estimate is None else sign * estimate.value, title)

        return sorted(self._rows, key=key)

    def _metric(self, column: Column) -> Metric | None:
        metric = metric_for(column.metric)
        if column.reference is None:
            return metric
        records = self.records(column.reference, column)
        return metric.relative_to(records[0].outcomes) if records else None

    def _number(self, column: Column, trainings: Sequence[list[Record]]) -> Estimate | None:
        metric = self.metrics[column.title]
        return None if metric is None else rows.estimate(metric, column, trainings)

    def _clear_winners(self, column: Column) -> list[str]:
        winners = (self._clear_winner(group, column) for group in self.compared[column.title])
        return [winner for winner in winners if winner is not None]

    def _clear_winner(self, group: dict[str, float], column: Column) -> str | None:
        better_first = sorted(group, key=group.__getitem__, reverse=not metric_for(column.metric).lower_is_better)
        best, *rest = better_first
        # nearest first: one that is not clearly worse decides
        return best if rest and all(self.beats(best, other, column) for other in rest) else None
