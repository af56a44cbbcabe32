"""Plugins: packages and files that add members to registries, read when a name is missing or names are listed.

A plugin is a module that adds its members when it is imported, or by its function `register`. Installed packages name
theirs in the group of entry points `robustbench_kpca.plugins`; others are named in the variable RBK_PLUGINS.
"""

import importlib
import os
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from robustbench_kpca._core.early_exit import no_early_exit
from robustbench_kpca._core.errors import BadInputError, reason_of
from robustbench_kpca._core.neighbours import load_file, searched

GROUP = "robustbench_kpca.plugins"
VARIABLE = "RBK_PLUGINS"
"""Modules or files, with commas between them; other processes inherit it."""
TABLES: list[dict[str, Any]] = []
"""What a plugin may add to: the added members of each registry."""
_loaded: set[str] = set()
_origins: dict[tuple[str, str], str] = {}
_current: list[str] = []


def load() -> None:
    """Load the plugins that were not loaded before.

    Raises:
        BadInputError: one fails; nothing that it added stays.
    """
    if _current:  # a plugin that is being loaded asks
        return
    if GROUP not in _loaded:
        for point in metadata.entry_points(group=GROUP):
            version = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.name
            _load(point.value, version, lambda point=point: point.load())
        _loaded.add(GROUP)
    for name in _named():
        _load(name, Path(name).name, lambda name=name: _module(name))


def use(name: str) -> None:
    """Name one more plugin in RBK_PLUGINS."""
    os.environ[VARIABLE] = ",".join([*_named(), _full(name)])


def require_used(address: str, by: str) -> None:
    """Refuse an address in a file that is only read, unless the user named its file or module as a plugin.

    Args:
        address: the address.
        by: what names it, for the error.

    Raises:
        BadInputError: it is of no plugin.
    """
    place = address.rpartition(":")[0]
    if _full(place) not in map(_full, _named()):
        raise BadInputError(f"{by} names code: {address}", fix=f"read that code, then add --plugin {place}")


def note(kind: str, name: str) -> None:
    """Remember which plugin adds a member, if one does."""
    _origins.pop((kind, name), None)
    if _current:
        _origins[kind, name] = _current[0]


def origin(kind: str, name: str) -> str:
    """Return `(from my-package 1.2)`; empty where no plugin added the member."""
    return f"(from {_origins[kind, name]})" if (kind, name) in _origins else ""


def _named() -> list[str]:
    return [name for name in map(str.strip, os.environ.get(VARIABLE, "").split(",")) if name]


def _full(name: str) -> str:
    return str(Path(name).resolve()) if name.endswith(".py") else name


@no_early_exit()
def _load(name: str, title: str, imported: Any) -> None:
    if name in _loaded:
        return
    before = [dict(table) for table in TABLES]
    _current.append(title)
    try:
        plugin = imported()
        register = plugin if callable(plugin) else getattr(plugin, "register", None)
        if register is not None:
            register()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (foreign code)
        for table, content in zip(TABLES, before, strict=False):  # registries that were imported meanwhile come last
            table.clear()
            table.update(content)
        for table in TABLES[len(before) :]:
            table.clear()
        raise BadInputError(
            f"the plugin {title} cannot be loaded ({reason_of(error)})",
            fix=f"correct or uninstall it, or leave it out of {VARIABLE}",
        ) from None
    finally:
        _current.clear()
    _loaded.add(name)


def _module(name: str) -> ModuleType:
    if name.endswith(".py"):
        file = Path(name).resolve()
        if not file.is_file():
            raise BadInputError(f"there is no file {name}", fix="check the path")
        with searched(file.parent, leave=False):
            return load_file(file)
    with searched(Path.cwd()):
        return importlib.import_module(name)
