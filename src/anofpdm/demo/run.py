"""The bundled models on phantoms that they never saw: from nothing to a page, without data and without a network."""

import base64
import html
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from anofpdm import __version__
from anofpdm.cohorts.inputs import Target, find_targets
from anofpdm.cohorts.phantoms.cohort import write_phantoms
from anofpdm.errors import CohortError
from anofpdm.evaluation.metrics.volumes import VolumeScore, score_volume
from anofpdm.segment.model import Model, Segmentation, load
from anofpdm.segment.outputs import OVERVIEW, REPORT
from anofpdm.util.files import folder_lock, write_atomically

BUNDLED = Path(__file__).parents[1] / "models"
PAGE, MARK = "index.html", "demo.txt"
FOLDERS = ("scans", "results")
SEED = 2024
SEEN = (1, 2, 11, 12)  # seeds that the bundled models were trained, calibrated and measured on
SLICES = 60  # of a phantom: every 2.5 mm, as the models learned
TRUTH = {"tumour": "seg", "stroke": "T1lesion_mask"}  # ends of the names of files that hold the truth

Listener = Callable[[str, int, int], None]  # what is being done, steps done, steps in all


@dataclass(frozen=True)
class Shown:
    kind: str
    name: str
    engine: str
    folder: Path  # of its results
    result: Segmentation
    score: VolumeScore


def run_demo(
    out: Path,
    *,
    device: str | torch.device = "auto",
    patients: int = 2,  # of each kind
    seed: int = SEED,
    slices: int = SLICES,
    on_progress: Listener = lambda _what, _done, _total: None,
) -> list[Shown]:
    """Phantoms, their masks, a report of each, and a page over all. What an earlier demo left there is replaced."""
    if out.exists() and not out.is_dir():
        raise CohortError(f"{out} is a file; the demo needs a folder")
    _check_made_by_a_demo(out)
    out.mkdir(parents=True, exist_ok=True)
    with folder_lock(out):
        _clear(out)
        shown: list[Shown] = []
        for kind in TRUTH:
            scans = out / "scans" / kind
            write_phantoms(scans, kind, patients, seed, slices=slices)
            shown += _found(load(BUNDLED / kind, device), scans, kind, out, on_progress)
        write_atomically(out / PAGE, page(shown, out, seed).encode())
    return shown


def _check_made_by_a_demo(out: Path) -> None:
    if any((out / name).exists() for name in FOLDERS) and not (out / MARK).is_file():
        raise CohortError(f"{out}: holds scans or results that no demo made; choose another --out")


def _clear(out: Path) -> None:
    for name in FOLDERS:
        shutil.rmtree(out / name, ignore_errors=True)
    write_atomically(out / MARK, b"What lies here was made by `anofpdm demo`, and the next one replaces it.\n")


def _found(model: Model, scans: Path, kind: str, out: Path, on_progress: Listener) -> Iterator[Shown]:
    """By the student, if there is one, and the first of the scans by the slow diffusion model too, beside it."""
    targets = find_targets([str(scans)], model.trained.modalities)
    usual = model.engine()
    asked = [(target, usual) for target in targets]
    if usual != "diffusion":
        asked.insert(1, (targets[0], "diffusion"))
    for target, engine in asked:
        show = partial(on_progress, f"{target.subject.name}, {engine}")
        yield _segmented(model, target, engine, kind, out, show)


def _segmented(
    model: Model, target: Target, engine: str, kind: str, out: Path, show: Callable[[int, int], None]
) -> Shown:
    name = target.subject.name
    result = model.segment(target.subject.images, engine=engine, on_progress=show)
    folder = out / "results" / engine / name
    result.save(folder, title=f"{name}, {engine}")
    detected = {int(row["slice"]): bool(row["detected"]) for row in result.slices}
    scan = next(iter(target.subject.images.values()))
    truth = next(path for path in scan.parent.iterdir() if path.name.endswith(f"{TRUTH[kind]}.nii.gz"))
    return Shown(kind, name, engine, folder, result, score_volume(result.mask, result.grid, detected, truth))


# ---- the page --------------------------------------------------------------------------------------------------------

STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.55 system-ui,sans-serif;max-width:80rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.2rem}
table{border-collapse:collapse;display:block;overflow-x:auto}
td,th{padding:.3rem .8rem .3rem 0;border-bottom:1px solid #8885;text-align:left;white-space:nowrap}
td:first-child{white-space:normal;overflow-wrap:anywhere}
img{max-width:100%;border:1px solid #8884;border-radius:4px}
.quiet{opacity:.75}
"""


def page(shown: list[Shown], out: Path, seed: int) -> str:
    rows = "".join(_row(one, out) for one in shown)
    unseen = "" if seed in SEEN else f", nor these brains (seed {seed})"
    return f"""<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1"><title>AnoFPDM: demo</title><style>{STYLE}</style>
<h1>What AnoFPDM found in {len({one.name for one in shown})} synthetic brains</h1>
<p>The bundled models were trained on phantoms with one label a slice, healthy or unhealthy. They have never seen a
drawn lesion{unseen}. Because the brains are made up, the true lesion is known, and the last
columns compare with it. {_engines_in_words(shown)}</p>
<table><tr><th>scan</th><th>engine</th><th>seconds</th><th>called unhealthy</th><th>slices called right</th>
<th>lesion found</th><th>true lesion</th><th>DICE</th><th></th></tr>{rows}</table>
{"".join(_part(one, out) for one in shown)}
<p class="quiet">anofpdm {__version__}. A research tool, not a medical device.</p></html>
"""


def _engines_in_words(shown: list[Shown]) -> str:
    if all(one.engine == "diffusion" for one in shown):
        return ""
    return """Two engines speak: the diffusion model itself, which is asked at several noise levels and shows why, and
its student, a small network that learned from the model's own masks and draws in one look."""


def _row(one: Shown, out: Path) -> str:
    score, called = one.score, sum(int(row["detected"]) for row in one.result.slices)
    cells = (
        one.name,
        one.engine,
        f"{one.result.summary['seconds']:.1f}",
        f"{called} of {score.slices} slices",
        f"{score.slices_right} of {score.slices}",
        f"{score.found_ml:.1f} ml",
        f"{score.true_ml:.1f} ml" if score.true_ml else "none",
        f"{score.dice:.2f}",
    )
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + f"<td>{_link(one, out)}</td></tr>"


def _part(one: Shown, out: Path) -> str:
    picture = base64.b64encode((one.folder / OVERVIEW).read_bytes()).decode()
    return f"""<h2>{html.escape(f"{one.name}, {one.engine}")}</h2><p>{html.escape(in_words(one))} {_link(one, out)}</p>
<img alt="slices, their anomaly maps and masks, lesion area and score along the head"
src="data:image/png;base64,{picture}">
"""


def in_words(one: Shown) -> str:
    score = one.score
    if not one.result.findings:
        said = "Nothing was found."
        return f"{said} There is a lesion of {score.true_ml:.1f} ml." if score.true_ml else f"{said} It is healthy."
    largest = one.result.findings[0]
    where = ", ".join(f"{number:.0f}" for number in largest.centre_mm)
    many = "One finding" if len(one.result.findings) == 1 else f"{len(one.result.findings)} findings"
    truth = f"The true lesion has {score.true_ml:.1f} ml, DICE {score.dice:.2f}." if score.true_ml else "It is healthy."
    return f"{many}; the largest has {largest.volume_ml:.1f} ml, around ({where}) mm. {truth}"


def _link(one: Shown, out: Path) -> str:
    path = (one.folder / REPORT).relative_to(out).as_posix()
    return f'<a href="{html.escape(path)}">slices{" and curves" if one.engine == "diffusion" else ""}</a>'
