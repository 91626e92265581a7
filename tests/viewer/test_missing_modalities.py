"""Uploads of scans that lack modalities which the model's student may lack."""

import io

import pytest

from tests.optional_toys import save_model, scan_files


@pytest.fixture(scope="module")
def optional_server(start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("optional")
    return start("serve", save_model(folder / "model"), "--out", folder / "store", "--device", "cpu")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return scan_files(tmp_path_factory.mktemp("scan"))


def test_optional_files_may_be_left_out(optional_server, files):
    status = optional_server.request("/api/status").json
    assert (status["modalities"], status["optional"]) == (["flair", "t1", "t2"], ["t1", "t2"])
    response = optional_server.upload({"flair": files["flair"]})
    assert response.status == 202, response.error
    job = optional_server.wait(response.json["id"])
    assert job["state"] == "done", job["error"]
    assert job["found"]["missing_modalities"] == ["t1", "t2"]
    result = optional_server.request(f"/api/results/{job['id']}").json
    assert result["missing_modalities"] == ["t1", "t2"]
    assert [one["role"] for one in result["scans"]] == ["scan-flair"]


def test_a_needed_file_is_not_optional(optional_server, files):
    response = optional_server.upload({"t2": files["t2"]})
    assert (response.status, response.json["field"]) == (422, "flair")
    assert "the model needs flair; optional: t1, t2" in response.error


def test_the_form_is_described(optional_server):
    form = optional_server.request("/openapi.json").json["paths"]["/api/jobs"]["post"]["requestBody"]["content"]
    parts = form["multipart/form-data"]["schema"]["properties"]
    assert [name for name, part in parts.items() if "optional" in part["description"]] == ["t1", "t2"]


def test_a_dicom_study_without_an_optional_series(optional_server, tmp_path):
    pydicom = pytest.importorskip("pydicom")
    from tests import dicom_toys

    flair = dicom_toys.Series(dicom_toys.head(12, 32, 30), SeriesNumber=3, SeriesDescription="AX T2 FLAIR")
    study = dicom_toys.zipped(flair.save(tmp_path / "study"), tmp_path / "a.zip")
    job = optional_server.wait(optional_server.upload({"dicom": study}).json["id"])
    assert job["state"] == "done", job["error"]
    assert job["found"]["missing_modalities"] == ["t1", "t2"]
    seg = optional_server.request(f"/api/results/{job['id']}/files/dicom-seg").body
    assert pydicom.dcmread(io.BytesIO(seg)).ContentDescription.endswith("without T1, T2")
