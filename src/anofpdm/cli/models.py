"""anofpdm models: what ships with the package."""

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from anofpdm.models.registry import ShippedModel


WIDTH = 80  # where the output is no terminal


def models(
    name: Annotated[str | None, typer.Argument(help="Print the card of this model.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
    copy: Annotated[
        Path | None, typer.Option(help="Copy the model to this folder, to calibrate or distill it again.")
    ] = None,
) -> None:
    """List the models that ship with the package, or print the card of one.

    A model's name works wherever a command takes the folder of a model.
    """
    from anofpdm.errors import ModelError
    from anofpdm.models.registry import shipped_model, shipped_models
    from anofpdm.util.markdown import to_terminal

    if name is None:
        if copy is not None:
            raise typer.BadParameter("give the name of the model to copy", param_hint="--copy")
        found = list(shipped_models().values())
        print(json.dumps([_to_dict(model) for model in found], indent=1) if as_json else _table(found))
        return
    model = shipped_model(name)
    if copy is None:
        print(json.dumps(_to_dict(model), indent=1) if as_json else to_terminal(model.card, _width()).rstrip())
        return
    if copy.exists():
        raise ModelError(f"{copy}: exists already; choose another folder")
    shutil.copytree(model.folder, copy)
    print(f"{name} copied to {copy}")


def _width() -> int:
    """Of the terminal."""
    return shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH


def _table(models: "list[ShippedModel]") -> str:
    blocks = []
    for model in models:
        needs = ", ".join(model.needs) + (f" (optional: {', '.join(model.uses)})" if model.uses else "")
        lines = [
            f"{model.name}: {model.scans}",
            f"  needs     {needs}",
            f"  engines   {', '.join(model.engines)}; {model.megabytes:.1f} MB",
            *(
                f"  {'scores' if not number else '':9s} {one} {one.what}, {one.data}"
                for number, one in enumerate(model.scores)
            ),
            f"  licence   {model.licence}",
        ]
        blocks.append("\n".join(lines))
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
