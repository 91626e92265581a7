"""anofpdm phantom: generate a synthetic cohort."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from anofpdm.choices import Layout, PhantomKind
from anofpdm.cli.options import Seed, Workers
from anofpdm.cli.progress import progress_bars


def phantom(
    out: Annotated[Path, Argument(help="Output folder for the scans.")],
    kind: Annotated[
        PhantomKind, Option(help="tumour: four modalities in BraTS21 layout. stroke: T1 in ATLAS 2.0 layout.")
    ],
    patients: Annotated[int, Option(min=1, help="Number of patients, one scan each.")] = 20,
    seed: Seed = 0,
    size: Annotated[int, Option(help="Voxels along each side of an axial slice (240 mm).")] = 128,
    slices: Annotated[int, Option(help="Axial slices per scan (150 mm).")] = 60,
    workers: Workers = 0,
) -> None:
    """Generate synthetic brain scans with lesions, as NIfTI files for `prepare`. Equal seeds give equal files."""
    from anofpdm.phantoms.phantom_cohort import write_phantoms

    with progress_bars() as progress:
        write_phantoms(out, kind, patients, seed, size=size, slices=slices, workers=workers, on_progress=progress)
    layout = Layout.BRATS21 if kind is PhantomKind.TUMOUR else Layout.ATLAS2
    print(f"{patients} {kind} phantoms in {out}; next: anofpdm prepare {layout} {out} COHORT")
