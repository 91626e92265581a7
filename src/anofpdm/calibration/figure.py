"""A figure of a calibration: why this strength, why this cut, and the curves of both classes."""

import numpy as np

from anofpdm.calibration.fit_calibration import LabelledEvidence
from anofpdm.choices import StrengthBy
from anofpdm.labels import UNHEALTHY
from anofpdm.method.calibration import Calibration
from anofpdm.util.drawing import BLUE, ORANGE, Line, arrange, chart, encode_png


def draw_calibration(calibration: Calibration, gathered: LabelledEvidence) -> bytes:
    """A PNG of three charts."""
    candidates, chosen = calibration.candidates, gathered.evidence.at(calibration.strength)
    unhealthy = gathered.labels == UNHEALTHY
    classes = (("healthy", BLUE, ~unhealthy), ("unhealthy", ORANGE, unhealthy))
    strengths, by_map = [candidate.strength for candidate in candidates], calibration.strength_by == StrengthBy.MAP
    ratings = [candidate.map_auc if by_map else candidate.accuracy for candidate in candidates]
    by_strength = chart(
        [Line(strengths, ratings, BLUE, "maps" if by_map else "cosine, best cut", dots=True)],
        "AUC on image-level labels" if by_map else "Accuracy on image-level labels",
        xlabel="guidance strength w",
        vlines=[(calibration.best_strength, "best"), (calibration.strength, "w*")],
    )
    similarity = chosen.similarity[:, 0].numpy()
    edges = np.linspace(similarity.min(), similarity.max() + 1e-9, 25)
    middles = (edges[1:] + edges[:-1]) / 2
    by_cosine = chart(
        [Line(middles, np.histogram(similarity[part], edges)[0], colour, name) for name, colour, part in classes],
        f"Slices by cosine at w* = {calibration.strength:g}",
        xlabel="cosine of the two error curves",
        vlines=[(calibration.cut, "cut")],
    )
    divergence = chosen.divergence[:, 0].numpy()
    curves = chart(
        [
            Line(calibration.settings.levels, np.median(divergence[part], axis=0), colour, name)
            for name, colour, part in classes
        ],
        "Divergence of the guided estimate (median M_t)",
        xlabel="noise level t",
    )
    return encode_png(arrange([[by_strength, by_cosine, curves]]))
