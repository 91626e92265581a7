"""Uploads in pieces, and a first look at them, without a server."""

import asyncio
import io
import shutil
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("python_multipart", reason="the extra 'serve' is not installed")

from anofpdm.errors import AnoFPDMError, ScanError
from anofpdm.viewer.dicom import series_given
from anofpdm.viewer.limits import Limits
from anofpdm.viewer.looks import look_at_zip
from anofpdm.viewer.refusals import RefusalError
from anofpdm.viewer.uploads import Receiver, check_declared, receive

BODY = (
    b'--x\r\nContent-Disposition: form-data; name="flair"; filename="../../evil"\r\nContent-Type: a/b\r\n\r\n'
    b"one\r\n--y\r\n\r\ntwo\r\n"
    b"--x\r\ncontent-disposition: form-data; name=\"t2\"; filename*=UTF-8''..%2Fevil\r\n\r\n\r\n"
    b'--x\r\nContent-Disposition: form-data; name="series"\r\n\r\n flair=3,\n t2=7 \r\n--x--\r\n'
)


async def pieces(body, cuts, wait=0.0):
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        await asyncio.sleep(wait)
        yield body[start:end]


def received(body, cuts, folder, limits=None, wait=0.0):
    receiver = Receiver(folder, ("flair", "t2"), b"x", limits or Limits())
    return asyncio.run(receive(pieces(body, cuts, wait), receiver, limits or Limits()))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cuts=st.lists(st.integers(0, len(BODY)), max_size=12).map(sorted))
def test_however_it_is_cut_the_same_files_arrive(tmp_path, cuts):
    shutil.rmtree(tmp_path / "in", ignore_errors=True)
    (tmp_path / "in").mkdir()
    got = received(BODY, cuts, tmp_path / "in")
    assert got.files["flair"].read_bytes() == b"one\r\n--y\r\n\r\ntwo"
    assert got.files["t2"].read_bytes() == b""
    assert got.series == "flair=3, t2=7"
    assert {path.name for path in (tmp_path / "in").iterdir()} == {"part-0", "part-1"}


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(max_size=300), at=st.integers(0, len(BODY)))
def test_garbage_is_refused_or_read_and_never_breaks(tmp_path, data, at):
    shutil.rmtree(tmp_path / "in", ignore_errors=True)
    (tmp_path / "in").mkdir()
    try:
        received(BODY[:at] + data + BODY[at:], [], tmp_path / "in")
    except RefusalError as refusal:
        assert refusal.status in (400, 413)
    assert {path.name for path in (tmp_path / "in").iterdir()} <= {"part-0", "part-1"}


def test_what_ends_too_early_is_refused(tmp_path):
    for end in (0, 10, 90, len(BODY) - 10):
        folder = tmp_path / str(end)
        folder.mkdir()
        with pytest.raises(RefusalError) as refusal:
            received(BODY[:end], [], folder)
        assert refusal.value.status == 400


def test_who_falls_silent_is_let_go(tmp_path):
    with pytest.raises(RefusalError) as refusal:
        received(BODY, [5], tmp_path, Limits(idle_seconds=0.05), wait=0.2)
    assert refusal.value.status == 408
    with pytest.raises(RefusalError) as refusal:
        received(BODY, list(range(1, 60)), tmp_path, Limits(upload_seconds=0.1), wait=0.01)
    assert refusal.value.status == 408


def test_a_large_upload_stays_on_disk(tmp_path):
    """Memory holds a piece of it at a time."""
    head = b'--x\r\nContent-Disposition: form-data; name="flair"; filename="f"\r\n\r\n'
    receiver = Receiver(tmp_path, ("flair",), b"x", Limits())
    most = 0

    async def body():
        nonlocal most
        yield head
        for _ in range(64):
            yield bytes(1 << 18)
            most = max(most, len(receiver._waiting))
        yield b"\r\n--x--\r\n"

    asyncio.run(receive(body(), receiver, Limits()))
    assert (tmp_path / "part-0").stat().st_size == 64 << 18
    assert most <= (1 << 20) + (1 << 18)


def test_a_full_disk_is_said_before_it_is_filled(tmp_path, monkeypatch):
    free = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: free)
    with pytest.raises(RefusalError) as refusal:
        check_declared("multipart/form-data; boundary=x", "10", tmp_path, Limits())
    assert refusal.value.status == 507


# ---- zips ------------------------------------------------------------------------------------------------------------


def zipped(path: Path, count=3, size=10):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(count):
            archive.writestr(f"{number}", bytes(size))
    return path


def test_a_plain_zip_passes(tmp_path):
    look_at_zip(zipped(tmp_path / "a.zip"), Path("a.zip"), Limits())


def test_a_zip_with_too_large_a_table_of_contents(tmp_path):
    path = zipped(tmp_path / "a.zip", 500)
    with pytest.raises(ScanError, match="table of contents"):
        look_at_zip(path, Path("a.zip"), Limits(zip_contents_bytes=1000))


def test_a_zip_that_unpacks_to_too_much(tmp_path):
    path = zipped(tmp_path / "a.zip", 3, 1 << 20)
    with pytest.raises(ScanError, match="unpacks to 3 MiB, and this server takes 2"):
        look_at_zip(path, Path("a.zip"), Limits(unpacked_bytes=2 << 20))


def test_the_long_kind_of_zip_cannot_hide_its_table(tmp_path, monkeypatch):
    """Where Python's reader believes a second record, so does the look at it."""
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    path = zipped(tmp_path / "a.zip", 300)
    data = path.read_bytes()
    assert b"PK\x06\x06" in data
    end = data.rindex(b"PK\x05\x06")
    path.write_bytes(data[: end + 12] + struct.pack("<L", 1) + data[end + 16 :])
    with pytest.raises(ScanError, match="table of contents"):
        look_at_zip(path, Path("a.zip"), Limits(zip_contents_bytes=1000))


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=200))
def test_what_is_no_zip_is_refused_in_words(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("z") / "a.zip"
    good = io.BytesIO()
    with zipfile.ZipFile(good, "w") as archive:
        archive.writestr("a", b"x")
    path.write_bytes(data + good.getvalue()[-40:])
    with pytest.raises(ScanError, match=r"a\.zip"):
        look_at_zip(path, Path("a.zip"), Limits())


def test_series_in_the_users_words():
    pytest.importorskip("pydicom")
    assert series_given("") == {}
    assert series_given("flair=3, t2=7") == {"flair": "3", "t2": "7"}
    assert series_given(" flair = Ax T2 FLAIR  t2=7;t1=1.2.3 ") == {"flair": "Ax T2 FLAIR", "t2": "7", "t1": "1.2.3"}
    with pytest.raises(AnoFPDMError):
        series_given("flair")
