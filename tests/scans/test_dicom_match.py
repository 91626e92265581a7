"""Assignment of series to modalities, by typical names."""

from dataclasses import replace

import pytest

from anofpdm.errors import ConfigError, ScanError
from anofpdm.scans.dicom.header import Label
from anofpdm.scans.dicom.match import guess, parse_series
from anofpdm.scans.dicom.read import preview, read_study
from tests import dicom_toys
from tests.dicom_toys import Series

NAMES = {
    "flair": [
        "AX T2 FLAIR", "t2_tirm_tra_dark-fluid_p2", "Sag 3D FLAIR", "t2_space_dark-fluid_sag", "Ax T2 FLAIR +C",
        "FLAIR_longTR", "t2_spc_da-fl_sag", "T2f",
    ],
    "t1": [
        "T1", "AX T1 FLAIR", "MPRAGE", "t1_mprage_sag_p2_iso", "T1 W/O CONTRAST", "SAG T1 PRE GAD", "T1 non-enhanced",
        "sT1W_3D_TFE", "t1_nativ", "T1 posterior fossa", "T1 postop", "AX T1 PRE-CONTRAST", "3D FSPGR", "T1 GRE",
    ],
    "t1ce": [
        "T1CE", "T1c", "T1Gd", "AX T1 +C", "T1 AX POST", "t1_mprage_sag_KM", "T1 SE TRA +GD", "t1_tse_tra_c+", "T1+",
        "Ax BRAVO + C", "AX T1 FLAIR POST", "T1 contrast enhanced", "t1_vibe_fs post gad", "T1 WITH CONTRAST",
    ],
    "t2": ["T2", "T2W_TSE", "t2_tse_tra_512", "AX T2 PROPELLER", "sT2W_TSE"],
    None: [
        "", "axial", "localizer", "3-Plane Loc", "AAHead_Scout", "ep2d_diff_b1000_ADC", "Ax DWI", "T2* GRE",
        "Ax T2 GRE", "t2_fl2d_tra_hemo", "SWI_Images", "Perf_MTT", "TOF_3D", "T2 STIR", "PD+T2_TSE_tra", "PD TSE",
        "T1 MAP", "T1 PRE AND POST", "SAG T2 C-SPINE", "MPR", "T1 SUB", "DTI FA map",
    ],
}  # fmt: skip
CASES = [(name, modality) for modality, names in NAMES.items() for name in names]


def label(description="", **changes):
    made = Label("study", "uid", 1, description, "", "", "MR", ("ORIGINAL", "PRIMARY"), "")
    return replace(made, **changes)


@pytest.mark.parametrize(("name", "modality"), CASES)
def test_names(name, modality):
    assert guess(label(name)).modality == modality


@pytest.mark.parametrize(
    ("made", "modality", "reason"),
    [
        (label("t1_mprage", agent="Gadovist"), "t1ce", "contrast agent"),
        (label("t1_mprage", agent="NONE"), "t1", "t1"),
        (label("t1_mprage pre", agent="Gadovist"), None, "before contrast by its description, but"),
        (label("AX T2", agent="Gadovist"), "t2", "t2"),
        (label("", protocol="t2_flair"), "flair", "protocol name"),
        (label("t1_mprage_KM", protocol="t1_mprage"), "t1ce", "km"),
        (label("t1_mprage", protocol="t1_mprage_KM"), None, "t1ce by its protocol name"),
        (label("T1 AX", protocol="BRAIN W WO CONTRAST"), "t1", "t1"),
        (label("T2 FLAIR", kind="CT"), None, "CT, not MR"),
        (label("T2 FLAIR", image_type=("DERIVED", "SECONDARY", "ADC")), None, "of type ADC"),
    ],
)
def test_header_fields(made, modality, reason):
    assert guess(made).modality == modality
    assert reason in guess(made).reason


@pytest.fixture
def study(tmp_path):
    """Two candidates for FLAIR, one T2, one without a description, one localiser."""
    small = dicom_toys.head(2, 4, 4)
    for number, name in {1: "localizer", 2: "T2 TSE", 3: "FLAIR sag", 4: "FLAIR ax", 5: ""}.items():
        Series(small, SeriesNumber=number, SeriesDescription=name).save(tmp_path, prefix=f"S{number}_")
    return tmp_path


@pytest.mark.parametrize(
    ("modalities", "override", "chosen"),
    [
        (("flair", "t2"), {"flair": "4"}, {"flair": 4, "t2": 2}),
        (("flair", "t2"), {"flair": "flair SAG"}, {"flair": 3, "t2": 2}),
        (("flair", "t1"), {"flair": "4", "t1": "3"}, {"flair": 4, "t1": 3}),
        (("flair", "t2"), {"t2": "3"}, {"flair": 4, "t2": 3}),  # a chosen series is no candidate for another modality
    ],
)
def test_chosen_series(study, modalities, override, chosen):
    series = read_study(study, modalities, override).series
    assert {name: taken.label.number for name, taken in series.items()} == chosen


@pytest.mark.parametrize(
    ("modalities", "override", "words"),
    [
        (("t1",), {}, ("no series is t1", "2 'T2 TSE'", "--series t1=NUMBER")),
        (("dwi",), {}, ("no series is dwi",)),
        (("t2",), {"t2": "9"}, ("--series t2=9", "no such series", "2 'T2 TSE'")),
        (("t2",), {"t1": "2"}, ("--series t1=2", "choose from t2")),
        (("t2", "t1"), {"t2": "3", "t1": "3"}, ("cannot be both t2 and t1",)),
        (
            ("flair", "t2"),
            {},
            ("2 series could be flair", "3 'FLAIR sag'", "4 'FLAIR ax'", "--series flair=3 or --series flair=4"),
        ),
    ],
)
def test_mistakes(study, modalities, override, words):
    with pytest.raises(ScanError) as caught:
        read_study(study, modalities, override)
    for word in (str(study), *words):
        assert word in str(caught.value)


def test_equal_names_and_numbers_are_distinguished_by_uid(tmp_path):
    series = [Series(dicom_toys.head(2, 4, 4)) for _ in range(2)]
    for prefix, made in zip("ab", series, strict=True):
        made.save(tmp_path, prefix)
    for override, message in (
        ({}, f"--series flair={series[0].uid}"),
        ({"flair": "3"}, r"2 series match .*UID: [\d.]+ or"),
    ):
        with pytest.raises(ScanError, match=message):
            read_study(tmp_path, ("flair",), override)
    assert read_study(tmp_path, ("flair",), {"flair": series[1].uid}).reference.label.uid == series[1].uid


def rows(*arguments) -> list[str]:
    """The preview, with single spaces."""
    return [" ".join(line.split()) for line in preview(*arguments)]


def test_the_preview_lists_every_series_with_the_reason(study):
    (study / "notes.txt").write_text("x")
    _, localiser, t2, flair, _, unnamed, skipped = rows(study, ("flair", "t2"))
    assert localiser == "1 localizer 4 x 4 x 2 0.9 x 1.2 x 2.5 - a localiser, by its description"
    assert t2 == "2 T2 TSE 4 x 4 x 2 0.9 x 1.2 x 2.5 t2 't2' in its description"
    assert " flair 'flair' in" in flair
    assert flair.endswith("ambiguous with 4 'FLAIR ax': choose with --series flair=3")
    assert unnamed.endswith("- its name does not give the contrast")
    assert skipped == "skipped, not DICOM: notes.txt"


def test_the_preview_of_chosen_series(study):
    _, _, t2, _, flair, _ = rows(study, ("flair",), {"flair": "4"})
    assert t2.endswith("- t2 by 't2' in its description, not needed")
    assert flair.endswith("flair chosen with --series")


def test_parsing_of_the_series_option():
    assert parse_series(["flair=3", "T2=AX T2", "t1 = 1.2.3"]) == {"flair": "3", "t2": "AX T2", "t1": "1.2.3"}
    for wrong in (["flair"], ["=3"], ["flair="], ["flair=3", "FLAIR=4"]):
        with pytest.raises(ConfigError, match="--series"):
            parse_series(wrong)
