"""Many scans in one run: resuming, failures, BIDS names, skull-stripping."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import pytest

from anofpdm.errors import OutputError, ScanWarning
from anofpdm.segment.inputs import find_targets
from anofpdm.segment.many import DEFAULT_FILES
from anofpdm.segment.outputs import ANOMALY_MAP, MASK, OVERVIEW, REPORT
from tests.segment.known_model import BY_HEALTHY, SHAPE, known_model, scan_files, segment_all


def run(targets, out, files=(), model=None, **options):
    return segment_all(model or known_model(), targets, out, files, **{**BY_HEALTHY, **options})


def targets_in(folder, count=3):
    for number in range(count):
        scan_files(folder, name=f"p{number}", radius=6.0 + number)
    return find_targets([str(folder)], ("flair", "t2"))


def test_a_second_run_resumes(tmp_path):
    targets = targets_in(tmp_path / "in")
    first = run(targets[:1], tmp_path / "out")
    stamp = (tmp_path / "out" / "p0" / MASK).stat().st_mtime_ns
    (tmp_path / "out" / "p1").mkdir()
    temporary = tmp_path / "out" / "p1" / f".{MASK}.12.tmp"
    for left in (tmp_path / "out" / "p1" / MASK, temporary):  # as a killed run leaves it: no summary yet
        left.write_bytes(b"half")
    again = run(targets, tmp_path / "out")
    assert list(first.segmented) == ["p0"]
    assert list(again.skipped) == ["p0"]
    assert list(again.segmented) == ["p1", "p2"]
    assert (tmp_path / "out" / "p0" / MASK).stat().st_mtime_ns == stamp
    assert nib.Nifti1Image.from_filename(tmp_path / "out" / "p1" / MASK).shape == SHAPE
    assert not temporary.exists()


def named_model(name, **changes):
    model = known_model()
    return replace(model, folder=Path(name), diffusion=replace(model.diffusion, **changes))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def earlier(tmp_path):
    """A scan and its result in out/, by a model named first."""
    (target,) = targets_in(tmp_path / "in", 1)
    run([target], tmp_path / "out", model=named_model("first"))
    return target, tmp_path / "out"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": named_model("second", calibration_sha256="1" * 64)}, "was made by first (engine diffusion); "),
        ({"model": named_model("first", calibration_sha256="1" * 64)}, "made by another version of first (engine"),
        ({"smallest": 90, "peak": 0.1}, "with other options (smallest 0, now 90; peak_share 0.0, now 0.1)"),
        ({"skull_strip": "cp {input} {output}"}, "options (brain_mask none, now command cp {input} {output})"),
        ({"image": ("flair",)}, "was made from another flair image"),
        ({"image": ("flair", "t2")}, "was made from another flair and t2 image"),
    ],
)
def test_a_result_of_something_else_is_refused(change, reason, earlier):
    """Other scans of the run are segmented."""
    target, out = earlier
    before, options = contents(out / "p0"), dict(change)
    for key in options.pop("image", ()):
        target.subject.images[key].write_bytes(scan_files(out.parent / "new", radius=8.0)[0][key].read_bytes())
    scan_files(out.parent / "in", name="p1")
    targets = find_targets([str(out.parent / "in")], ("flair", "t2"))
    report = run(targets, out, **{"model": named_model("first"), **options})
    assert list(report.segmented) == ["p1"]
    assert list(report.refused) == list(report.failed) == ["p0"]
    assert report.failed["p0"].startswith(f"{out / 'p0'} was made ")
    assert reason in report.failed["p0"]
    assert report.failed["p0"].endswith("; give another --out, or --overwrite")
    assert contents(out / "p0") == before
    replaced = run([target], out, overwrite=True, **{"model": named_model("first"), **options})
    assert list(replaced.segmented) == ["p0"]
    assert contents(out / "p0") != before
    assert run([target], out, overwrite=True, **{"model": named_model("first"), **options}).skipped


def test_results_of_another_version_are_kept_and_named(earlier, monkeypatch):
    target, out = earlier
    monkeypatch.setattr("torch.__version__", "9.9")
    kept = run([target], out, model=named_model("first"))
    assert list(kept.skipped) == ["p0"]
    assert ", now 9.9)" in kept.warnings["p0"][0]
    assert run([target], out, model=named_model("first"), overwrite=True).segmented
    assert not run([target], out, model=named_model("first")).warnings


@pytest.mark.parametrize("damage", ["", "[]", '{"settings": 1}', '{"inputs": [1]}', 100_000 * "["])
def test_a_damaged_summary_is_an_incomplete_result(damage, earlier):
    target, out = earlier
    (out / "p0" / "summary.json").write_text(damage)
    assert run([target], out, model=named_model("second")).segmented


@pytest.mark.filterwarnings("ignore:.*the lesion mask is")
def test_a_partly_overwritten_result_is_not_complete(tmp_path, monkeypatch):
    (target,) = targets_in(tmp_path / "in", 1)
    run([target], tmp_path / "out")
    result = known_model().segment(target.subject.images, threshold="quantile", context=0.0, peak=0.0)

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("anofpdm.segment.result.write_nifti", stopped)
        with pytest.raises(KeyboardInterrupt):
            result.save(tmp_path / "out" / "p0")
    assert list(run([target], tmp_path / "out").segmented) == ["p0"]


@pytest.mark.parametrize("missing", [MASK, ANOMALY_MAP, OVERVIEW, REPORT])
def test_a_result_with_a_missing_file_is_segmented_again(missing, tmp_path):
    targets = targets_in(tmp_path / "in", 1)
    run(targets, tmp_path / "out", DEFAULT_FILES)
    assert run(targets, tmp_path / "out", DEFAULT_FILES).skipped
    (tmp_path / "out" / "p0" / missing).unlink()
    skipped = run(targets, tmp_path / "out").skipped
    assert bool(skipped) == (missing in (OVERVIEW, REPORT))
    (tmp_path / "out" / "p0" / missing).unlink(missing_ok=True)
    assert run(targets, tmp_path / "out", DEFAULT_FILES).segmented


def test_warnings_are_in_the_report_only(tmp_path, recwarn):
    targets = targets_in(tmp_path / "in", 1)
    narrow = known_model(foreground=(0.05, 0.2))
    report = run(targets, tmp_path / "out", model=narrow)
    assert len(report.warnings["p0"]) == 1
    assert not [warning for warning in recwarn if warning.category is ScanWarning]


def test_a_full_disk_stops_the_run(tmp_path, monkeypatch):
    """The results of the next scans could not be written either."""
    targets, attempts = targets_in(tmp_path / "in"), []

    def full(path, *_):
        attempts.append(path)
        raise OutputError(f"{path}: could not be written")

    monkeypatch.setattr("anofpdm.segment.result.write_nifti", full)
    with pytest.raises(OutputError, match=MASK):
        run(targets, tmp_path / "out")
    assert len(attempts) == 1


def test_bids_input_gives_bids_names(tmp_path):
    files, _, _ = scan_files(tmp_path / "x")
    place = tmp_path / "bids" / "sub-01" / "ses-1" / "anat"
    place.mkdir(parents=True)
    files["flair"].rename(place / "sub-01_ses-1_FLAIR.nii.gz")
    files["t2"].rename(place / "sub-01_ses-1_T2w.nii.gz")
    assert list(run(tmp_path / "bids", tmp_path / "out", DEFAULT_FILES).segmented) == ["sub-01_ses-1"]
    made = tmp_path / "out" / "sub-01" / "ses-1" / "anat"
    names = {path.name for path in made.iterdir()}
    assert {
        f"sub-01_ses-1_{end}" for end in ("label-lesion_desc-anofpdm_mask.nii.gz", "desc-anofpdm_summary.json")
    } < names
    assert "<h1>sub-01_ses-1</h1>" in (made / "sub-01_ses-1_desc-anofpdm_report.html").read_text()
    assert all(name.startswith("sub-01_ses-1_") for name in names)
    assert json.loads((tmp_path / "out" / "dataset_description.json").read_text())["DatasetType"] == "derivative"


def test_the_users_skull_stripping_command_is_run(tmp_path):
    targets = targets_in(tmp_path / "in", 1)
    tool = tmp_path / "strip.py"
    tool.write_text(
        "import sys, nibabel as nib\nimage = nib.load(sys.argv[1])\nvoxels = image.get_fdata()\n"
        "voxels[:, :, : voxels.shape[2] // 2] = 0\nnib.save(nib.Nifti1Image(voxels, image.affine), sys.argv[2])\n"
    )
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(tool))} {{input}} {{output}}"
    run(targets, tmp_path / "out", skull_strip=command)
    mask = nib.Nifti1Image.from_filename(tmp_path / "out" / "p0" / MASK).get_fdata() > 0
    assert not mask[:, :, : SHAPE[2] // 2 - 1].any()
    assert mask.any()
    for bad, match in (
        ("false {input} {output}", "ended with code"),
        ("true {input} {output}", "wrote no output"),
        ("no-such-tool {input} {output}", "could not be started"),
        ("cp", "must contain {input}"),
        ("cp '{input} {output}", "close its quotes"),
        ("sh -c 'printf \"\\\\377\"; exit 1' {input} {output}", "ended with code 1"),
    ):
        report = run(targets, tmp_path / "bad", skull_strip=bad)
        assert match in report.failed["p0"]
