"""Receiving and checking uploads, without a server."""

import asyncio
import shutil
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

pytest.importorskip("python_multipart", reason="the extra 'serve' is not installed")

from anofpdm.errors import AnoFPDMError, ScanError
from anofpdm.viewer.limits import Limits, RequestError
from anofpdm.viewer.multipart import receive_form
from anofpdm.viewer.uploads import check_zip
from anofpdm.viewer.worker import parse_series_text

HEADERS = Headers({"content-type": "multipart/form-data; boundary=x"})
BODY = (
    b'--x\r\nContent-Disposition: form-data; name="flair"; filename="../../evil"\r\nContent-Type: a/b\r\n\r\n'
    b"one\r\n--y\r\n\r\ntwo\r\n"
    b"--x\r\ncontent-disposition: form-data; name=\"t2\"; filename*=UTF-8''..%2Fevil\r\n\r\n\r\n"
    b'--x\r\nContent-Disposition: form-data; name="series"\r\n\r\n flair=3,\n t2=7 \r\n--x--\r\n'
)


def receive(body, folder, cuts=(), limits=None, wait=0.0):
    async def chunks():
        for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
            await asyncio.sleep(wait)
            yield body[start:end]

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return asyncio.run(receive_form(HEADERS, chunks(), folder, ("flair", "t2"), limits or Limits()))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, len(BODY)), max_size=12).map(sorted))
def test_files_do_not_depend_on_the_chunks(tmp_path, cuts):
    files, series = receive(BODY, tmp_path / "in", cuts)
    assert files["flair"].read_bytes() == b"one\r\n--y\r\n\r\ntwo"
    assert files["t2"].read_bytes() == b""
    assert series == "flair=3, t2=7"
    assert {path.name for path in (tmp_path / "in").iterdir()} == {"part-0", "part-1"}


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), at=st.integers(0, len(BODY)))
def test_random_bytes_are_refused_or_read(tmp_path, data, at):
    try:
        receive(BODY[:at] + data + BODY[at:], tmp_path / "in")
    except RequestError as error:
        assert error.status in (400, 413)
    assert {path.name for path in (tmp_path / "in").iterdir()} <= {"part-0", "part-1", "part-2"}


@pytest.mark.parametrize(
    ("body", "cuts", "limits", "wait", "status"),
    [
        *((BODY[:end], [], Limits(), 0, 400) for end in (0, 10, 90, len(BODY) - 10)),  # truncated
        (BODY, [5], Limits(idle_seconds=0.05), 0.2, 408),
        (BODY, list(range(1, 60)), Limits(upload_seconds=0.1), 0.01, 408),
        (BODY.replace(b"flair=3", b"x" * 3000), [], Limits(), 0, 413),
        (BODY, [], Limits(upload_bytes=100), 0, 413),
        (BODY, [], Limits(free_bytes=1 << 60), 0, 507),  # the disk is nearly full
        (BODY.replace(b'"t2"', b'"flair"'), [], Limits(), 0, 400),
    ],
)
def test_refused_uploads(tmp_path, body, cuts, limits, wait, status):
    with pytest.raises(RequestError) as error:
        receive(body, tmp_path / "in", cuts, limits, wait)
    assert error.value.status == status


def test_a_large_upload_is_not_held_in_memory(tmp_path):
    """Memory holds a few chunks at a time."""
    head = b'--x\r\nContent-Disposition: form-data; name="flair"; filename="f"\r\n\r\n'

    async def body():
        yield head
        for _ in range(64):
            yield bytes(1 << 18)
        yield b"\r\n--x--\r\n"

    tracemalloc.start()
    asyncio.run(receive_form(HEADERS, body(), tmp_path, ("flair",), Limits()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "part-0").stat().st_size == 64 << 18
    assert peak < 8 << 18


# ---- zips ------------------------------------------------------------------------------------------------------------


def zipped(path: Path, count=3, size=10):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(count):
            archive.writestr(f"{number}", bytes(size))
    return path


@pytest.mark.parametrize(
    ("count", "size", "limits", "message"),
    [
        (500, 10, Limits(zip_directory_bytes=1000), "central directory"),
        (3, 1 << 20, Limits(unpacked_bytes=2 << 20), "unpacks to 3 MiB, more than the 2 MiB"),
    ],
)
def test_a_zip_that_is_too_large(tmp_path, count, size, limits, message):
    path = zipped(tmp_path / "a.zip", count, size)
    check_zip(path, Limits())
    with pytest.raises(ScanError, match=message):
        check_zip(path, limits)


def test_a_zip64_with_a_large_central_directory(tmp_path, monkeypatch):
    """The zip64 record, which zipfile uses, is checked too."""
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    path = zipped(tmp_path / "a.zip", 300)
    data = path.read_bytes()
    assert b"PK\x06\x06" in data
    end = data.rindex(b"PK\x05\x06")
    path.write_bytes(data[: end + 12] + struct.pack("<L", 1) + data[end + 16 :])
    with pytest.raises(ScanError, match="central directory"):
        check_zip(path, Limits(zip_directory_bytes=1000))


def test_parse_series_text():
    pytest.importorskip("pydicom")
    assert parse_series_text("") == {}
    assert parse_series_text("flair=3, t2=7") == {"flair": "3", "t2": "7"}
    words = {"flair": "Ax T2 FLAIR", "t2": "7", "t1": "1.2.3"}
    assert parse_series_text(" flair = Ax T2 FLAIR  t2=7;t1=1.2.3 ") == words
    with pytest.raises(AnoFPDMError):
        parse_series_text("flair")
