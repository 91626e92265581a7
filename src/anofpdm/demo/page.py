"""The page of the demo: results of all scans, compared with the true lesions."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anofpdm import __version__
from anofpdm.evaluation.metrics.volumes import VolumeScore
from anofpdm.options import Engine
from anofpdm.segment.outputs import OVERVIEW, REPORT
from anofpdm.segment.result import Segmentation

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
ENGINES_EXPLAINED = """Two engines make masks. The diffusion engine denoises each slice at several noise levels; its
reports show why a slice was called unhealthy. The student engine is a small network trained on masks of the diffusion
engine; it needs one forward pass per slice."""


@dataclass(frozen=True)
class DemoResult:
    kind: str
    name: str
    engine: Engine
    folder: Path
    result: Segmentation
    score: VolumeScore

    @property
    def title(self) -> str:
        return f"{self.name}, {self.engine}"


def render_page(results: Sequence[DemoResult], out: Path, *, new_brains: bool) -> str:
    """`new_brains`: the models were not trained, calibrated or evaluated on these phantoms."""
    rows = "".join(_row(one, out) for one in results)
    unseen = " and were not trained on these brains" if new_brains else ""
    engines = "" if all(one.engine == Engine.DIFFUSION for one in results) else ENGINES_EXPLAINED
    return f"""<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1"><title>AnoFPDM: demo</title><style>{STYLE}</style>
<h1>Lesions segmented by AnoFPDM in {len({one.name for one in results})} synthetic brains</h1>
<p>The bundled models were trained on synthetic brains (phantoms) with one label per slice: healthy or unhealthy. They
never saw a lesion mask{unseen}. The true lesion of a phantom is known; the last columns
compare with it. {engines}</p>
<table><tr><th>scan</th><th>engine</th><th>seconds</th><th>called unhealthy</th><th>slices called correctly</th>
<th>segmented volume</th><th>true volume</th><th>DICE</th><th></th></tr>{rows}</table>
{"".join(_section(one, out) for one in results)}
<p class="quiet">anofpdm {__version__}. A research tool, not a medical device.</p></html>
"""


def _row(one: DemoResult, out: Path) -> str:
    score, called = one.score, sum(int(row["detected"]) for row in one.result.slices)
    cells = (
        one.name,
        one.engine,
        f"{one.result.summary['seconds']:.1f}",
        f"{called} of {score.slices} slices",
        f"{score.slices_correct} of {score.slices}",
        f"{score.predicted_ml:.1f} ml",
        f"{score.lesion_ml:.1f} ml" if score.lesion_ml else "none",
        f"{score.dice:.2f}",
    )
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + f"<td>{_link(one, out)}</td></tr>"


def _section(one: DemoResult, out: Path) -> str:
    picture = base64.b64encode((one.folder / OVERVIEW).read_bytes()).decode()
    return f"""<h2>{html.escape(one.title)}</h2><p>{html.escape(describe(one))} {_link(one, out)}</p>
<img alt="slices with anomaly maps and masks; lesion area and score of each slice"
src="data:image/png;base64,{picture}">
"""


def describe(one: DemoResult) -> str:
    score, findings = one.score, one.result.findings
    if not findings:
        truth = f"The true lesion has {score.lesion_ml:.1f} ml." if score.lesion_ml else "The brain is healthy."
        return f"No lesion was found. {truth}"
    centre = ", ".join(f"{mm:.0f}" for mm in findings[0].centre_mm)
    count = "One finding" if len(findings) == 1 else f"{len(findings)} findings"
    truth = f"The true lesion has {score.lesion_ml:.1f} ml, DICE {score.dice:.2f}."
    return (
        f"{count}; the largest has {findings[0].volume_ml:.1f} ml, centre at ({centre}) mm. "
        f"{truth if score.lesion_ml else 'The brain is healthy.'}"
    )


def _link(one: DemoResult, out: Path) -> str:
    path = (one.folder / REPORT).relative_to(out).as_posix()
    return f'<a href="{html.escape(path)}">report{" with curves" if one.engine == Engine.DIFFUSION else ""}</a>'
