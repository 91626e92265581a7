"""What a model expects of a scan. `prepare` determines it from the scans of a cohort, `train` records it in the model.
Every entry is optional."""

import math
from dataclasses import dataclass

FIELD_OF_VIEW_MM = 240.0  # of the slices in BraTS
TEMPLATES = ("mni152",)
AXIAL = "axial"  # the first row is anterior, the first column is the patient's right


@dataclass(frozen=True)
class ScanExpectation:
    skull: bool = False  # whether the model was trained on whole heads
    template: str | None = None  # space that scans are registered to; None: their own
    field_of_view_mm: float = FIELD_OF_VIEW_MM  # along the longer side of a slice
    orientation: str = AXIAL  # of the slices
    nominal_slice_mm: float | None = None  # slice distance assumed for every scan; None: as in the header
    # Rows of an affine matrix [3, 4], from millimetres of the template to those of the training scans, mean over them:
    # programs normalise scans to the same template differently. None: no difference.
    template_affine: tuple[float, ...] | None = None
    centre_mm: tuple[float, ...] | None = None  # x and y of the middle of a slice, in template space

    def __post_init__(self) -> None:
        if type(self.skull) is not bool:
            raise ValueError(f"expects.skull is {self.skull!r}, not true or false")
        if self.template is not None and self.template not in TEMPLATES:
            raise ValueError(f"expects.template is {self.template!r}; known are {', '.join(TEMPLATES)}")
        if type(self.field_of_view_mm) not in (int, float) or not 50 <= self.field_of_view_mm <= 1000:
            raise ValueError(f"expects.field_of_view_mm is {self.field_of_view_mm!r}, not a number from 50 to 1000")
        nominal = self.nominal_slice_mm
        if nominal is not None and (type(nominal) not in (int, float) or not 0 < nominal <= 100):
            raise ValueError(f"expects.nominal_slice_mm is {nominal!r}, not a number above 0 and up to 100")
        for name, numbers, count in (("template_affine", self.template_affine, 12), ("centre_mm", self.centre_mm, 2)):
            finite = all(type(number) in (int, float) and math.isfinite(number) for number in numbers or ())
            if numbers is not None and (len(numbers) != count or not finite):
                raise ValueError(f"expects.{name} is {numbers!r}, not {count} finite numbers")
        if self.orientation != AXIAL:
            raise ValueError(f"expects.orientation is {self.orientation!r}; known is {AXIAL}")
