"""Results on disk, as `anofpdm view` hands them out: what belongs to them, and nothing else."""

import hashlib
import json
import shutil

import pytest

from anofpdm.segment.outputs import FINDINGS, MASK, SUMMARY
from anofpdm.viewer.refusals import RefusalError
from anofpdm.viewer.results import ResultFolder, findings, read_result


def test_results_of_any_layout_are_found(made_results):
    found = {one.title: one for one in ResultFolder(made_results).look()}
    assert set(found) == {"p1", "sub-07_ses-1"}
    assert {"mask", "map", "report", "summary"} <= set(found["sub-07_ses-1"].files)
    assert found["p1"].key != found["sub-07_ses-1"].key
    assert findings(found["p1"])[0]["volume_ml"] > 0


def test_one_result_alone(made_results):
    (one,) = ResultFolder(made_results / "p1").look()
    assert one.title == "p1"


@pytest.fixture
def copied(made_results, tmp_path):
    shutil.copytree(made_results, tmp_path / "results")
    return tmp_path / "results"


def only(folder):
    return next(one for one in ResultFolder(folder).look() if one.title == "p1")


def test_links_out_of_the_folder_are_not_followed(copied, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (copied / "p1" / MASK).unlink()
    (copied / "p1" / MASK).symlink_to(tmp_path / "secret")
    with pytest.raises(RefusalError):
        only(copied).file("mask")
    (copied / "p2").symlink_to(tmp_path)
    assert len(ResultFolder(copied).look()) == 2


def test_a_summary_from_elsewhere_opens_no_other_file(copied, tmp_path):
    """It may name any file as its scan: only a NIfTI file with the hash that it knows already is shown."""
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    known = hashlib.sha256(b"secret").hexdigest()
    summary = copied / "p1" / SUMMARY
    said = json.loads(summary.read_text())
    for file, digest in (
        (secret, known), ("/etc/passwd", known), (tmp_path / "nowhere.nii", known), (summary, "0" * 64), (None, None),
        (tmp_path, known), ("/dev/zero.nii", known), ("\x00.nii", known),
    ):  # fmt: skip
        said["inputs"] = {"flair": {"file": str(file), "sha256": digest}, "t2": "no", "t1": {}}
        summary.write_text(json.dumps(said))
        assert only(copied).scans() == {}
        with pytest.raises(RefusalError):
            only(copied).file("scan-flair")
    said["inputs"] = {"flair": {"file": str(scan := tmp_path / "flair.nii"), "sha256": known}}
    scan.write_text("secret")
    summary.write_text(json.dumps(said))
    assert only(copied).scans() == {"flair": scan}
    scan.write_text("changed")
    assert only(copied).scans() == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"volume_ml": 1', "\xff", "1" * 20])
def test_a_damaged_summary_is_passed_over(copied, text):
    (copied / "p1" / SUMMARY).write_text(text)
    assert [one.title for one in ResultFolder(copied).look()] == ["sub-07_ses-1"]


def test_a_damaged_table_has_no_findings(copied):
    (copied / "p1" / FINDINGS).write_text("finding,volume_ml\na,b\n")
    assert findings(only(copied)) == []


def test_warnings_name_files_without_their_folders(copied):
    summary = copied / "p1" / SUMMARY
    said = json.loads(summary.read_text())
    said["inputs"] = {"flair": {"file": "/home/anna b/mueller/f.nii.gz", "sha256": ""}}
    said["warnings"] = ["/home/anna b/mueller/f.nii.gz: 60% of it", "see /home/anna/other.nii: 1 / 2"]
    summary.write_text(json.dumps(said))
    assert only(copied).notes() == ["f.nii.gz: 60% of it", "see other.nii: 1 / 2"]


def test_a_result_needs_its_folder_only(made_results):
    result = read_result(made_results, made_results / "p1", key="k", title="t")
    assert (result.key, result.title) == ("k", "t")
    assert read_result(made_results, made_results) is None


def test_the_server_only_reads(viewing, made_results):
    before = {path: path.stat().st_mtime_ns for path in made_results.rglob("*")}
    listed = viewing.ask("/api/results").json
    assert [one["title"] for one in listed] == ["p1", "sub-07_ses-1"]
    one = viewing.ask(f"/api/results/{listed[0]['key']}").json
    assert {file["role"] for file in one["scans"]} == {"scan-flair", "scan-t2"}
    for file in [*one["files"], *one["scans"]]:
        answer = viewing.ask(file["url"])
        assert answer.status == 200
        assert answer.body
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("/api/results", f"/api/results/{listed[0]['key']}", one["files"][0]["url"], "/api/jobs"):
            assert viewing.ask(path, method).status in (404, 405)
    for key in ("..", "%2e%2e", "p1", "0" * 20, "..%2f..%2fetc"):
        assert viewing.ask(f"/api/results/{key}").status == 404
    assert {path: path.stat().st_mtime_ns for path in made_results.rglob("*")} == before
