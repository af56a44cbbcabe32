"""The results that evidence is taken from: of a pack, of other packs, and of boards. Each is read once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from robustbench_kpca._core.errors import BadInputError
from robustbench_kpca.protocols.presets import pack_path
from robustbench_kpca.report.board import Board
from robustbench_kpca.report.matching import load_board
from robustbench_kpca.study.reproduction.pack import Item, ScaleName, Table, load_pack
from robustbench_kpca.study.reproduction.roles import Roles
from robustbench_kpca.study.reproduction.tables import board_or_trouble, metrics_of


@dataclass(frozen=True)
class Results:
    """The items of a pack, and where their results lie."""

    items: Mapping[str, Item]
    roles: Roles
    _packs: "dict[tuple[str, ScaleName], Results]" = field(default_factory=dict, compare=False)
    _boards: dict[str, Board] = field(default_factory=dict, compare=False)
    _tables: dict[str, tuple[Board, str]] = field(default_factory=dict, compare=False)

    def of_pack(self, pack: str, scale: ScaleName) -> "Results":
        """Return the results that another pack comes with."""
        if (pack, scale) not in self._packs:
            name, content, items = load_pack(pack)
            roles = Roles(
                name,
                content,
                scale,
                pack_path(pack).parent,
                folders={},
                checkpoints={},
                metrics=metrics_of(items.values()),
            )
            self._packs[pack, scale] = Results(items, roles)
        return self._packs[pack, scale]

    def board(self, name: str) -> Board:
        """Return a board that is no item of a pack."""
        if name not in self._boards:
            self._boards[name] = load_board(name)
        return self._boards[name]

    def table(self, name: str) -> tuple[Board, str]:
        """Return the board of an item; where its records cannot be shown, an empty one, and why.

        Raises:
            BadInputError: it is no table.
        """
        item = self.items[name]
        if not isinstance(item, Table):
            raise BadInputError(f"a comparison from the item {name}", expected="a table of a pack, or a board")
        if name not in self._tables:
            self._tables[name] = board_or_trouble(name, item, self.roles)
        return self._tables[name]
