"""The pages in a real browser, with real files; rendered pixels are checked."""

import io
import shutil
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from PIL import Image

from anofpdm.viewer.niivue import find_niivue
from tests.conftest import record_problems

with_niivue = pytest.mark.skipif(find_niivue().path is None, reason=find_niivue().why_not)
READY = "body[data-ready]"
TOKEN = "a-very-long-token"
IGNORED = ("GPU stall", "status of 4")  # of software rendering, and errors that tests provoke


@pytest.fixture(scope="module")
def browser_flags():
    """Volumes are drawn in software."""
    return ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


@pytest.fixture(scope="module")
def hold(make_hold):
    return make_hold()


@pytest.fixture(scope="module")
def serving(start, hold, model, tmp_path_factory):
    return start("serve", model, "--out", tmp_path_factory.mktemp("store"), held_by=hold)


@dataclass
class Opened:
    page: Any
    problems: list[str]

    def film(self, condition) -> np.ndarray:
        """[row, column, 3]: a screenshot that meets the condition; software rendering is slow."""
        for _ in range(80):
            screenshot = self.page.locator("#film").screenshot()
            film = np.asarray(Image.open(io.BytesIO(screenshot)).convert("RGB")).astype(int)
            if condition(film):
                return film
            self.page.wait_for_timeout(100)
        raise AssertionError("the expected image did not appear")

    def wait_until(self, condition):
        """Polls, because the pages' policy forbids the script that playwright uses to wait."""
        for _ in range(600):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never true: {condition}")

    def assert_no_problems(self):
        assert [text for text in self.problems if not any(word in text for word in IGNORED)] == []

    def fits(self):
        return self.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")

    def choose_files(self, files):
        for modality, path in files.items():
            self.page.set_input_files(f"#file-{modality}", path)

    def delete_scan(self):
        self.page.once("dialog", lambda dialog: dialog.accept())
        self.page.click("#delete")
        self.page.wait_for_url("**/")


def open_home(browser, server, **options) -> Opened:
    """In a context of its own: nothing is remembered from other tests."""
    page = browser.new_context(**{"viewport": {"width": 760, "height": 700}, **options}).new_page()
    home = f"http://127.0.0.1:{server.port}/"  # without the token in the address of the server
    opened = Opened(page, record_problems(page, home, "blob:", "data:"))
    page.set_default_timeout(45_000)
    page.goto(server.address)
    page.wait_for_selector(READY)
    return opened


@pytest.fixture
def open_page(browser):
    all_opened = []

    def open_and_remember(server, **options):
        all_opened.append(open_home(browser, server, **options))
        return all_opened[-1]

    yield open_and_remember
    for opened in all_opened:
        opened.assert_no_problems()
        opened.page.context.close()


def count_cyan(film):
    """Number of pixels coloured by the cyan mask."""
    return int(((film[..., 2] - film[..., 0]) > 40).sum())


def count_bright(film):
    return int((film.max(axis=-1) > 60).sum())


def count_different(film, other):
    return int((np.abs(film - other).max(axis=-1) > 30).sum())


@with_niivue
def test_upload_progress_result_download_and_delete(serving, hold, open_page, make_scan, tmp_path):
    hold.close()
    opened = open_page(serving)
    page = opened.page
    assert "Series on different grids, or of whole heads" in page.text_content("#needs")
    opened.choose_files(
        {name: shutil.copy(path, tmp_path / f"anna_{name}.nii.gz") for name, path in make_scan(3).items()}
    )
    page.click("#send")
    page.wait_for_selector("#scans li[data-state=running]")
    assert page.text_content("#scans .file") == "anna"
    opened.wait_until("(bar => bar && 0 < bar.value && bar.value < bar.max)(document.querySelector('#scans progress'))")
    assert "%" in page.text_content("#scans .state")
    hold.release()
    page.wait_for_selector("#scans li[data-state=done]")
    page.click("#scans .open")
    page.wait_for_selector(READY)
    assert page.text_content("h1") == "anna"
    opened.film(lambda film: count_bright(film) > 2000 and count_cyan(film) > 200)
    with page.expect_download() as saved:
        page.click("text=Mask (NIfTI)")
    assert saved.value.suggested_filename.endswith("_mask.nii.gz")
    opened.delete_scan()
    page.wait_for_selector("#none:not([hidden])")


@pytest.fixture(scope="module")
def first_result(view_server, browser):
    """The first result of the folder, opened once: software rendering takes seconds to begin."""
    opened = open_home(browser, view_server)
    opened.page.click("#rows a >> nth=0")
    opened.page.wait_for_selector(READY)
    yield opened
    opened.page.context.close()


@pytest.fixture
def volume(first_result):
    """In the axial view, with the mask and without the map."""
    first_result.page.click("label:has(input[value=axial])")
    first_result.page.check("#mask-on")
    first_result.page.uncheck("#map-on")
    yield first_result
    first_result.assert_no_problems()


@with_niivue
def test_overlays_can_be_switched(volume):
    drawn = volume.film(lambda film: count_bright(film) > 5000 and count_cyan(film) > 300)
    volume.page.uncheck("#mask-on")
    bare = volume.film(lambda film: count_cyan(film) < count_cyan(drawn) / 10)
    volume.page.check("#map-on")
    mapped = volume.film(lambda film: count_different(film, bare) > 300)
    volume.page.fill("#map", "100")
    volume.film(lambda film: count_different(film, mapped) > 100)
    assert volume.page.text_content("#map-value") == "100%"
    volume.page.uncheck("#map-on")
    volume.film(lambda film: count_different(film, bare) == 0)
    volume.page.check("#mask-on")
    volume.film(lambda film: count_different(film, drawn) == 0)


@with_niivue
def test_slices_scans_views_and_findings(volume):
    page = volume.page
    page.uncheck("#mask-on")
    page.fill("#slice", "2")
    low = volume.film(lambda film: count_bright(film) > 5000)
    page.fill("#slice", "7")
    middle = volume.film(lambda film: count_different(film, low) > 1000)
    assert "slice 7" in page.text_content("#where")
    page.focus("#slice")
    page.keyboard.press("ArrowRight")
    assert page.text_content("#slice-value") == "8"
    page.fill("#slice", "7")
    page.select_option("#modality", "scan-t2")
    before = volume.film(lambda film: count_different(film, middle) > 500)  # the same slice of another scan
    page.fill("#slice", "4")  # not that of the first finding
    for view in ("coronal", "planes", "solid", "all"):
        page.click(f"label:has(input[value={view}])")
        before = volume.film(
            lambda film, before=before: count_bright(film) > 1500 and count_different(film, before) > 1500
        )
    where = page.text_content("#where")
    page.click(".go >> nth=0")
    assert page.text_content("#where") != where


def test_errors_are_shown_at_their_field(server, open_page, scan, tmp_path):
    page = open_page(server).page
    page.click("#send")
    assert "Choose the files" in page.text_content("#error-form")
    page.set_input_files("#file-flair", scan["flair"])
    page.click("#send")
    assert "T2 file is missing" in page.text_content("#error-t2")
    (tmp_path / "bad_t2.nii.gz").write_text("hello, world")
    page.set_input_files("#file-t2", tmp_path / "bad_t2.nii.gz")
    page.click("#send")
    page.wait_for_selector("#error-t2:not([hidden])")
    assert "t2.nii: not a NIfTI file" in page.text_content("#error-t2")
    assert page.locator("#error-flair").is_hidden()
    assert page.evaluate("document.activeElement.id") == "file-t2"
    (tmp_path / "t2.nii.gz").write_bytes(scan["t2"].read_bytes()[:-400])
    page.set_input_files("#file-t2", tmp_path / "t2.nii.gz")
    page.click("#send")
    page.wait_for_selector("#scans li[data-state=failed]")
    assert "t2.nii.gz: truncated" in page.text_content("#scans .state")
    page.click("#scans .delete")
    page.wait_for_selector("#none:not([hidden])")


def test_dropped_files_are_assigned_to_modalities(serving, open_page):
    page = open_page(serving).page
    page.evaluate(
        """() => {
            const data = new DataTransfer();
            for (const name of ["p_T2w.nii.gz", "p_FLAIR.nii.gz", "notes.txt"]) data.items.add(new File(["x"], name));
            document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }"""
    )
    names = [page.evaluate(f"document.getElementById('file-{m}').files[0].name") for m in ("flair", "t2")]
    assert names == ["p_FLAIR.nii.gz", "p_T2w.nii.gz"]
    assert "notes.txt" in page.text_content("#error-form")


def test_queue_positions_and_cancel_on_a_phone(serving, hold, open_page, scan):
    hold.close()
    opened = open_page(serving, viewport={"width": 360, "height": 740})
    page = opened.page
    for _ in range(2):
        opened.choose_files(scan)
        page.click("#send")
        page.wait_for_selector("#file-flair:invalid, #slot-flair:not(.given)")
    page.wait_for_selector("#scans li[data-state=running]")
    assert "1 scan ahead" in page.text_content("#scans li[data-state=queued] .state")
    assert opened.fits()
    for _ in range(2):
        page.click("#scans li:not([data-state=cancelled]) .cancel >> nth=0")
        page.wait_for_timeout(200)
    opened.wait_until("document.querySelectorAll('#scans li[data-state=cancelled]').length === 2")
    assert serving.request("/api/status").json["waiting"] == 0


@with_niivue
def test_the_list_of_results_on_a_narrow_dark_screen(view_server, open_page):
    opened = open_page(view_server, viewport={"width": 340, "height": 700}, color_scheme="dark")
    page = opened.page
    assert page.locator("#rows tr").count() == 2
    page.fill("#search", "SUB-07")
    assert page.locator("#rows tr").count() == 1
    assert opened.fits()
    page.click("#rows a")
    page.wait_for_selector(READY)
    assert page.text_content("h1") == "sub-07_ses-1"
    assert opened.fits()
    opened.film(lambda film: count_bright(film) > 500)
    assert page.locator("#delete-row").is_hidden()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, background[4:-1].split(","))) < 150
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "back"


FOREIGN = (
    "<script>const show = (text) => { document.title = text; };"
    "fetch('/api/results').then(() => show('reached'), () => show('blocked'));"
    "try { localStorage.x = 1; show('stored'); } catch {}</script>"
)


@pytest.fixture(scope="module")
def unusual(start, results_folder, tmp_path_factory):
    """A server with a token and without niivue; of a result, a damaged one, and one whose report is a foreign page."""
    folder = tmp_path_factory.mktemp("unusual")
    for name in ("damaged", "foreign", "plain"):
        shutil.copytree(results_folder / "p1", folder / "results" / name)
    (folder / "results" / "damaged" / "summary.json").write_text("[]")
    (folder / "results" / "foreign" / "report.html").write_text(FOREIGN)
    return start("view", folder / "results", "--token", TOKEN, env={"XDG_CACHE_HOME": str(folder)})


def test_without_niivue_the_report_fills_the_window(unusual, open_page):
    page = open_page(unusual).page
    page.click("#rows a >> nth=1")
    page.wait_for_selector(READY)
    assert page.text_content("h1") == "plain"
    assert "'anofpdm serve --set-up' installs it with npm" in page.text_content("#why-not")
    assert page.locator("#volumes").is_hidden()
    window, report = page.viewport_size, page.locator("#slices").bounding_box()
    assert report["width"] == window["width"]
    assert report["height"] > 0.75 * window["height"]
    assert report["y"] + report["height"] == pytest.approx(window["height"], abs=1)
    assert page.locator("#report-files a").count() > 4
    frame = page.frame_locator("#slices")
    frame.locator("body[data-ready]").wait_for()
    before = frame.locator("#which").text_content()
    frame.locator("#next").press("Enter")  # a click can miss: the frame scrolls to #browser while it loads
    frame.locator(f"#which:not(:text-is('{before}'))").wait_for()
    assert page.locator("#film").is_hidden()


def test_a_damaged_result_is_listed_with_the_reason(unusual, open_page):
    rows = open_page(unusual).page.locator("#rows tr")
    reason = "Unreadable: summary.json: not a summary of anofpdm segment (Expected `object`, got `array`)"
    assert rows.nth(0).inner_text().split("\t") == ["damaged", reason]
    assert [rows.nth(number).locator("a").count() for number in range(3)] == [0, 1, 1]


def test_a_foreign_report_has_no_access_to_the_server(unusual, open_page):
    """Results from elsewhere can contain any page as report."""
    opened = open_page(unusual)
    key = unusual.request("/api/results", headers={"Authorization": f"Bearer {TOKEN}"}).json[1]["key"]
    opened.page.goto(f"http://127.0.0.1:{unusual.port}/api/results/{key}/files/report")
    opened.wait_until("document.title === 'blocked'")
    opened.problems.clear()  # messages of the browser about it


def test_scans_of_another_browser_are_found(serving, hold, open_page, scan):
    hold.release()
    job = serving.upload(scan).json
    opened = open_page(serving)
    page = opened.page
    assert page.locator("#none").is_visible()
    page.click("#others summary")
    page.wait_for_selector(f"#other-scans #scan-{job['id']}[data-state=done]")
    page.click(f"#scan-{job['id']} .open")
    page.wait_for_selector(READY)
    assert page.text_content("h1") == job["name"]
    opened.delete_scan()
    assert serving.request(f"/api/jobs/{job['id']}").status == 404


def test_the_api_page(serving, open_page):
    opened = open_page(serving)
    opened.page.click("text=API documentation")
    opened.page.wait_for_selector(READY)
    assert "/api/jobs/{job_id}/cancel" in opened.page.inner_text("#calls")
    assert opened.fits()


def test_login_with_a_token(unusual, browser):
    page = browser.new_context().new_page()
    page.goto(f"http://127.0.0.1:{unusual.port}/scan")
    page.fill("#token", TOKEN)
    page.click("button")
    page.wait_for_selector(READY)
    assert page.url == f"http://127.0.0.1:{unusual.port}/"
    assert page.locator("#rows tr").count() == 3
    page.context.close()
