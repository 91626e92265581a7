"""anofpdm phantom: a synthetic cohort for those who have none."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from anofpdm.cli.options import Seed, Workers, worker_count
from anofpdm.cli.progress import progress_bar


class Kind(StrEnum):
    tumour = "tumour"
    stroke = "stroke"


def phantom(
    out: Annotated[Path, typer.Argument(help="Folder to write scans into.")],
    kind: Annotated[Kind, typer.Option(help="tumour: four modalities, BraTS21 layout. stroke: T1, ATLAS layout.")],
    patients: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    seed: Seed = 0,
    size: Annotated[int, typer.Option(help="Voxels along each side of a slice (240 mm).")] = 128,
    slices: Annotated[int, typer.Option(help="Axial slices of a scan (150 mm).")] = 60,
    workers: Workers = 0,
) -> None:
    """Make synthetic brains with lesions, as NIfTI scans that `prepare` reads. The same seed gives the same bytes."""
    from anofpdm.cohorts.phantoms.cohort import write_phantoms

    with progress_bar("phantoms") as show:
        write_phantoms(
            out, kind.value, patients, seed, size=size, slices=slices, workers=worker_count(workers), on_progress=show
        )
    layout = "brats21" if kind is Kind.tumour else "atlas2"
    print(f"{patients} {kind} phantoms in {out}; prepare them with: anofpdm prepare {layout} {out} COHORT")
