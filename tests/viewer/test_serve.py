"""A server in its own process, over real sockets: normal use, mistakes, and attacks."""

import gzip
import io
import socket
import time
import zipfile

import nibabel as nib
import numpy as np
import pytest

from faults.processes import wait_until

SECRET = "MUELLER^HANS-1950"


def send_raw(server, request: bytes, *, wait=10.0) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as peer:
        peer.sendall(request)
        response = b""
        while piece := peer.recv(65536):
            response += piece
            if b"\r\n\r\n" in response and b'"field"' in response:
                break
        return response


@pytest.fixture
def cleaned_up(store_folder):
    """The server leaves nothing of what a test sent; it cleans up after its response."""
    yield
    assert wait_until(
        lambda: not [path for name in ("incoming", "trash") for path in (store_folder / name).iterdir()], 5
    )


# ---- normal use ------------------------------------------------------------------------------------------------------


def test_a_scan_becomes_a_result(server, scan, done_job, store_folder):
    assert done_job["result"]["slices"] > 5
    assert done_job["result"]["missing_modalities"] == ["t1"]
    result = server.request(f"/api/results/{done_job['id']}").json
    assert result["missing_modalities"] == ["t1"]
    assert {file["role"] for file in result["scans"]} == {"scan-flair", "scan-t2"}
    urls = {file["role"]: file["url"] for file in result["files"]}
    assert set(urls) == {"mask", "map", "findings", "slices", "summary", "picture", "report"}
    mask = nib.Nifti1Image.from_bytes(gzip.decompress(server.request(urls["mask"]).body))
    np.testing.assert_array_equal(mask.affine, nib.Nifti1Image.from_filename(scan["flair"]).affine)
    assert server.request(result["scans"][0]["url"]).body == scan["flair"].read_bytes()
    assert b"<!doctype html>" in server.request(urls["report"]).body
    assert result["volume_ml"] == done_job["result"]["volume_ml"]
    assert server.request(urls["summary"]).json["inputs"]["flair"]["file"] == "flair.nii.gz"
    for url in (f"/api/jobs/{done_job['id']}", f"/api/results/{done_job['id']}", "/api/status", *urls.values()):
        assert str(store_folder).encode() not in server.request(url).body


def test_all_scans_are_listed_newest_first(server, make_scan, done_job):
    """For whoever can reach the server: an id that another browser stores is not needed."""
    newer = server.upload(make_scan(11)).json
    listed = server.request("/api/jobs").json
    ids = [job["id"] for job in listed]
    assert ids.index(newer["id"]) < ids.index(done_job["id"])
    assert listed[ids.index(done_job["id"])] == server.job(done_job["id"])
    assert [job["id"] for job in server.request("/api/jobs?limit=1").json] == [newer["id"]]
    some = server.request(f"/api/jobs?id={done_job['id']}&id={'0' * 32}").json
    assert [job["id"] for job in some] == [done_job["id"]]
    for limit in ("0", "-1", "1e9", "x"):
        assert server.request(f"/api/jobs?limit={limit}").status == 422
    server.wait(newer["id"])
    server.delete(newer)


def test_the_api_is_documented(server):
    status = server.request("/api/status").json
    assert (status["modalities"], status["optional"]) == (["flair", "t2", "t1"], ["t1"])
    paths = server.request("/openapi.json").json["paths"]
    form = paths["/api/jobs"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    assert {"flair", "t2", "t1"} <= set(form)
    assert [name for name, part in form.items() if "optional" in part["description"]] == ["t1"]
    assert {"/api/jobs/{job_id}", "/api/jobs/{job_id}/cancel", "/api/results/{key}/files/{role}"} <= set(paths)
    assert "404" in paths["/api/jobs/{job_id}"]["get"]["responses"]
    assert b"openapi.json" in server.request("/api").body


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_missing_and_unknown_files(server, scan):
    response = server.upload({"flair": scan["flair"], "t1": scan["t2"]})
    assert (response.status, response.json["field"]) == (422, "t2")
    assert "needs flair, t2; optional: t1" in response.error
    for field in ("dwi", "../x", "/etc/passwd", "", "flair/../../x", "job.json"):
        assert server.upload({**scan, field: b"x"}).status == 400


def nifti(shape=(8, 8, 8)):
    return nib.Nifti1Image(np.arange(np.prod(shape), dtype=np.int16).reshape(shape), np.eye(4)).to_bytes()


def header_only(shape) -> bytes:
    """A header that declares this shape, without data."""
    header = nib.Nifti1Header()
    header.set_data_shape(shape)
    header.set_data_dtype(np.int16)
    header.set_sform(np.eye(4), 1)
    header["magic"], header["vox_offset"] = b"n+1", 352
    return header.binaryblock + bytes(4)


MALFORMED = {
    "text": (b"hello, world", "not a NIfTI file"),
    "a slice on another grid": (nifti((8, 8, 1)), "only 1 slices"),
    "a bomb of voxels": (header_only((500, 500, 500)), "more than this server accepts"),
    "a zip": (b"PK\x03\x04" + bytes(100), "in the field for DICOM"),
}


@pytest.mark.parametrize(("content", "expected"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_file_is_refused_with_its_field(server, scan, content, expected):
    response = server.upload({"flair": scan["flair"], "t2": content})
    assert (response.status, response.json["field"]) == (422, "t2")
    assert expected in response.error


def test_errors_in_the_data_are_found_in_the_queue(server, scan, store_folder):
    """A valid header with a gigabyte of zeros instead of a few thousand voxels, or with too few."""
    whole = gzip.decompress(scan["t2"].read_bytes())
    bomb = gzip.compress(whole) + 64 * gzip.compress(bytes(16 << 20))
    for content, expected in ((bomb, "more data than its header"), (gzip.compress(whole[:-50]), "truncated")):
        job = server.wait(server.upload({"flair": scan["flair"], "t2": content}).json["id"])
        assert job["state"] == "failed"
        assert job["error"].startswith("t2.nii.gz: ")
        assert expected in job["error"]
        assert not (store_folder / "jobs" / job["id"] / "input").exists()
        assert server.request(f"/api/results/{job['id']}").status == 409


# ---- attacks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/static/../viewer.css", "/static/..%2f..%2fserve_app.py", "/static/%2e%2e/%2e%2e/worker.py", "/../../etc/passwd",
     "/api/results/..%2f..%2f/files/mask", "/api/jobs/../../../etc", "/static//etc/passwd", "/docs", "/redoc"],
)  # fmt: skip
def test_paths_outside_the_static_files(server, path):
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n"
    assert send_raw(server, head.encode()).startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize("role", ["..%2fjob.json", "job.json", "mask.nii.gz", "scan-..", "input", "%2e%2e", "scan-"])
def test_unknown_roles_of_files(server, done_job, role):
    assert server.request(f"/api/results/{done_job['id']}/files/{role}").status == 404


PART = b'--x\r\nContent-Disposition: form-data; name="flair"; filename="f"\r\n\r\n'


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("Expect: 100-continue\r\nContent-Length: 4294967296", b""),  # before it is sent
        ("Content-Length: 4294967296", b"--x\r\n"),
        (
            "Transfer-Encoding: chunked",
            b"%x\r\n%s\r\n" % (len(PART), PART) + 10 * (b"100000\r\n%s\r\n" % bytes(1 << 20)),
        ),
    ],
)
def test_a_large_body_is_refused(server, headers, body):
    head = f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: multipart/form-data; boundary=x"
    response = send_raw(server, f"{head}\r\n{headers}\r\n\r\n".encode() + body)
    assert response.startswith(b"HTTP/1.1 413"), response[:100]
    assert b"8 MiB" in response


@pytest.mark.usefixtures("cleaned_up")
def test_an_aborted_upload_is_removed(server):
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        head = f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 100000\r\n"
        peer.sendall(f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n".encode() + PART + b"abc")
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("kind", "body"),
    [("text/plain", b"x"), ("multipart/form-data", b"x"), ("multipart/form-data; boundary=" + "y" * 5000, b"x")],
)  # fmt: skip
def test_requests_that_are_not_a_form(server, kind, body):
    response = server.request("/api/jobs", "POST", body, {"Content-Type": kind})
    assert response.status in (400, 415), response.body


# ---- DICOM and personal data -----------------------------------------------------------------------------------------


def zipped(**files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def test_zips_without_a_study(server, store_folder):
    pytest.importorskip("pydicom")
    for content in (b"PK\x03\x04 and no more", zipped(a=b"x" * 100)[:-10]):
        response = server.upload({"dicom": content})
        assert (response.status, response.json["field"]) == (422, "dicom")
        assert "not a zip" in response.error
    job = server.wait(server.upload({"dicom": zipped(**{"../../evil": b"x", "/etc/passwd": b"y"})}).json["id"])
    assert job["state"] == "failed"
    assert "no DICOM image" in job["error"]
    assert str(store_folder) not in job["error"]


def test_a_dicom_study_gives_a_dicom_seg(server, store_folder, tmp_path):
    """Two series with similar descriptions, so that the user has to choose; in a zip with paths outside of it."""
    pydicom = pytest.importorskip("pydicom")
    from tests import dicom_toys

    voxels = dicom_toys.head(12, 32, 30)
    flair = dicom_toys.Series(voxels, SeriesNumber=3, SeriesDescription="AX T2 FLAIR")
    for number, name in ((4, "AX T2"), (5, "AX T2 again")):
        other = dicom_toys.Series(voxels[:, ::-1], SeriesNumber=number, SeriesDescription=name)
        other.save(tmp_path / "study", f"S{number}")
    study = dicom_toys.zipped(flair.save(tmp_path / "study"), tmp_path / "a.zip", before="../../")
    job = server.wait(server.upload({"dicom": study}).json["id"])
    assert job["state"] == "failed"
    assert "2 series could be t2" in job["error"]
    assert "--" not in job["error"]
    response = server.upload({"dicom": study, "series": b"t2"})
    assert (response.status, response.json["field"]) == (422, "series")
    job, result = server.finish({"dicom": study, "series": b"t2=4"})
    assert {file["role"] for file in result["scans"]} == {"scan-flair", "scan-t2"}
    seg = pydicom.dcmread(io.BytesIO(server.request(f"/api/results/{job['id']}/files/dicom-seg").body))
    assert (seg.Modality, seg.PatientName) == ("SEG", "Secret^Sarah")
    assert seg.ContentDescription.endswith("without T1")
    scan = nib.Nifti1Image.from_bytes(server.request(f"/api/results/{job['id']}/files/scan-flair").body)
    assert scan.shape == (30, 32, 12)
    assert "Secret" not in server.log.read_text()
    assert {path.name for path in (store_folder / "jobs" / job["id"]).iterdir()} == {"job.json", "input", "result"}


def test_no_file_name_of_the_client_is_used_stored_or_logged(server, scan, store_folder):
    image = nib.Nifti1Image.from_filename(scan["flair"])
    image.header["descrip"] = SECRET.encode()
    named = {"flair": gzip.compress(image.to_bytes()), "t2": scan["t2"]}
    job, _ = server.finish(named, {"flair": f"../../../../{SECRET}.nii.gz", "t2": f"{SECRET}_t2.nii.gz"})
    server.request(f"/api/results/{SECRET}/files/{SECRET}?name={SECRET}")
    server.upload({"flair": SECRET.encode(), "t2": SECRET.encode()}, {"flair": f"{SECRET}.nii"})
    log = server.log.read_text()
    assert SECRET not in log
    assert job["id"] not in log  # the id gives access to the scan
    folder = store_folder / "jobs" / job["id"]
    assert {path.name for path in (folder / "input").iterdir()} == {"flair.nii.gz", "t2.nii.gz"}
    for path in folder.rglob("*"):
        assert SECRET not in path.name
        if path.is_file() and path.parent.name != "input":
            data = path.read_bytes()
            assert SECRET.encode() not in (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    assert "Traceback" not in log
