"""What all pages share: one template and one style. A page is one file that makes no request."""

from functools import lru_cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def render(template: str, room: str, **values: Any) -> str:
    """Render a template.

    Args:
        template: its file name, in the folder `templates` of the room or of this one.
        room: such as `report`.
        values: what the template shows; text is escaped.

    """
    return _environment(room).get_template(template).render(**values)


@lru_cache
def _environment(room: str) -> Environment:
    loaders = [PackageLoader(f"robustbench_kpca.{one}") for one in dict.fromkeys((room, "web"))]
    return Environment(
        loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
