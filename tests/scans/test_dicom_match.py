"""Assignment of series to modalities, by typical names."""

from dataclasses import replace

import pytest

from anofpdm.errors import ConfigError, ScanError
from anofpdm.scans.dicom.header import Label
from anofpdm.scans.dicom.match import guess, parse_series, preview_lines
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
    found = guess(made)
    assert found.modality == modality
    assert reason in found.reason


@pytest.fixture
def study(tmp_path):
    """Two candidates for FLAIR, one T2, one without a description, one localiser."""
    small = dicom_toys.head(2, 4, 4)
    for number, name in {1: "localizer", 2: "T2 TSE", 3: "FLAIR sag", 4: "FLAIR ax", 5: ""}.items():
        Series(small, SeriesNumber=number, SeriesDescription=name).save(tmp_path, prefix=f"S{number}_")
    return tmp_path


def chosen(path, modalities, **override):
    return {name: one.label.number for name, one in read_study(path, modalities, override).series.items()}


class TestChoice:
    def test_several_candidates_need_a_choice(self, study):
        with pytest.raises(ScanError) as caught:
            read_study(study, ("flair", "t2"))
        for word in (
            "2 series could be flair",
            "3 'FLAIR sag'",
            "4 'FLAIR ax'",
            "--series flair=3 or --series flair=4",
        ):
            assert word in str(caught.value)

    def test_chosen_series(self, study):
        assert chosen(study, ("flair", "t2"), flair="4") == {"flair": 4, "t2": 2}
        assert chosen(study, ("flair", "t2"), flair="flair SAG") == {"flair": 3, "t2": 2}
        uid = read_study(study, ("flair",), {"flair": "3"}).reference.label.uid
        assert chosen(study, ("flair",), flair=uid) == {"flair": 3}

    def test_a_chosen_series_is_no_candidate_for_another_modality(self, study):
        assert chosen(study, ("flair", "t1"), flair="4", t1="3") == {"flair": 4, "t1": 3}
        assert chosen(study, ("flair", "t2"), t2="3") == {"flair": 4, "t2": 3}

    @pytest.mark.parametrize(
        ("modalities", "override", "words"),
        [
            (("t1",), {}, ("no series is t1", "2 'T2 TSE'", "--series t1=NUMBER")),
            (("dwi",), {}, ("no series is dwi",)),
            (("t2",), {"t2": "9"}, ("--series t2=9", "no such series", "2 'T2 TSE'")),
            (("t2",), {"t1": "2"}, ("--series t1=2", "choose from t2")),
            (("t2", "t1"), {"t2": "3", "t1": "3"}, ("cannot be both t2 and t1",)),
        ],
    )
    def test_mistakes(self, study, modalities, override, words):
        with pytest.raises(ScanError) as caught:
            read_study(study, modalities, override)
        for word in (str(study), *words):
            assert word in str(caught.value)

    def test_a_number_of_two_series(self, study):
        Series(dicom_toys.head(2, 4, 4), SeriesNumber=2, SeriesDescription="T1").save(study, prefix="X")
        with pytest.raises(ScanError, match=r"2 series match .*by its UID: [\d.]+ or [\d.]+"):
            read_study(study, ("t2",), {"t2": "2"})

    def test_equal_names_and_numbers_are_distinguished_by_uid(self, tmp_path):
        one, other = (Series(dicom_toys.head(2, 4, 4)) for _ in range(2))
        one.save(tmp_path, "a")
        other.save(tmp_path, "b")
        with pytest.raises(ScanError) as caught:
            read_study(tmp_path, ("flair",))
        assert f"--series flair={one.uid}" in str(caught.value)
        assert read_study(tmp_path, ("flair",), {"flair": other.uid}).reference.label.uid == other.uid


class TestPreview:
    def test_every_series_with_the_reason(self, study):
        rows = preview(study, ("flair", "t2")).rows
        assert [(row.number, row.modality) for row in rows] == [
            (1, None), (2, "t2"), (3, "flair"), (4, "flair"), (5, None),
        ]  # fmt: skip
        assert "localiser" in rows[0].note
        assert "ambiguous with 4 'FLAIR ax': choose with --series flair=3" in rows[2].note
        assert (rows[1].size, rows[1].spacing) == ("4 x 4 x 2", "0.9 x 1.2 x 2.5")
        assert "does not give the contrast" in rows[4].note

    def test_preview_of_chosen_series(self, study):
        rows = preview(study, ("flair",), {"flair": "4"}).rows
        assert [row.modality for row in rows] == [None, None, None, "flair", None]
        assert rows[3].note == "chosen with --series"
        assert "not needed" in rows[2].note

    def test_as_a_table(self, study):
        (study / "notes.txt").write_text("x")
        lines = preview_lines(preview(study, ("t2",)))
        assert len(lines) == 7
        assert lines[6] == "skipped, not DICOM: notes.txt"
        assert " ".join(lines[2].split()) == "2 T2 TSE 4 x 4 x 2 0.9 x 1.2 x 2.5 t2 't2' in its description"


def test_parsing_of_the_series_option():
    assert parse_series(["flair=3", "T2=AX T2", "t1 = 1.2.3"]) == {"flair": "3", "t2": "AX T2", "t1": "1.2.3"}
    for wrong in (["flair"], ["=3"], ["flair="], ["flair=3", "FLAIR=4"]):
        with pytest.raises(ConfigError, match="--series"):
            parse_series(wrong)
