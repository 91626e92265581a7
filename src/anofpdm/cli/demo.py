"""anofpdm demo: the bundled models on phantoms, to a page."""

from pathlib import Path
from typing import Annotated

import typer

from anofpdm.cli.options import Device, resolve_device
from anofpdm.cli.progress import progress_bars


def demo(
    out: Annotated[Path, typer.Option(help="Folder for scans, results and the page.")] = Path("demo"),
    patients: Annotated[int, typer.Option(min=1, help="Brains of each kind, tumour and stroke.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Of the phantoms.")] = 2024,
    device: Device = "auto",
) -> None:
    """Make synthetic brains, find their lesions with the bundled models, and show how well that went."""
    from anofpdm.demo.run import PAGE, run_demo

    with progress_bars(True) as show:
        shown = run_demo(out, device=resolve_device(device), patients=patients, seed=seed, on_progress=show)
    for one in shown:
        truth = f"{one.score.true_ml:.1f} ml" if one.score.true_ml else "none"
        print(
            f"{one.name}, {one.engine}: lesion of {truth}, found {one.score.found_ml:.1f} ml, DICE {one.score.dice:.2f}"
        )
    print(f"open {out / PAGE} in a browser")
