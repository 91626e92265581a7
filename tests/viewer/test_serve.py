"""A server in a process of its own, met over real sockets: by people, by their mistakes, and by those who mean ill."""

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


def raw(server, request: bytes, *, wait=10.0) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as peer:
        peer.sendall(request)
        answer = b""
        while piece := peer.recv(65536):
            answer += piece
            if b"\r\n\r\n" in answer and b'"field"' in answer:
                break
        return answer


def left_over(kept):
    return [path for name in ("incoming", "trash") for path in (kept / name).iterdir()]


def settled(kept):
    """The server cleans up after it has answered."""
    until = time.monotonic() + 5
    while left_over(kept) and time.monotonic() < until:
        time.sleep(0.02)
    return not left_over(kept)


# ---- the story -------------------------------------------------------------------------------------------------------


def test_a_scan_becomes_a_result(server, scan, done):
    assert done["state"] == "done", done["error"]
    assert done["found"]["slices"] > 5
    result = server.ask(f"/api/results/{done['id']}").json
    assert {one["role"] for one in result["scans"]} == {"scan-flair", "scan-t2"}
    roles = {one["role"]: one for one in result["files"]}
    assert set(roles) == {"mask", "map", "findings", "slices", "summary", "picture", "report"}
    mask = nib.Nifti1Image.from_bytes(gzip.decompress(server.ask(roles["mask"]["url"]).body))
    np.testing.assert_array_equal(mask.affine, nib.Nifti1Image.from_filename(scan["flair"]).affine)
    assert server.ask(result["scans"][0]["url"]).body == scan["flair"].read_bytes()
    assert b"<!doctype html>" in server.ask(roles["report"]["url"]).body
    assert result["volume_ml"] == done["found"]["volume_ml"]


def test_nothing_tells_a_path_of_the_server(server, done, kept):
    urls = [one["url"] for one in server.ask(f"/api/results/{done['id']}").json["files"]]
    for url in [f"/api/jobs/{done['id']}", f"/api/results/{done['id']}", "/api/status", *urls]:
        assert str(kept).encode() not in server.ask(url).body
    said = json.loads(server.ask(f"/api/results/{done['id']}/files/summary").body)
    assert said["inputs"]["flair"]["file"] == "flair.nii.gz"


def test_the_api_is_documented(server):
    told = server.ask("/openapi.json").json
    parts = told["paths"]["/api/jobs"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    assert {"flair", "t2"} <= set(parts)
    assert {"/api/jobs/{job_id}", "/api/jobs/{job_id}/cancel", "/api/results/{key}/files/{role}"} <= set(told["paths"])
    assert b"openapi.json" in server.ask("/api").body


def test_several_at_once_are_told_apart(server, make_scan):
    """Each client gets its own scan back, whoever came first."""
    scans, jobs = {seed: make_scan(seed) for seed in range(1, 4)}, {}

    def client(seed):
        jobs[seed] = server.upload(scans[seed]).json

    threads = [threading.Thread(target=client, args=(seed,)) for seed in scans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    some = "&".join(f"id={job['id']}" for job in jobs.values())
    places = sorted(job["ahead"] for job in server.ask(f"/api/jobs?{some}").json)
    assert places in ([0, 1, 2], [0, 0, 1])  # the first runs, or is done already
    for seed, job in jobs.items():
        assert server.wait(job["id"])["state"] == "done"
        assert server.ask(f"/api/results/{job['id']}/files/scan-t2").body == scans[seed]["t2"].read_bytes()
    listed = server.ask(f"/api/jobs?{some}&id={'0' * 32}").json
    assert {one["id"] for one in listed} == {job["id"] for job in jobs.values()}
    for job in jobs.values():
        assert server.ask(f"/api/jobs/{job['id']}", "DELETE").status == 204


def test_a_deleted_result_is_gone_from_disk(server, make_scan, kept):
    job = server.upload(make_scan(9)).json
    assert server.wait(job["id"])["state"] == "done"
    assert (kept / "jobs" / job["id"]).is_dir()
    assert server.ask(f"/api/jobs/{job['id']}", "DELETE").status == 204
    for path in (f"/api/jobs/{job['id']}", f"/api/results/{job['id']}", f"/api/results/{job['id']}/files/mask"):
        assert server.ask(path).status == 404
    assert settled(kept)
    assert not (kept / "jobs" / job["id"]).exists()


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_what_is_missing_is_named(server, scan, kept):
    answer = server.upload({"flair": scan["flair"]})
    assert (answer.status, answer.json["field"]) == (422, "t2")
    assert "needs flair, t2" in answer.said
    answer = server.upload({**scan, "t1": scan["t2"]})
    assert answer.status == 400
    assert settled(kept)


def nifti(shape=(8, 8, 8), **header):
    image = nib.Nifti1Image(np.arange(np.prod(shape), dtype=np.int16).reshape(shape), np.eye(4))
    for name, value in header.items():
        image.header[name] = value
    return image.to_bytes()


def declaring(shape) -> bytes:
    """A header that promises so many voxels, and nothing behind it."""
    header = nib.Nifti1Header()
    header.set_data_shape(shape)
    header.set_data_dtype(np.int16)
    header.set_sform(np.eye(4), 1)
    header["magic"], header["vox_offset"] = b"n+1", 352
    return header.binaryblock + bytes(4)


MALFORMED = {
    "empty": (b"", "empty"),
    "text": (b"hello, world", "not a NIfTI file"),
    "cut in the header": (nifti()[:200], "cut short"),
    "corrupt gzip": (gzip.compress(nifti())[:20] + b"x" * 200, "t2.nii.gz"),
    "two-dimensional": (nifti((8, 8, 1)), "single 2D image"),
    "four-dimensional": (nifti((4, 4, 4, 3)), "4D"),
    "a bomb of voxels": (declaring((500, 500, 500)), "more than this server takes"),
    "a larger bomb": (gzip.compress(declaring((30000, 30000, 30000))), "more than"),
    "another grid": (nifti((8, 8, 9)), "not on the grid of flair.nii.gz"),
    "a zip": (b"PK\x03\x04" + bytes(100), "place of its own"),
}


@pytest.mark.parametrize(("content", "said"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_file_is_refused_beside_its_field(server, scan, kept, content, said):
    answer = server.upload({"flair": scan["flair"], "t2": content})
    assert (answer.status, answer.json["field"]) == (422, "t2")
    assert said in answer.said
    assert settled(kept)


def test_what_only_reading_shows_fails_in_the_queue(server, scan, kept):
    """A header as it should be, and a gigabyte of zeros where a few thousand voxels were promised; or too few."""
    whole = gzip.decompress(scan["t2"].read_bytes())
    bomb = gzip.compress(whole) + 64 * gzip.compress(bytes(16 << 20))
    for content, said in ((bomb, "more data than its header"), (gzip.compress(whole[:-50]), "cut short")):
        job = server.upload({"flair": scan["flair"], "t2": content}).json
        job = server.wait(job["id"])
        assert job["state"] == "failed"
        assert job["error"].startswith("t2.nii.gz: ")
        assert said in job["error"]
        assert not (kept / "jobs" / job["id"] / "input").exists()
        assert server.ask(f"/api/results/{job['id']}").status == 409


# ---- ill will --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../../../etc/passwd", "/etc/passwd", "..\\..\\x", "a\x00b", "x" * 3000, "C:\\x"])
def test_a_file_name_leads_nowhere(server, scan, kept, name):
    answer = server.upload(scan, {"flair": name, "t2": name})
    assert answer.status in (202, 400)
    if answer.status == 202:
        place = kept / "jobs" / answer.json["id"]
        assert {path.name for path in (place / "input").iterdir()} <= {"flair.nii.gz", "t2.nii.gz"}
        server.ask(f"/api/jobs/{answer.json['id']}", "DELETE")
    assert settled(kept)


@pytest.mark.parametrize("field", ["../x", "/etc/passwd", "", "flair/../../x", "job.json"])
def test_a_field_name_leads_nowhere(server, scan, kept, field):
    assert server.upload({**scan, field: b"x"}).status == 400
    assert settled(kept)


@pytest.mark.parametrize(
    "path",
    ["/static/../viewer.css", "/static/..%2f..%2fserve_app.py", "/static/%2e%2e/%2e%2e/worker.py", "/../../etc/passwd",
     "/api/results/..%2f..%2f/files/mask", "/api/jobs/../../../etc", "/static//etc/passwd", "/docs", "/redoc"],
)  # fmt: skip
def test_a_path_leads_nowhere(server, path):
    answer = raw(server, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404"), answer[:200]


@pytest.mark.parametrize("role", ["..%2fjob.json", "job.json", "mask.nii.gz", "scan-..", "input", "%2e%2e", "scan-"])
def test_a_file_of_a_result_is_asked_for_by_its_role_alone(server, done, role):
    assert server.ask(f"/api/results/{done['id']}/files/{role}").status == 404


def test_a_body_of_four_gigabytes_is_refused_before_it_is_sent(server, kept):
    head = (
        f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    )
    began = time.monotonic()
    answer = raw(server, f"{head}Expect: 100-continue\r\nContent-Length: 4294967296\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 413"), answer[:100]
    assert time.monotonic() - began < 5
    answer = raw(server, f"{head}Content-Length: 4294967296\r\n\r\n--x\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 413"), answer[:100]
    assert time.monotonic() - began < 15
    assert b"8 MiB" in answer
    assert settled(kept)


def test_a_body_that_hides_its_length_is_cut_off(server, kept):
    head = (
        f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    part = b'--x\r\nContent-Disposition: form-data; name="flair"; filename="f"\r\n\r\n'
    body = f"{len(part):x}\r\n".encode() + part + b"\r\n" + (b"100000\r\n" + bytes(1 << 20) + b"\r\n") * 10
    assert raw(server, head.encode() + body).startswith(b"HTTP/1.1 413")
    assert settled(kept)


def test_a_client_that_leaves_in_the_middle_leaves_nothing(server, kept):
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.sendall(
            f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 100000\r\n"
            'Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\nContent-Disposition: form-data; name="flair"'
            "\r\n\r\nabc".encode()
        )
        time.sleep(0.1)
    assert settled(kept)


@pytest.mark.parametrize(
    ("kind", "body"),
    [("text/plain", b"x"), ("multipart/form-data", b"x"), ("multipart/form-data; boundary=y", b"garbage"),
     ("multipart/form-data; boundary=y", b""), ("multipart/form-data; boundary=" + "y" * 5000, b"x")],
)  # fmt: skip
def test_what_is_no_form_is_refused(server, kept, kind, body):
    answer = server.ask("/api/jobs", "POST", body, {"Content-Type": kind})
    assert answer.status in (400, 415), answer.body
    assert settled(kept)


def zipped(**files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def test_zips_that_are_no_study(server, kept):
    pytest.importorskip("pydicom")
    at_once = {
        b"PK\x03\x04 and no more": "not a zip",
        zipped(a=b"x" * 100)[:-10]: "not a zip",
    }
    for content, said in at_once.items():
        answer = server.upload({"dicom": content})
        assert (answer.status, answer.json["field"]) == (422, "dicom")
        assert said in answer.said
    in_the_queue = {
        zipped(**{"../../evil": b"x", "/etc/passwd": b"y"}): "no DICOM image",
        zipped(**{f"{n}.dcm": bytes(10 << 20) for n in range(8)}): "times its size",
        zipped(**{"a.dcm": bytes(128) + b"DICM" + b"\xff" * 500}): "a.dcm",
    }
    for content, said in in_the_queue.items():
        job = server.wait(server.upload({"dicom": content}).json["id"])
        assert job["state"] == "failed"
        assert said in job["error"]
        assert str(kept) not in job["error"]
    assert server.upload({"dicom": b"x"}, headers={"Origin": "https://evil.example"}).status == 403


def test_a_dicom_study_comes_back_as_dicom_seg(server, kept, tmp_path):
    """Two series called alike, so that the user has to say which; in a zip with a path that leads out of it."""
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
    answer = server.upload({"dicom": study, "series": b"t2"})
    assert (answer.status, answer.json["field"]) == (422, "series")
    job = server.wait(server.upload({"dicom": study, "series": b"t2=4"}).json["id"])
    assert job["state"] == "done", job["error"]
    result = server.ask(f"/api/results/{job['id']}").json
    assert {one["role"] for one in result["scans"]} == {"scan-flair", "scan-t2"}
    seg = pydicom.dcmread(io.BytesIO(server.ask(f"/api/results/{job['id']}/files/dicom-seg").body))
    assert (seg.Modality, seg.PatientName) == ("SEG", "Secret^Sarah")
    scan = nib.Nifti1Image.from_bytes(server.ask(f"/api/results/{job['id']}/files/scan-flair").body)
    assert scan.shape == (30, 32, 12)
    assert "Secret" not in server.log.read_text()
    assert {path.name for path in (kept / "jobs" / job["id"]).iterdir()} == {"job.json", "input", "result"}


def test_the_log_names_nobody(server, scan, kept):
    image = nib.Nifti1Image.from_filename(scan["flair"])
    image.header["descrip"] = SECRET.encode()
    named = {"flair": gzip.compress(image.to_bytes()), "t2": scan["t2"]}
    job = server.upload(named, {"flair": f"{SECRET}.nii.gz", "t2": f"{SECRET}_t2.nii.gz"}).json
    assert server.wait(job["id"])["state"] == "done"
    server.ask(f"/api/results/{SECRET}/files/{SECRET}?name={SECRET}")
    server.upload({"flair": SECRET.encode(), "t2": SECRET.encode()}, {"flair": f"{SECRET}.nii"})
    log = server.log.read_text()
    assert SECRET not in log
    assert job["id"] not in log  # who has it, has the scan
    for path in (kept / "jobs" / job["id"]).rglob("*"):
        assert SECRET not in path.name
        if path.is_file() and path.parent.name != "input":
            data = path.read_bytes()
            assert SECRET.encode() not in (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    assert "Traceback" not in log
