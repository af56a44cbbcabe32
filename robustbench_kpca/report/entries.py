"""Entries of an open board: a folder each, with a card `entry.toml`, records, and what else the card names."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, StrictBool, model_validator

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca._core.strict import STRICT, load_toml, validate
from robustbench_kpca.models.bundle import bundled
from robustbench_kpca.protocols.presets import board_path
from robustbench_kpca.records.record import SUFFIX, Record
from robustbench_kpca.records.spot_check import FILE, SpotCheck, load_spot_check
from robustbench_kpca.report.board_spec import AtLeastOne, BoardSpec, Described, Digest

CARD, RECORDS = "entry.toml", "records"
HUB, WEB = "hf-hub:", "https://"
AGAIN, RECOMPUTED = "made again here", "recomputed only"
"""Marks of a cell: random rows of its record were made again by us; or its numbers were, from the entrant's rows."""
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}")
_PINNED = re.compile(r"hf-hub:[\w.-]+/[\w.-]+@[0-9a-f]{40}")
_BESIDE = re.compile(r"[\w-][\w.-]*\.safetensors")
_CODE = re.compile(r"[\w-][\w.-]*\.py:\w+")
_EXPECTED = "none for a trained network of the package, and weights for every other network"
Text = Annotated[str, Field(min_length=1, max_length=400)]


class Hole(BaseModel):
    """A column in which an entry has no number, and why; a declared hole costs no place."""

    model_config = STRICT
    column: Text
    reason: Text


class Card(BaseModel):
    """What `entry.toml` says.

    Attributes:
        board: name of the board, such as `open/small`.
        title: of the paper or the work.
        by: who enters it.
        paper: address of the paper, as in `board_spec.Described`.
        model: a name of the package, `timm:NAME` or `torchvision:NAME`, or a factory `FILE.py:OBJECT` in a file beside
            the card: people read it, and it runs in no job that has a token, a secret or the network.
        options: options of the model.
        weights: `hf-hub:OWNER/NAME@COMMIT`, an address `https://…`, or a file `NAME.safetensors` beside the card;
            left out for a trained model of the package.
        sha256: SHA-256 of that file; the commit stands for it at a hub.
        licence: of the weights.
        parameters: number of parameters.
        attention: such as `RPC`.
        backbone: such as `ViT`.
        training: how it was trained: data, attack and budget, extra or generated images.
        adversarial: whether it was trained against attacks.
        hole: columns without a number.
    """

    model_config = STRICT
    board: Text
    title: Text
    by: Text
    paper: Text | None = None
    model: Text
    options: dict[str, str | int | float | bool] = {}
    weights: Text | None = None
    sha256: Digest = None
    licence: Text
    parameters: AtLeastOne
    attention: Text
    backbone: Text | None = None
    training: Text
    adversarial: StrictBool
    hole: tuple[Hole, ...] = ()

    @model_validator(mode="after")
    def _check_weights(self) -> "Card":
        if (self.weights is None) != (self.model in bundled()):
            raise BadInputError(f"model = {self.model!r} with weights = {self.weights!r}", expected=_EXPECTED)
        if self.weights is not None and not (
            _PINNED.fullmatch(self.weights) or self.weights.startswith(WEB) or _BESIDE.fullmatch(self.weights)
        ):
            raise BadInputError(
                f"weights = {self.weights!r}",
                expected="hf-hub:OWNER/NAME@COMMIT of 40 digits, https://…, or NAME.safetensors beside the card",
            )
        by_digest = self.weights is not None and not self.weights.startswith(HUB)
        if by_digest != (self.sha256 is not None):
            raise BadInputError(f"weights = {self.weights!r} with sha256 = {self.sha256!r}", expected="a digest")
        return self

    @model_validator(mode="after")
    def _check_code(self) -> "Card":
        if ":" in self.model and not self.model.startswith(("timm:", "torchvision:")) and self.code is None:
            raise BadInputError(
                f"model = {self.model!r}",
                expected="a name, timm:NAME, torchvision:NAME or FILE.py:OBJECT beside the card",
            )
        return self

    @property
    def code(self) -> str | None:
        """The file of the entrant's own code; None if there is none."""
        return self.model.rpartition(":")[0] if _CODE.fullmatch(self.model) else None

    @property
    def beside(self) -> list[str]:
        """The files beside the card that it names."""
        weights = [self.weights] if self.weights is not None and _BESIDE.fullmatch(self.weights) else []
        return [CARD, *weights, *([] if self.code is None else [self.code])]


@dataclass(frozen=True)
class Entry:
    """A folder with a card; its name is that of the model in records and on the board."""

    folder: Path
    card: Card
    spot_check: SpotCheck | None = None

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.folder.resolve().name

    @property
    def source(self) -> str:
        """What `rbk eval --model` is given, from the current folder."""
        return self.card.model if self.card.code is None else str(self.folder / self.card.model)

    @property
    def checkpoint(self) -> str | None:
        """The weights that need not be fetched first; None where there are none, or they lie at an address."""
        weights = self.card.weights
        if weights is None or weights.startswith(WEB):
            return None
        return weights if weights.startswith(HUB) else str(self.folder / weights)

    @property
    def described(self) -> Described:
        """What the board says of the model."""
        card = self.card
        return Described(
            name=self.name, source=self.source, checkpoint=self.checkpoint, options=card.options,
            attention=card.attention, backbone=card.backbone, training=card.training, adversarial=card.adversarial,
            paper=card.paper, holes=tuple(hole.column for hole in card.hole),
        )  # fmt: skip

    @property
    def records(self) -> list[Path]:
        """Its records."""
        return sorted((self.folder / RECORDS).glob(f"*{SUFFIX}"))

    def mark(self, record: Record) -> str:
        """Say how far a number of this entry was checked."""
        checked = None if self.spot_check is None else self.spot_check.entry(record)
        return AGAIN if checked is not None and checked.samples and not checked.differing else RECOMPUTED


def load_entry(folder: Path) -> Entry:
    """Read the card of a folder.

    Raises:
        BadInputError: no card, or one that is not as `Card` says; a name that is no name of a folder.
    """
    entry = Entry(folder, validate(Card, load_toml(folder / CARD), str(folder / CARD)))
    if not NAME.fullmatch(entry.name):
        raise BadInputError(f"folder '{entry.name}'", expected="small letters, digits, - and _, at most 60")
    checked = folder / FILE
    return Entry(folder, entry.card, load_spot_check(checked) if checked.is_file() else None)


def entries_of(spec: BoardSpec, path: Path) -> dict[str, Entry]:
    """Return the entries of a board, by name; none where the board, at `path`, takes none."""
    if spec.entries is None:
        return {}
    cards = sorted((path.parent / spec.entries).resolve().glob(f"*/{CARD}"))
    every = [load_entry(_from_here(card.parent)) for card in cards]
    return {entry.name: entry for entry in every if board_path(entry.card.board).resolve() == path.resolve()}


def _from_here(folder: Path) -> Path:
    here = Path.cwd()
    return folder.relative_to(here) if here in folder.parents else folder


def with_rows(spec: BoardSpec, entries: Iterable[Entry]) -> BoardSpec:
    """Return what a board says with a row for each entry, as if `board.toml` had listed them.

    Raises:
        BadInputError: a hole in a column that the board does not have.
    """
    rows = sorted(entries, key=lambda entry: entry.name)
    titles = [column.title for column in spec.column]
    for entry in rows:
        for title in entry.described.holes:
            if title not in titles:
                raise BadInputError(f"hole in '{title}' of {entry.name}", expected=f"one of {', '.join(titles)}")
    return spec.model_copy(
        update={
            "models": (*spec.models, *(entry.name for entry in rows)),
            "model": (*spec.model, *(entry.described for entry in rows)),
        }
    )


def of_these_data(spec: BoardSpec, records: Iterable[Record]) -> list[Record]:
    """Leave out records of copies of the data, such as `cifar10-jpeg`, which fill no cell of an open board."""
    names = {needed.data.partition(":")[0] for needed in spec.evaluations}
    return [record for record in records if record.spec.data.name in names]


def holes(entries: Mapping[str, Entry]) -> list[str]:
    """Say which holes were declared, and why."""
    return [
        f"{name}: no number in “{hole.column}”: {hole.reason}"
        for name, entry in entries.items()
        for hole in entry.card.hole
    ]
