"""What a model expects of a scan. `prepare` determines it from the scans of a cohort, `train` records it in the model.
Every entry is optional. The values are checked where they are read from a file (util/artifacts.py)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

MNI152 = "mni152"


@dataclass(frozen=True)
class ScanExpectation:
    skull: bool = False  # whether the model was trained on whole heads
    template: Annotated[str, Meta(pattern=f"^{MNI152}$")] | None = (
        None  # space that scans are registered to; None: their own
    )
    field_of_view_mm: Annotated[float, Meta(ge=50, le=1000)] = 240.0  # along the longer side of a slice; of BraTS
    orientation: Literal["axial"] = "axial"  # of the slices: the first row is anterior, the first column the right
    # Slice distance assumed for every scan; None: as in the header.
    nominal_slice_mm: Annotated[float, Meta(gt=0, le=100)] | None = None
    # Rows of an affine matrix [3, 4], from millimetres of the template to those of the training scans, mean over them:
    # programs normalise scans to the same template differently. None: no difference.
    template_affine: Annotated[tuple[float, ...], Meta(min_length=12, max_length=12)] | None = None
    # x and y of the middle of a slice, in template space.
    centre_mm: tuple[float, float] | None = None
