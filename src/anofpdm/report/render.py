"""Pages from the templates of this folder. Values are escaped; a value that a template lacks is an error."""

import functools

from jinja2 import Environment, PackageLoader, StrictUndefined


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("anofpdm.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: object) -> str:
    """`template` is the name of a file in report/templates."""
    return _environment().get_template(template).render(values)
