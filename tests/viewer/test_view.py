"""Results on disk and their files, as `anofpdm view` offers them."""

import hashlib
import json
import shutil

import pytest

from anofpdm.segment.outputs import FINDINGS, MASK, SUMMARY
from anofpdm.viewer.limits import RequestError
from anofpdm.viewer.results import ResultFolder, read_result


def test_results_are_found_in_any_layout(results_folder):
    found = {one.title: one for one in ResultFolder(results_folder).search()}
    assert set(found) == {"p1", "sub-07_ses-1"}
    assert {"mask", "map", "report", "summary"} <= set(found["sub-07_ses-1"].files)
    assert found["p1"].key != found["sub-07_ses-1"].key
    assert found["p1"].lesions()[0]["volume_ml"] > 0


def test_a_folder_with_one_result(results_folder):
    (one,) = ResultFolder(results_folder / "p1").search()
    assert one.title == "p1"


@pytest.fixture
def copied(results_folder, tmp_path):
    shutil.copytree(results_folder, tmp_path / "results")
    return tmp_path / "results"


def find_p1(folder):
    return next(one for one in ResultFolder(folder).search() if one.title == "p1")


def test_links_out_of_the_folder_are_not_followed(copied, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (copied / "p1" / MASK).unlink()
    (copied / "p1" / MASK).symlink_to(tmp_path / "secret")
    with pytest.raises(RequestError):
        find_p1(copied).file("mask")
    (copied / "p2").symlink_to(tmp_path)
    assert len(ResultFolder(copied).search()) == 2


def test_a_manipulated_summary_gives_access_to_no_other_file(copied, tmp_path):
    """It can name any file as scan; only a NIfTI file with the hash in the summary is offered."""
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    known = hashlib.sha256(b"secret").hexdigest()
    summary = copied / "p1" / SUMMARY
    content = json.loads(summary.read_text())
    for file, digest in (
        (secret, known), ("/etc/passwd", known), (tmp_path / "nowhere.nii", known), (summary, "0" * 64), (None, None),
        (tmp_path, known), ("/dev/zero.nii", known), ("\x00.nii", known),
    ):  # fmt: skip
        content["inputs"] = {"flair": {"file": str(file), "sha256": digest}, "t2": "no", "t1": {}}
        summary.write_text(json.dumps(content))
        assert find_p1(copied).scans() == {}
        with pytest.raises(RequestError):
            find_p1(copied).file("scan-flair")
    content["inputs"] = {"flair": {"file": str(scan := tmp_path / "flair.nii"), "sha256": known}}
    scan.write_text("secret")
    summary.write_text(json.dumps(content))
    assert find_p1(copied).scans() == {"flair": scan}
    scan.write_text("changed")
    assert find_p1(copied).scans() == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"volume_ml": 1', "\xff", "1" * 20])
def test_a_damaged_summary_is_ignored(copied, text):
    (copied / "p1" / SUMMARY).write_text(text)
    assert [one.title for one in ResultFolder(copied).search()] == ["sub-07_ses-1"]


def test_a_damaged_table_of_findings(copied):
    (copied / "p1" / FINDINGS).write_text("finding,volume_ml\na,b\n")
    assert find_p1(copied).lesions() == []


def test_warnings_do_not_contain_folders(copied):
    summary = copied / "p1" / SUMMARY
    content = json.loads(summary.read_text())
    content["inputs"] = {"flair": {"file": "/home/anna b/mueller/f.nii.gz", "sha256": ""}}
    content["warnings"] = ["/home/anna b/mueller/f.nii.gz: 60% of it", "see /home/anna/other.nii: 1 / 2"]
    summary.write_text(json.dumps(content))
    assert find_p1(copied).warnings() == ["f.nii.gz: 60% of it", "see other.nii: 1 / 2"]


def test_read_result(results_folder):
    result = read_result(results_folder, results_folder / "p1", key="k", title="t")
    assert (result.key, result.title) == ("k", "t")
    assert read_result(results_folder, results_folder) is None


def test_the_server_is_read_only(view_server, results_folder):
    before = {path: path.stat().st_mtime_ns for path in results_folder.rglob("*")}
    listed = view_server.request("/api/results").json
    assert [one["title"] for one in listed] == ["p1", "sub-07_ses-1"]
    one = view_server.request(f"/api/results/{listed[0]['key']}").json
    assert {file["role"] for file in one["scans"]} == {"scan-flair", "scan-t2"}
    for file in [*one["files"], *one["scans"]]:
        response = view_server.request(file["url"])
        assert response.status == 200
        assert response.body
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("/api/results", f"/api/results/{listed[0]['key']}", one["files"][0]["url"], "/api/jobs"):
            assert view_server.request(path, method).status in (404, 405)
    for key in ("..", "%2e%2e", "p1", "0" * 20, "..%2f..%2fetc"):
        assert view_server.request(f"/api/results/{key}").status == 404
    assert {path: path.stat().st_mtime_ns for path in results_folder.rglob("*")} == before
