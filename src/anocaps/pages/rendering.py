"""Fill the templates of this room. Jinja2 escapes every value that is not marked safe."""

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from anocaps.pages.embed import data_uri

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: Any) -> str:
    """Fill a template of `templates/` with values."""
    return _environment().get_template(template).render(values)


@cache
def light_colours() -> dict[str, str]:
    """Colours by name, as #rrggbb, from the first block of style.css."""
    style = files("anocaps.pages").joinpath("templates/style.css").read_text("utf-8")
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", style.split("}")[0]))


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("anocaps", "pages/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    made.filters["data_uri"] = data_uri
    made.filters["percent"] = lambda share, decimals=1: f"{100 * share:.{decimals}f}\u00a0%"
    return made
