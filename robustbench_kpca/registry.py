"""A folder is a registry: every public module in it is one member, found without being imported."""

import difflib
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustbench_kpca.errors import UnknownNameError


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> UnknownNameError:
    """Return the error for `name`, with the closest of the `known` names as a suggestion."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    ask = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names) or 'none'}"
    return UnknownNameError(f"no {kind} named '{name}'", fix=f"{ask}{' ' + hint if hint else ''}")


@dataclass(frozen=True)
class Family:
    """The members of the folder `package`; each public module exposes its member as the constant `member`.

    Sub-folders hold what members share; with `folders` it is they that are the members.
    """

    kind: str
    package: str
    member: str
    folders: bool = False

    def names(self) -> list[str]:
        """Names of all members, sorted; imports none of them."""
        spec = importlib.util.find_spec(self.package)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        found = pkgutil.iter_modules(list(spec.submodule_search_locations))
        return sorted(one.name for one in found if one.ispkg == self.folders and not one.name.startswith("_"))

    def get(self, name: str) -> Any:
        """Return the member called `name`.

        Raises:
            UnknownNameError: no such module; the message suggests the closest name.

        """
        if name not in self.names():
            raise unknown_name(self.kind, name, self.names())
        return getattr(importlib.import_module(f"{self.package}.{name}"), self.member)

    def summary(self, name: str) -> str:
        """First line of the module's docstring, read without importing it."""
        spec = importlib.util.find_spec(f"{self.package}.{name}")
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).read_text("utf-8").removeprefix('"""').partition("\n")[0].rstrip('"')
