"""Minimum scores of the bundled students on phantoms of another seed; tests/demo has those of the diffusion models."""

import numpy as np
import pytest

from anofpdm.demo.run_demo import BUNDLED, MODEL_SEEDS
from anofpdm.phantoms.phantom_cohort import write_phantoms
from anofpdm.scoring.masks import count_correct_slices, read_mask_on
from anofpdm.segment.inputs import find_targets
from anofpdm.segment.model import load
from tests import toys
from tests.models.cards import lower_bound

SEED = 80  # three phantoms, each with a lesion
MARGIN = 0.1  # three phantoms in place of the card's 16


@pytest.mark.parametrize("kind", ["tumour", "stroke"])
def test_a_student_scores_as_its_card_states(kind, tmp_path):
    assert SEED not in MODEL_SEEDS
    write_phantoms(tmp_path, kind, 3, SEED)
    model = load(BUNDLED / f"phantom-{kind}", "cpu")
    dices, correct, slices = [], 0, 0
    for target in find_targets([str(tmp_path)], model.diffusion.network.modalities):
        result = model.segment(target.subject.images, engine="student")
        truth = read_mask_on(result.grid, target.subject.masks[0], "all", "the scan")
        assert truth.sum() * result.grid.voxel_ml > 1
        detected = {int(row["slice"]): bool(row["detected"]) for row in result.slices}
        dices.append(toys.dice(result.mask, truth))
        correct += count_correct_slices(truth, result.grid, detected)
        slices += len(detected)
    assert np.mean(dices) > lower_bound(kind, "anofpdm-student", "volume DICE") - MARGIN
    assert correct / slices > lower_bound(kind, "anofpdm-student", "accuracy") - MARGIN
