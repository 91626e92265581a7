"""A server in its own process, over real sockets: normal use, mistakes, and attacks."""

import gzip
import io
import json
import socket
import threading
import time
import zipfile

import nibabel as nib
import numpy as np
import pytest

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


def temporary_files(store_folder):
    return [path for name in ("incoming", "trash") for path in (store_folder / name).iterdir()]


def is_cleaned_up(store_folder):
    """The server cleans up after its response."""
    until = time.monotonic() + 5
    while temporary_files(store_folder) and time.monotonic() < until:
        time.sleep(0.02)
    return not temporary_files(store_folder)


# ---- normal use ------------------------------------------------------------------------------------------------------


def test_a_scan_becomes_a_result(server, scan, done_job):
    assert done_job["state"] == "done", done_job["error"]
    assert done_job["found"]["slices"] > 5
    result = server.request(f"/api/results/{done_job['id']}").json
    assert {one["role"] for one in result["scans"]} == {"scan-flair", "scan-t2"}
    roles = {one["role"]: one for one in result["files"]}
    assert set(roles) == {"mask", "map", "findings", "slices", "summary", "picture", "report"}
    mask = nib.Nifti1Image.from_bytes(gzip.decompress(server.request(roles["mask"]["url"]).body))
    np.testing.assert_array_equal(mask.affine, nib.Nifti1Image.from_filename(scan["flair"]).affine)
    assert server.request(result["scans"][0]["url"]).body == scan["flair"].read_bytes()
    assert b"<!doctype html>" in server.request(roles["report"]["url"]).body
    assert result["volume_ml"] == done_job["found"]["volume_ml"]


def test_all_scans_are_listed_newest_first(server, make_scan, done_job):
    """For whoever can reach the server: an id that another browser stores is not needed."""
    newer = server.upload(make_scan(11)).json
    listed = server.request("/api/jobs").json
    ids = [job["id"] for job in listed]
    assert ids.index(newer["id"]) < ids.index(done_job["id"])
    assert listed[ids.index(done_job["id"])] == server.job(done_job["id"])
    assert [job["id"] for job in server.request("/api/jobs?limit=1").json] == [newer["id"]]
    for limit in ("0", "-1", "1e9", "x"):
        assert server.request(f"/api/jobs?limit={limit}").status == 422
    server.request(f"/api/jobs/{newer['id']}", "DELETE")
    assert newer["id"] not in [job["id"] for job in server.request("/api/jobs").json]


def test_paths_of_the_server_are_not_exposed(server, done_job, store_folder):
    urls = [one["url"] for one in server.request(f"/api/results/{done_job['id']}").json["files"]]
    for url in [f"/api/jobs/{done_job['id']}", f"/api/results/{done_job['id']}", "/api/status", *urls]:
        assert str(store_folder).encode() not in server.request(url).body
    summary = json.loads(server.request(f"/api/results/{done_job['id']}/files/summary").body)
    assert summary["inputs"]["flair"]["file"] == "flair.nii.gz"


def test_the_api_is_documented(server):
    schema = server.request("/openapi.json").json
    parts = schema["paths"]["/api/jobs"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"][
        "properties"
    ]
    assert {"flair", "t2"} <= set(parts)
    assert {"/api/jobs/{job_id}", "/api/jobs/{job_id}/cancel", "/api/results/{key}/files/{role}"} <= set(
        schema["paths"]
    )
    assert b"openapi.json" in server.request("/api").body


def test_simultaneous_uploads_are_not_confused(server, make_scan):
    """Each client gets its own scan back."""
    scans, jobs = {seed: make_scan(seed) for seed in range(1, 4)}, {}

    def client(seed):
        jobs[seed] = server.upload(scans[seed]).json

    threads = [threading.Thread(target=client, args=(seed,)) for seed in scans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    some = "&".join(f"id={job['id']}" for job in jobs.values())
    places = sorted(job["ahead"] for job in server.request(f"/api/jobs?{some}").json)
    assert places in ([0, 1, 2], [0, 0, 1])  # the first runs, or is done already
    for seed, job in jobs.items():
        assert server.wait(job["id"])["state"] == "done"
        assert server.request(f"/api/results/{job['id']}/files/scan-t2").body == scans[seed]["t2"].read_bytes()
    listed = server.request(f"/api/jobs?{some}&id={'0' * 32}").json
    assert {one["id"] for one in listed} == {job["id"] for job in jobs.values()}
    for job in jobs.values():
        assert server.request(f"/api/jobs/{job['id']}", "DELETE").status == 204


def test_a_deleted_result_is_removed_from_disk(server, make_scan, store_folder):
    job = server.upload(make_scan(9)).json
    assert server.wait(job["id"])["state"] == "done"
    assert (store_folder / "jobs" / job["id"]).is_dir()
    assert server.request(f"/api/jobs/{job['id']}", "DELETE").status == 204
    for path in (f"/api/jobs/{job['id']}", f"/api/results/{job['id']}", f"/api/results/{job['id']}/files/mask"):
        assert server.request(path).status == 404
    assert is_cleaned_up(store_folder)
    assert not (store_folder / "jobs" / job["id"]).exists()


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_missing_and_unknown_files(server, scan, store_folder):
    response = server.upload({"flair": scan["flair"]})
    assert (response.status, response.json["field"]) == (422, "t2")
    assert "needs flair, t2" in response.error
    response = server.upload({**scan, "t1": scan["t2"]})
    assert response.status == 400
    assert is_cleaned_up(store_folder)


def nifti(shape=(8, 8, 8), **header):
    image = nib.Nifti1Image(np.arange(np.prod(shape), dtype=np.int16).reshape(shape), np.eye(4))
    for name, value in header.items():
        image.header[name] = value
    return image.to_bytes()


def header_only(shape) -> bytes:
    """A header that declares this shape, without data."""
    header = nib.Nifti1Header()
    header.set_data_shape(shape)
    header.set_data_dtype(np.int16)
    header.set_sform(np.eye(4), 1)
    header["magic"], header["vox_offset"] = b"n+1", 352
    return header.binaryblock + bytes(4)


MALFORMED = {
    "empty": (b"", "empty"),
    "text": (b"hello, world", "not a NIfTI file"),
    "cut in the header": (nifti()[:200], "truncated"),
    "corrupt gzip": (gzip.compress(nifti())[:20] + b"x" * 200, "t2.nii.gz"),
    "a slice on another grid": (nifti((8, 8, 1)), "only 1 slices"),
    "four-dimensional": (nifti((4, 4, 4, 3)), "4D"),
    "a bomb of voxels": (header_only((500, 500, 500)), "more than this server accepts"),
    "a larger bomb": (gzip.compress(header_only((30000, 30000, 30000))), "more than"),
    "a slab on another grid": (nifti((8, 8, 9)), "covers only 8 mm"),
    "a zip": (b"PK\x03\x04" + bytes(100), "in the field for DICOM"),
}


@pytest.mark.parametrize(("content", "expected"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_file_is_refused_with_its_field(server, scan, store_folder, content, expected):
    response = server.upload({"flair": scan["flair"], "t2": content})
    assert (response.status, response.json["field"]) == (422, "t2")
    assert expected in response.error
    assert is_cleaned_up(store_folder)


def test_errors_in_the_data_are_found_in_the_queue(server, scan, store_folder):
    """A valid header with a gigabyte of zeros instead of a few thousand voxels, or with too few."""
    whole = gzip.decompress(scan["t2"].read_bytes())
    bomb = gzip.compress(whole) + 64 * gzip.compress(bytes(16 << 20))
    for content, expected in ((bomb, "more data than its header"), (gzip.compress(whole[:-50]), "truncated")):
        job = server.upload({"flair": scan["flair"], "t2": content}).json
        job = server.wait(job["id"])
        assert job["state"] == "failed"
        assert job["error"].startswith("t2.nii.gz: ")
        assert expected in job["error"]
        assert not (store_folder / "jobs" / job["id"] / "input").exists()
        assert server.request(f"/api/results/{job['id']}").status == 409


# ---- attacks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../../../etc/passwd", "/etc/passwd", "..\\..\\x", "a\x00b", "x" * 3000, "C:\\x"])
def test_file_names_with_paths(server, scan, store_folder, name):
    response = server.upload(scan, {"flair": name, "t2": name})
    assert response.status in (202, 400)
    if response.status == 202:
        place = store_folder / "jobs" / response.json["id"]
        assert {path.name for path in (place / "input").iterdir()} <= {"flair.nii.gz", "t2.nii.gz"}
        server.request(f"/api/jobs/{response.json['id']}", "DELETE")
    assert is_cleaned_up(store_folder)


@pytest.mark.parametrize("field", ["../x", "/etc/passwd", "", "flair/../../x", "job.json"])
def test_field_names_with_paths(server, scan, store_folder, field):
    assert server.upload({**scan, field: b"x"}).status == 400
    assert is_cleaned_up(store_folder)


@pytest.mark.parametrize(
    "path",
    ["/static/../viewer.css", "/static/..%2f..%2fserve_app.py", "/static/%2e%2e/%2e%2e/worker.py", "/../../etc/passwd",
     "/api/results/..%2f..%2f/files/mask", "/api/jobs/../../../etc", "/static//etc/passwd", "/docs", "/redoc"],
)  # fmt: skip
def test_paths_outside_the_static_files(server, path):
    response = send_raw(
        server, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n".encode()
    )
    assert response.startswith(b"HTTP/1.1 404"), response[:200]


@pytest.mark.parametrize("role", ["..%2fjob.json", "job.json", "mask.nii.gz", "scan-..", "input", "%2e%2e", "scan-"])
def test_unknown_roles_of_files(server, done_job, role):
    assert server.request(f"/api/results/{done_job['id']}/files/{role}").status == 404


def test_a_large_body_is_refused_before_it_is_sent(server, store_folder):
    head = (
        f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    )
    began = time.monotonic()
    response = send_raw(server, f"{head}Expect: 100-continue\r\nContent-Length: 4294967296\r\n\r\n".encode())
    assert response.startswith(b"HTTP/1.1 413"), response[:100]
    assert time.monotonic() - began < 5
    response = send_raw(server, f"{head}Content-Length: 4294967296\r\n\r\n--x\r\n".encode())
    assert response.startswith(b"HTTP/1.1 413"), response[:100]
    assert time.monotonic() - began < 15
    assert b"8 MiB" in response
    assert is_cleaned_up(store_folder)


def test_a_large_body_without_a_length_is_refused(server, store_folder):
    head = (
        f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    part = b'--x\r\nContent-Disposition: form-data; name="flair"; filename="f"\r\n\r\n'
    body = f"{len(part):x}\r\n".encode() + part + b"\r\n" + (b"100000\r\n" + bytes(1 << 20) + b"\r\n") * 10
    assert send_raw(server, head.encode() + body).startswith(b"HTTP/1.1 413")
    assert is_cleaned_up(store_folder)


def test_an_aborted_upload_is_removed(server, store_folder):
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.sendall(
            f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 100000\r\n"
            'Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\nContent-Disposition: form-data; name="flair"'
            "\r\n\r\nabc".encode()
        )
        time.sleep(0.1)
    assert is_cleaned_up(store_folder)


@pytest.mark.parametrize(
    ("kind", "body"),
    [("text/plain", b"x"), ("multipart/form-data", b"x"), ("multipart/form-data; boundary=y", b"garbage"),
     ("multipart/form-data; boundary=y", b""), ("multipart/form-data; boundary=" + "y" * 5000, b"x")],
)  # fmt: skip
def test_requests_that_are_not_a_form(server, store_folder, kind, body):
    response = server.request("/api/jobs", "POST", body, {"Content-Type": kind})
    assert response.status in (400, 415), response.body
    assert is_cleaned_up(store_folder)


def zipped(**files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def test_zips_without_a_study(server, store_folder):
    pytest.importorskip("pydicom")
    at_once = {
        b"PK\x03\x04 and no more": "not a zip",
        zipped(a=b"x" * 100)[:-10]: "not a zip",
    }
    for content, expected in at_once.items():
        response = server.upload({"dicom": content})
        assert (response.status, response.json["field"]) == (422, "dicom")
        assert expected in response.error
    in_the_queue = {
        zipped(**{"../../evil": b"x", "/etc/passwd": b"y"}): "no DICOM image",
        zipped(**{f"{n}.dcm": bytes(10 << 20) for n in range(8)}): "times its size",
        zipped(**{"a.dcm": bytes(128) + b"DICM" + b"\xff" * 500}): "a.dcm",
    }
    for content, expected in in_the_queue.items():
        job = server.wait(server.upload({"dicom": content}).json["id"])
        assert job["state"] == "failed"
        assert expected in job["error"]
        assert str(store_folder) not in job["error"]
    assert server.upload({"dicom": b"x"}, headers={"Origin": "https://evil.example"}).status == 403


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
    job = server.wait(server.upload({"dicom": study, "series": b"t2=4"}).json["id"])
    assert job["state"] == "done", job["error"]
    result = server.request(f"/api/results/{job['id']}").json
    assert {one["role"] for one in result["scans"]} == {"scan-flair", "scan-t2"}
    seg = pydicom.dcmread(io.BytesIO(server.request(f"/api/results/{job['id']}/files/dicom-seg").body))
    assert (seg.Modality, seg.PatientName) == ("SEG", "Secret^Sarah")
    scan = nib.Nifti1Image.from_bytes(server.request(f"/api/results/{job['id']}/files/scan-flair").body)
    assert scan.shape == (30, 32, 12)
    assert "Secret" not in server.log.read_text()
    assert {path.name for path in (store_folder / "jobs" / job["id"]).iterdir()} == {"job.json", "input", "result"}


def test_the_log_contains_no_personal_data(server, scan, store_folder):
    image = nib.Nifti1Image.from_filename(scan["flair"])
    image.header["descrip"] = SECRET.encode()
    named = {"flair": gzip.compress(image.to_bytes()), "t2": scan["t2"]}
    job = server.upload(named, {"flair": f"{SECRET}.nii.gz", "t2": f"{SECRET}_t2.nii.gz"}).json
    assert server.wait(job["id"])["state"] == "done"
    server.request(f"/api/results/{SECRET}/files/{SECRET}?name={SECRET}")
    server.upload({"flair": SECRET.encode(), "t2": SECRET.encode()}, {"flair": f"{SECRET}.nii"})
    log = server.log.read_text()
    assert SECRET not in log
    assert job["id"] not in log  # the id gives access to the scan
    for path in (store_folder / "jobs" / job["id"]).rglob("*"):
        assert SECRET not in path.name
        if path.is_file() and path.parent.name != "input":
            data = path.read_bytes()
            assert SECRET.encode() not in (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    assert "Traceback" not in log
