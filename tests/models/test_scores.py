"""Minimum scores of the bundled students on phantoms of another seed; tests/demo has those of the diffusion models."""

import numpy as np
import pytest

from anofpdm.demo.run_demo import BUNDLED, MODEL_SEEDS
from anofpdm.phantoms.phantom_cohort import write_phantoms
from anofpdm.scoring.metrics.volumes import score_volume
from anofpdm.segment.inputs import find_targets
from anofpdm.segment.model import load
from tests.models.cards import lower_bound

SEED = 80  # three phantoms, each with a lesion
MARGIN = 0.1  # three phantoms in place of the card's 16


@pytest.mark.parametrize("kind", ["tumour", "stroke"])
def test_a_student_scores_as_its_card_states(kind, tmp_path):
    assert SEED not in MODEL_SEEDS
    write_phantoms(tmp_path, kind, 3, SEED)
    model = load(BUNDLED / f"phantom-{kind}", "cpu")
    scores = []
    for target in find_targets([str(tmp_path)], model.diffusion.network.modalities):
        result = model.segment(target.subject.images, engine="student")
        (truth,) = target.subject.masks
        detected = {int(row["slice"]): bool(row["detected"]) for row in result.slices}
        scores.append(score_volume(result.mask, result.grid, detected, truth))
    assert all(score.lesion_ml > 1 for score in scores)
    assert np.mean([score.dice for score in scores]) > lower_bound(kind, "anofpdm-student", "volume DICE") - MARGIN
    correct, slices = (sum(getattr(score, name) for score in scores) for name in ("slices_correct", "slices"))
    assert correct / slices > lower_bound(kind, "anofpdm-student", "accuracy") - MARGIN
