"""Registries: every public module in a folder is a member, and members are listed without importing them.

Wherever a name of a member is taken, an address of code from outside is taken too (`address`).
"""

import difflib
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from robustbench_kpca._core import address, plugins
from robustbench_kpca._core.errors import BadInputError, UnknownNameError, shortened
from robustbench_kpca._core.outside import of_object

MOST = 8
"""Names in one suggestion."""
_LISTS = {
    "model": "models", "attack": "attacks", "corruption": "corruptions", "data set": "data", "protocol": "protocols",
    "metric": "metrics", "board": "boards", "pack": "packs", "recipe": "recipes",
}  # fmt: skip
"""Kinds that `rbk list` lists."""


_VERSION = re.compile(r"^    version: ClassVar\[int\] = (\d+)$", re.MULTILINE)


def unknown_name(kind: str, name: str, existing: Iterable[str], hint: str = "", usual: str = "") -> UnknownNameError:
    """Return the error for `name`: at most eight `existing` names, then `hint`, then the command that lists all."""
    names, listed = sorted(set(existing)), kind in _LISTS
    close = close_names(name, names, usual)
    question = did_you_mean(name, names, usual) if close or len(names) <= MOST or not listed else ""
    hint = f"or {hint}" if question and hint else hint
    fix = advice(question, hint, f"see: rbk list {_LISTS[kind]}" if listed else "")
    return UnknownNameError(f"there is no {kind} named '{shortened(name, 80)}'", fix=fix)


def advice(*parts: str) -> str:
    """Return what to do as one line; empty parts are left out."""
    return "; ".join(part for part in parts if part).replace("?; ", "? ")


def did_you_mean(name: str, existing: Iterable[str], usual: str = "") -> str:
    """Return `did you mean 'steps'?`, or the first known names if none is similar; see `close_names`."""
    names = list(existing)
    *rest, last = [f"'{close}'" for close in close_names(name, names, usual)] or [""]
    if last:
        return f"did you mean {', '.join(rest)}{' or ' if rest else ''}{last}?"
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"known: {', '.join(names[:MOST]) or 'none'}{more}"


def close_names(name: str, existing: Iterable[str], usual: str = "") -> list[str]:
    """Return the names that may be meant, at most eight, the likeliest first.

    These are the names that begin with `name`, then those that contain it. If there are none, they are one spelt
    nearly so and the names with which it begins (`eps` for `epsilon`), or else the one most like it. Those that end in
    `usual` come before others, and short names before long ones.
    """
    typed, names = _plain(name), list(existing)
    inside = [word for word in names if typed and typed in _plain(word)]
    inside.sort(key=lambda word: (not _plain(word).startswith(typed), not (usual and word.endswith(usual)), len(word)))
    around = [word for word in names if len(word) > 2 and typed.startswith(_plain(word))]
    around.sort(key=len, reverse=True)
    misspelt, other = (difflib.get_close_matches(name, names, n=1, cutoff=cutoff) for cutoff in (0.85, 0.6))
    return (inside or list(dict.fromkeys([*misspelt, *around])) or other)[:MOST]


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


@cache
def _modules(package: str, *, folders: bool) -> tuple[str, ...]:
    """Return the public modules of a package, or its sub-folders; the folder is listed once."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    modules = pkgutil.iter_modules(list(spec.submodule_search_locations))
    return tuple(module.name for module in modules if module.ispkg == folders and not module.name.startswith("_"))


@cache
def stated_version(module: str) -> int:
    """Return the version that a class in a module of the package states, without importing the module."""
    match = _VERSION.search(_text(module))
    assert match is not None, f"{module} states no version"
    return int(match[1])


def _text(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text("utf-8")


@dataclass(frozen=True)
class Family:
    """The members of the folder `package`; each public module defines its member as the constant `member`.

    Sub-folders contain code shared by members; with `folders`, the sub-folders themselves are the members.

    Attributes:
        kind: what a member is called in error messages.
        package: full name of the folder's package.
        member: name of the constant.
        folders: whether sub-folders are the members.
        separator: replaces the underscores of module names in member names.
        needs: names of what a member must have, such as its methods.
        by_address: whether an address is taken for a name; not where records name members, which run no code.
        rows: name -> first line of further members: values of a mapping, the constant `member` of the file `_table.py`.
        added: members from outside the package, by name; see `add`.
    """

    kind: str
    package: str
    member: str
    folders: bool = False
    separator: str = "_"
    needs: tuple[str, ...] = ()
    by_address: bool = True
    rows: Mapping[str, str] = field(default_factory=dict)
    added: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        plugins.TABLES.append(self.added)

    def __contains__(self, name: str) -> bool:
        if name in self._own_names:
            return True
        if name not in self.added:
            plugins.load()
        return name in self.added

    def names(self) -> list[str]:
        """Return the names of all members, sorted, without importing them."""
        plugins.load()
        return sorted([*self._own_names, *self.added])

    @cached_property
    def _own_names(self) -> tuple[str, ...]:
        modules = _modules(self.package, folders=self.folders)
        return *(name.replace("_", self.separator) for name in modules), *self.rows

    def add(self, name: str, member: Any) -> None:
        """Add a member that is not a file of the folder, until the program ends.

        Raises:
            BadInputError: another member has this name, or it is of another kind.
        """
        if self.added.get(name) is not member and name in self:
            raise BadInputError(f"there is already a {self.kind} named '{name}'", fix="choose another name")
        self.added[name] = self._fitting(name, member)
        plugins.note(self.kind, name)

    def require(self, name: str) -> None:
        """Refuse a name of no member, without importing anything.

        Raises:
            UnknownNameError: there is no such member; the message suggests the closest names.
        """
        if self._is_address(name):
            address.require(name, self.kind)
        elif name not in self:
            hint = f"{name}:OBJECT" if name.endswith(".py") else ""
            raise unknown_name(self.kind, name, self.names(), hint)

    def get(self, name: str) -> Any:
        """Return the member called `name`; the code of an address is run.

        Raises:
            UnknownNameError: see `require`.
            BadInputError: an object of another kind is at this address, or it cannot be loaded.
        """
        if self._is_address(name):
            return self._fitting(name, address.load(name, self.kind).member)
        self.require(name)
        if name in self.added:
            return self.added[name]
        member = getattr(importlib.import_module(self._module(name)), self.member)
        return member[name] if name in self.rows else member

    def is_outside(self, name: str) -> bool:
        """Whether a member is code from outside the package: an address, or an added member."""
        return self._is_address(name) or (name in self and name in self.added)

    def code(self, name: str) -> str:
        """Return the SHA-256 of the code of a member from outside the package; "" where it cannot be read."""
        return address.load(name, self.kind).code if self._is_address(name) else of_object(self.added[name])

    def version(self, name: str) -> int | None:
        """Return the version that the file of a member states, without importing it; None of any other name."""
        return stated_version(self._module(name)) if name in self._own_names else None

    def summary(self, name: str) -> str:
        """Return the first line of the module's docstring without importing it; for code from outside, of its own."""
        if self.is_outside(name):
            first_line = (self.get(name).__doc__ or "").partition("\n")[0]
            return " ".join(filter(None, [first_line, plugins.origin(self.kind, name)]))
        if name in self.rows:
            return self.rows[name]
        return _text(self._module(name)).removeprefix('"""').partition("\n")[0].rstrip('"')

    def _is_address(self, name: str) -> bool:
        return self.by_address and address.is_address(name)

    def _fitting(self, name: str, member: Any) -> Any:
        """Return a member, unless it lacks what a member needs."""
        missing = [need for need in self.needs if not hasattr(member, need)]
        if missing:
            what = "class" if isinstance(member, type) else f"{type(member).__name__}"
            raise BadInputError(
                f"{self.kind} '{name}' is a {what} without {', '.join(missing)}",
                expected=f"an object with {', '.join(self.needs)}",
            )
        return member

    def _module(self, name: str) -> str:
        return f"{self.package}.{'_table' if name in self.rows else name.replace(self.separator, '_')}"
