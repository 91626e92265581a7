"""anofpdm evaluate --without: a student, with modalities left out as if the scans lacked them."""

import csv
import json
import shutil

import pytest
from typer.testing import CliRunner

from anofpdm.cli.main import app
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.errors import ConfigError
from anofpdm.network import checkpoint
from anofpdm.student.student import save_student
from anofpdm.study.comparison.names import MethodChoice
from anofpdm.study.missing import missing_sets
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


def test_tables_of_the_command_line(optional, tmp_path):
    """On slices; and on whole scans, by a student without its diffusion model. Earlier results stay in the table."""
    shutil.copytree(optional / "guided" / "student", tmp_path / "alone" / "student")

    def run(model, *words):
        command = ["evaluate", model, optional / "cohort", "--device", "cpu", *words]
        return CliRunner().invoke(app, [str(word) for word in command])

    quick = ("--out", tmp_path / "out", "--method", STUDENT, "--sample", 12, "--seeds", 1, "--levels", 2)
    native = ("--out", tmp_path / "native", "--native", optional / "scans", "--engine", "student", "--workers", 1)
    for done in (
        run(optional / "guided", *quick, "--without", "every"),
        run(optional / "guided", *quick),
        run(tmp_path / "alone", *native, "--without", "t2"),
    ):
        assert done.exit_code == 0, done.output
    refused = run(tmp_path / "alone", "--out", tmp_path / "more", "--method", "anofpdm-ours")
    assert refused.exit_code == 1
    assert "has a student only, and this command needs its diffusion model" in refused.output
    table = (tmp_path / "out" / "table.md").read_text()
    assert all(f"| L | {name} |" in table for name in (STUDENT, WITHOUT_T2))
    assert WITHOUT_T2 in {row["method"] for row in csv.DictReader((tmp_path / "out" / "slices.csv").open())}
    engines = json.loads((tmp_path / "native" / "native.json").read_text())["engines"]
    assert list(engines) == ["student", "student-without-t2"]
    summaries = list((tmp_path / "native" / "student-without-t2").glob("*/summary.json"))
    assert len(summaries) == 4
    assert all(json.loads(path.read_text())["missing_modalities"] == ["t2"] for path in summaries)


def test_a_cohort_with_neither_a_validation_split_nor_optional_modalities(optional, tmp_path):
    """The student alone, as with --without; other methods name what they lack."""
    split = "".join(f"p{number},{'test' if number > 7 else 'train'}\n" for number in range(12))
    (tmp_path / "split.csv").write_text(f"patient,split\n{split}")
    options = {"size": 16, "split": tmp_path / "split.csv"}
    for name, modalities in (("flair", ("flair",)), ("t2", ("t2",)), ("both", ("flair", "t2"))):
        plan = plan_cohort("brats21", optional / "scans", modalities=modalities, **options)
        prepare(plan, tmp_path / name)

    def run(cohort, *more):
        words = [
            "evaluate",
            optional / "guided",
            tmp_path / cohort,
            "--device",
            "cpu",
            "--seeds",
            1,
            "--levels",
            2,
            *more,
        ]
        result = CliRunner().invoke(app, [*map(str, words), "--out", str(tmp_path / f"out-{cohort}-{len(more)}")])
        rows = [line.split("|")[2:] for line in result.output.splitlines() if "anofpdm-" in line and "|" in line]
        return result.exit_code, result.output, {row[0].strip(): row[1:] for row in rows}

    code, output, scores = run("flair")
    assert (code, list(scores)) == (0, [STUDENT]), output
    assert "the student alone" in output
    code, output, left_out = run("both", "--without", "t2")
    assert (code, list(left_out)) == (0, [STUDENT, WITHOUT_T2]), output
    assert scores[STUDENT][0] == left_out[WITHOUT_T2][0] != left_out[STUDENT][0]  # mixed DICE of the same slices
    code, output, _ = run("both", "--method", "anofpdm-ours")
    assert code == 3
    assert "no slice of its split 'val' is labelled healthy or unhealthy" in output
    code, output, _ = run("flair", "--method", "anofpdm-ours")
    assert code == 1
    assert "was trained on flair, t2" in output
    code, output, _ = run("t2", "--method", STUDENT)
    assert code == 1
    assert "its student needs flair" in output
