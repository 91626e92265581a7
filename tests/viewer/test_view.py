"""Results on disk and their files, as `anofpdm view` offers them."""

import hashlib
import json
import os
import shutil
import sys

import pytest

from anofpdm.segment.outputs import FINDINGS, MASK, SUMMARY, ResultFiles
from anofpdm.viewer.limits import RequestError
from anofpdm.viewer.results import ResultFolder, read_result


def test_results_are_found_in_any_layout(results_folder):
    results = {result.title: result for result in ResultFolder(results_folder).search()}
    assert set(results) == {"p1", "sub-07_ses-1"}
    assert {"mask", "map", "report", "summary"} <= set(results["sub-07_ses-1"].files)
    assert results["p1"].key != results["sub-07_ses-1"].key
    assert results["p1"].lesions()[0]["volume_ml"] > 0
    (alone,) = ResultFolder(results_folder / "p1").search()
    assert alone.title == "p1"
    named = read_result(results_folder, ResultFiles(results_folder / "p1"), key="k", title="t")
    assert (named.key, named.title) == ("k", "t")
    assert read_result(results_folder, ResultFiles(results_folder)) is None


@pytest.fixture
def copied(results_folder, tmp_path):
    shutil.copytree(results_folder, tmp_path / "results")
    return tmp_path / "results"


def find_p1(folder):
    return next(result for result in ResultFolder(folder).search() if result.title == "p1")


def change_summary(folder, **changes):
    path = folder / "p1" / SUMMARY
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


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
    for file, digest in (
        (secret, known), ("/etc/passwd", known), (tmp_path / "nowhere.nii", known),
        (copied / "p1" / SUMMARY, "0" * 64), (None, ""), (tmp_path, known), ("/dev/zero.nii", known),
        ("\x00.nii", known),
    ):  # fmt: skip
        change_summary(copied, inputs={"flair": {"file": str(file), "sha256": digest}})
        assert find_p1(copied).scans() == {}
        with pytest.raises(RequestError):
            find_p1(copied).file("scan-flair")
    scan = tmp_path / "flair.nii"
    change_summary(copied, inputs={"flair": {"file": str(scan), "sha256": known}})
    scan.write_text("secret")
    assert find_p1(copied).scans() == {"flair": scan}
    scan.write_text("changed")
    assert find_p1(copied).scans() == {}


DAMAGED = {
    "empty": (b"", "Expecting value"),
    "a list": (b"[]", "Expected `object`"),
    "not UTF-8": (b'{"volume_ml": "\xff"}', "can't decode byte 0xff"),
    "NaN": (b'{"volume_ml": NaN}', "$.volume_ml"),
    "negative": (b'{"volume_ml": -1.5}', "$.volume_ml"),
} | {
    name: (b'{"volume_ml": 1, "' + rest, reason)
    for name, (rest, reason) in {
        "nested": (b'x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion depth"),
        "large": (b'x": "' + b"x" * (5 << 20) + b'"}', "larger than 4 MiB"),
        "too many digits": (b'findings": 1' + b"0" * 5000 + b"}", "4300 digits"),
        "a warning of numbers": (b'warnings": [[1]]}', "$.warnings[0]"),
        "half a character": (b'warnings": ["\\ud800"]}', "surrogates not allowed"),
        "a file": (b'inputs": {"flair": {"file": [[[[1]]]]}}}', "$.inputs[...].file"),
    }.items()
}


@pytest.fixture(scope="module")
def view_damaged(start, results_folder, tmp_path_factory):
    """A server of two results; one of their summaries can be replaced."""
    folder = tmp_path_factory.mktemp("damaged") / "results"
    shutil.copytree(results_folder, folder)
    return start("view", folder), folder / "p1"


@pytest.mark.parametrize(("content", "reason"), DAMAGED.values(), ids=DAMAGED.keys())
def test_only_the_result_with_a_damaged_summary_is_unreadable(view_damaged, content, reason):
    server, folder = view_damaged
    (folder / SUMMARY).write_bytes(content)
    assert_unreadable(server, "p1", reason)


def assert_unreadable(server, title, reason):
    response = server.request("/api/results")
    assert response.status == 200, response.body
    listed = {result["title"]: result for result in response.json}
    assert set(listed) == {title, "sub-07_ses-1"}
    assert reason in listed[title]["unreadable"]
    assert listed[title]["volume_ml"] is None
    for path in ("", "/files/mask", "/files/summary", "/files/scan-flair"):
        response = server.request(f"/api/results/{listed[title]['key']}{path}")
        assert response.status == 422
        assert reason in response.error
        assert "segment the scan again" in response.error
    other = listed["sub-07_ses-1"]
    assert other["unreadable"] is None
    assert server.request(f"/api/results/{other['key']}").json["lesions"]
    assert "Traceback" not in server.log.read_text()


def test_summaries_that_are_not_files(view_damaged, tmp_path):
    server, folder = view_damaged
    path = folder / SUMMARY
    (tmp_path / SUMMARY).write_text('{"volume_ml": 1}')
    for make in (os.mkfifo, lambda path: path.symlink_to(path), lambda path: path.symlink_to(tmp_path / SUMMARY)):
        path.unlink(missing_ok=True)
        make(path)
        assert_unreadable(server, "p1", "not a regular file in this folder")


@pytest.mark.skipif(sys.platform != "linux", reason="file names are UTF-8 here")
def test_names_of_folders_that_cannot_be_sent(view_damaged):
    server, folder = view_damaged
    (folder / SUMMARY).unlink(missing_ok=True)
    (folder / SUMMARY).write_text("[]")
    other = folder.rename(folder.with_name("p\udcff"))  # the byte 255
    try:
        assert_unreadable(server, "p\ufffd", "Expected `object`")
        (other / SUMMARY).write_text('{"volume_ml": 1}')
        (listed,) = [result for result in server.request("/api/results").json if result["volume_ml"] == 1]
        result = server.request(f"/api/results/{listed['key']}").json
        assert all(server.request(file["url"]).status == 200 for file in result["files"])
    finally:
        other.rename(folder)


def test_a_summary_of_another_program_is_ignored(copied):
    (copied / "other").mkdir()
    (copied / "other" / SUMMARY).write_text('{"mean": {"Dice": 0.9}}')
    assert len(ResultFolder(copied).search()) == 2


def test_a_damaged_table_of_findings(copied):
    for text in ("a,b", "1,nan", "1,1e999", "1,2,3", "1", "1," + "1" * 200_000, "1,\0"):
        (copied / "p1" / FINDINGS).write_text(f"finding,volume_ml\n{text}\n")
        assert find_p1(copied).lesions() == [], text[:20]


def test_warnings_do_not_contain_folders(copied):
    change_summary(
        copied,
        inputs={"flair": {"file": "/home/anna b/mueller/f.nii.gz", "sha256": ""}},
        warnings=["/home/anna b/mueller/f.nii.gz: 60% of it", "t2: see /home/anna/other.nii, 1 / 2"],
    )
    assert find_p1(copied).summary.public_warnings() == ["f.nii.gz: 60% of it", "t2: see other.nii, 1 / 2"]


def test_the_server_is_read_only(view_server, results_folder):
    before = {path: path.stat().st_mtime_ns for path in results_folder.rglob("*")}
    listed = view_server.request("/api/results").json
    assert [result["title"] for result in listed] == ["p1", "sub-07_ses-1"]
    url = f"/api/results/{listed[0]['key']}"
    result = view_server.request(url).json
    assert {file["role"] for file in result["scans"]} == {"scan-flair", "scan-t2"}
    for file in [*result["files"], *result["scans"]]:
        response = view_server.request(file["url"])
        assert response.status == 200
        assert response.body
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("/api/results", url, result["files"][0]["url"], "/api/jobs"):
            assert view_server.request(path, method).status in (404, 405)
    for key in ("..", "%2e%2e", "p1", "0" * 20, "..%2f..%2fetc"):
        assert view_server.request(f"/api/results/{key}").status == 404
    assert {path: path.stat().st_mtime_ns for path in results_folder.rglob("*")} == before
