"""anofpdm models: what ships with the package."""

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

if TYPE_CHECKING:
    from anofpdm.models.registry import ShippedModel

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]*)\)")


def models(
    name: Annotated[str | None, Argument(help="Print the card of this model.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the list as JSON.")] = False,
    copy: Annotated[
        Path | None, Option(help="Copy the model to this folder, to calibrate or distill it again.")
    ] = None,
) -> None:
    """List the models that ship with the package, or print the card of one.

    A model's name works wherever a command takes the folder of a model.
    """
    from anofpdm.errors import ModelError
    from anofpdm.models.registry import shipped_model, shipped_models

    if name is None:
        if copy is not None:
            raise BadParameter("give the name of the model to copy", param_hint="--copy")
        shipped = list(shipped_models().values())
        print(json.dumps([_to_dict(model) for model in shipped], indent=1) if as_json else _table(shipped))
        return
    model = shipped_model(name)
    if copy is None:
        print(json.dumps(_to_dict(model), indent=1) if as_json else _without_links(model.card).rstrip())
        return
    if copy.exists():
        raise ModelError(f"{copy}: exists already; choose another folder")
    shutil.copytree(model.folder, copy)
    print(f"{name} copied to {copy}")


def _without_links(card: str) -> str:
    """Web addresses stay behind the words; folders of the repository mean nothing elsewhere."""
    return LINK.sub(lambda link: f"{link[1]} ({link[2]})" if link[2].startswith("http") else link[1], card)


def _table(models: "list[ShippedModel]") -> str:
    blocks = []
    for model in models:
        optional = f" (optional: {', '.join(model.uses)})" if model.uses else ""
        scores = "\n            ".join(f"{score} {score.what}, {score.data}" for score in model.scores)
        blocks.append(
            f"{model.name}: {model.scans}\n"
            f"  needs     {', '.join(model.needs)}{optional}\n"
            f"  engines   {', '.join(model.engines)}; {model.megabytes:.1f} MB\n"
            f"  scores    {scores}\n"
            f"  licence   {model.licence}"
        )
    return "\n\n".join([*blocks, "Card of one: anofpdm models NAME. Use: anofpdm segment NAME SCANS... --out DIR"])


def _to_dict(model: "ShippedModel") -> dict[str, object]:
    return {
        "name": model.name,
        "scans": model.scans,
        "needs": model.needs,
        "uses": model.uses,
        "engines": model.engines,
        "megabytes": round(model.megabytes, 1),
        "scores": [vars(score) for score in model.scores],
        "licence": model.licence,
    }
