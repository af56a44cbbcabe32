"""What all pages share: one template and one style. A page is one file that makes no request."""

import json
import re
from functools import lru_cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from robustbench_kpca._core.errors import printable_lines

_WEB = re.compile(r"https?://[^/]", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_KEPT = "/:?#@!$&'()*+,;=~%"
"""Characters of an address that stay as they are, besides letters, digits and `-._`."""


def render(template: str, room: str, **values: Any) -> str:
    """Render a template.

    Args:
        template: its file name, in the folder `templates` of the room or of this one.
        room: such as `report`.
        values: what the template shows; text is escaped, and what is not printable is replaced.
    """
    return _environment(room).get_template(template).render(**values)


def href(address: str) -> str:
    """Return an address that a page may link to: http(s), or a path from the page; "" for every other.

    So no text of a board or record becomes a script (`javascript:`, `data:`) or names a host by `//`.
    """
    if not address.isprintable() or "\\" in address or address.startswith("/"):
        return ""
    if _SCHEME.match(address) and not _WEB.match(address):
        return ""
    return quote(address, safe=_KEPT)


def asset(room: str, name: str) -> str:
    """Return the text of a style or a script in the folder `templates` of a room."""
    folder = files("robustbench_kpca").joinpath(*room.split("."), "templates")
    return folder.joinpath(name).read_text("utf-8")


@lru_cache
def _environment(room: str) -> Environment:
    loaders = [PackageLoader(f"robustbench_kpca.{place}") for place in dict.fromkeys((room, "_core.web"))]
    environment = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.filters["href"] = href
    environment.policies["json.dumps_function"] = lambda content, **options: json.dumps(_printable(content), **options)
    return environment


def _printable(value: Any) -> Any:
    """Return what a template shows of a value: in every text, what is not printable is replaced; markup stays."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list | tuple) else value
