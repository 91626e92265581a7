"""Pages from the templates of this folder. Values are escaped; a value that a template lacks is an error."""

import base64
import functools
import hashlib
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, **values: object) -> str:
    """`template` is the name of a file in report/templates."""
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("anofpdm.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.globals.update(asset=_asset, csp_hash=_csp_hash, data_uri=_data_uri)
    return environment


def _asset(name: str) -> Markup:
    """A style sheet or script as it is in the file."""
    return Markup((resources.files("anofpdm.report") / "templates" / name).read_text(encoding="utf-8"))


def _csp_hash(text: str) -> str:
    """Hash by which the Content-Security-Policy allows this script or style sheet only."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
