"""anofpdm demo: the bundled models on synthetic brains."""

from pathlib import Path
from typing import Annotated

from typer import Option

from anofpdm.cli.options import Device, resolve_device
from anofpdm.cli.progress import progress_bars


def demo(
    out: Annotated[Path, Option(help="Folder for scans, results and the page.")] = Path("demo"),
    patients: Annotated[int, Option(min=1, help="Number of brains of each kind, tumour and stroke.")] = 2,
    seed: Annotated[int, Option(min=0, help="Random seed of the phantoms.")] = 2024,
    device: Device = "auto",
) -> None:
    """Segment lesions in synthetic brains with the bundled models, and write a page that compares with the truth."""
    from anofpdm.demo.run_demo import PAGE, run_demo
    from anofpdm.models.registry import shipped_models

    with progress_bars() as progress:
        results = run_demo(out, device=resolve_device(device), patients=patients, seed=seed, progress=progress)
    for scan in results:
        truth = f"{scan.score.truth_ml:.1f} ml" if scan.score.truth_ml else "none"
        print(
            f"{scan.title}: true lesion {truth}, segmented {scan.score.predicted_ml:.1f} ml, DICE {scan.score.dice:.2f}"
        )
    print(f"open {out / PAGE} in a browser")
    real = [name for name in shipped_models() if not name.startswith("phantom-")]
    if real:
        print(f"models of real scans: {', '.join(real)} (`anofpdm models` describes them); your own scan:")
        print(f"    anofpdm segment {real[0]} STUDY --out result")
