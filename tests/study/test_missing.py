"""anofpdm evaluate --without: a student, with modalities left out as if the scans lacked them."""

import json
import shutil

import pytest

from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.errors import ConfigError
from anofpdm.network import checkpoint
from anofpdm.student.student import save_student
from anofpdm.study.comparison.names import MethodChoice
from anofpdm.study.missing import missing_sets
from tests.commands import run
from tests.optional_toys import make_student

STUDENT = MethodChoice.ANOFPDM_STUDENT
WITHOUT_T2 = "anofpdm-student-without-t2"


pytestmark = pytest.mark.usefixtures("few_bins")


@pytest.fixture(scope="module")
def optional(made, tmp_path_factory):
    """The model with a student for which T2 is optional, and the cohort."""
    folder = tmp_path_factory.mktemp("optional")
    shutil.copytree(made, folder, dirs_exist_ok=True)
    sha256 = checkpoint.load_model(folder / "guided")[2]
    save_student(folder / "guided", make_student(sha256, ("flair", "t2"), ("t2",), 16, bias=None), {})
    return folder


def test_sets_of_modalities():
    student = make_student()
    assert missing_sets(["t2", "t2,t1", "t1,t2"], student) == [("t2",), ("t1", "t2")]
    assert missing_sets(["every"], student) == [("t1",), ("t2",), ("t1", "t2")]
    assert missing_sets([], None) == []
    with pytest.raises(ConfigError, match="'flair' is not optional; choose from t1, t2, or every"):
        missing_sets(["t1,flair"], student)
    for without_optional in (None, make_student(optional=())):
        with pytest.raises(ConfigError, match="no student with optional modalities"):
            missing_sets(["t1"], without_optional)


def evaluate(model, cohort, out, *words, code=0):
    return run("evaluate", model, cohort, "--out", out, "--device", "cpu", *words, code=code).output


def test_whole_scans_by_a_student_without_its_diffusion_model(optional, tmp_path):
    shutil.copytree(optional / "guided" / "student", tmp_path / "alone" / "student")
    native = ("--native", optional / "scans", "--engine", "student", "--workers", 1, "--without", "t2")
    evaluate(tmp_path / "alone", optional / "cohort", tmp_path / "out", *native)
    assert list(json.loads((tmp_path / "out/native.json").read_text())["engines"]) == ["student", "student-without-t2"]
    summaries = list((tmp_path / "out" / "student-without-t2").glob("*/summary.json"))
    assert len(summaries) == 4
    assert all(json.loads(path.read_text())["missing_modalities"] == ["t2"] for path in summaries)
    ours = ("--method", "anofpdm-ours")
    output = evaluate(tmp_path / "alone", optional / "cohort", tmp_path / "more", *ours, code=1)
    assert "has a student only, and this command needs its diffusion model" in output


def test_a_cohort_with_neither_a_validation_split_nor_optional_modalities(optional, tmp_path):
    """The student alone, as with --without, whose results stay in the table; other methods name what they lack."""
    split = "".join(f"p{number},{'test' if number > 7 else 'train'}\n" for number in range(12))
    (tmp_path / "split.csv").write_text(f"patient,split\n{split}")
    for name, modalities in (("flair", ("flair",)), ("t2", ("t2",)), ("both", ("flair", "t2"))):
        plan = plan_cohort("brats21", optional / "scans", modalities=modalities, size=16, split=tmp_path / "split.csv")
        prepare(plan, tmp_path / name)

    def scores_of(cohort, *more, code=0):
        """Output, and the cells of each method of ours."""
        quick = ("--seeds", 1, "--levels", 2, *more)
        output = evaluate(optional / "guided", tmp_path / cohort, tmp_path / f"out-{cohort}", *quick, code=code)
        rows = [line.split("|")[2:] for line in output.splitlines() if "anofpdm-" in line and "|" in line]
        return output, {row[0].strip(): row[1:] for row in rows}

    output, scores = scores_of("flair")
    assert list(scores) == [STUDENT]
    assert "the student alone" in output
    for words in (("--without", "every"), ()):
        _, left_out = scores_of("both", *words)
        assert list(left_out) == [STUDENT, WITHOUT_T2]
    assert scores[STUDENT][0] == left_out[WITHOUT_T2][0] != left_out[STUDENT][0]  # mixed DICE of the same slices
    for cohort, method, code, message in (
        ("both", "anofpdm-ours", 3, "no slice of its split 'val' is labelled healthy or unhealthy"),
        ("flair", "anofpdm-ours", 1, "was trained on flair, t2"),
        ("t2", STUDENT, 1, "its student needs flair"),
    ):
        assert message in scores_of(cohort, "--method", method, code=code)[0]
