"""The pages in a real browser, with real files; rendered pixels are checked."""

import io
import shutil
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from PIL import Image

from anofpdm.viewer.niivue import find_niivue

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
with_niivue = pytest.mark.skipif(find_niivue().path is None, reason=find_niivue().why_not)
FLAGS = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
READY = "body[data-ready]"
IGNORED = ("GPU stall", "status of 4")  # of software rendering, and errors that tests provoke


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def hold(make_hold):
    return make_hold()


@pytest.fixture(scope="module")
def serving(start, hold, model, tmp_path_factory):
    return start("serve", model, "--out", tmp_path_factory.mktemp("store"), held_by=hold)


@dataclass
class Opened:
    page: Any
    errors: list[str] = field(default_factory=list)
    foreign_requests: list[str] = field(default_factory=list)

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

    def assert_no_errors(self):
        assert [text for text in self.errors if not any(word in text for word in IGNORED)] == []
        assert self.foreign_requests == []

    def fits(self):
        return self.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def open_home(browser, server, **options) -> Opened:
    """In a context of its own: nothing is remembered from other tests."""
    context = browser.new_context(**{"viewport": {"width": 760, "height": 700}, **options})
    opened = Opened(context.new_page())
    home = f"http://127.0.0.1:{server.port}/"
    opened.page.set_default_timeout(45_000)
    opened.page.on("console", lambda message: opened.errors.append(message.text))
    opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.page.on(
        "request",
        lambda sent: sent.url.startswith((home, "blob:", "data:")) or opened.foreign_requests.append(sent.url),
    )
    opened.page.goto(home)
    opened.page.wait_for_selector(READY)
    return opened


@pytest.fixture
def open_page(browser):
    all_opened = []

    def open_and_remember(server, **options):
        all_opened.append(open_home(browser, server, **options))
        return all_opened[-1]

    yield open_and_remember
    for opened in all_opened:
        opened.assert_no_errors()
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
    for modality, path in make_scan(3).items():
        shutil.copy(path, tmp_path / f"anna_{modality}.nii.gz")
        page.set_input_files(f"#file-{modality}", tmp_path / f"anna_{modality}.nii.gz")
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
    page.once("dialog", lambda dialog: dialog.accept())
    page.click("#delete")
    page.wait_for_url("**/")
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
    first_result.assert_no_errors()


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
        for modality, path in scan.items():
            page.set_input_files(f"#file-{modality}", path)
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


def test_without_niivue_the_report_fills_the_window(start, results_folder, open_page, tmp_path):
    server = start("view", results_folder, env={"XDG_CACHE_HOME": str(tmp_path)})
    page = open_page(server).page
    page.click("#rows a >> nth=0")
    page.wait_for_selector(READY)
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
    playwright.expect(frame.locator("#which")).not_to_have_text(before)
    assert page.locator("#film").is_hidden()


def test_a_damaged_result_is_listed_with_the_reason(start, results_folder, open_page, tmp_path):
    shutil.copytree(results_folder, tmp_path / "results")
    (tmp_path / "results" / "p1" / "summary.json").write_text("[]")
    opened = open_page(start("view", tmp_path / "results"))
    rows = opened.page.locator("#rows tr")
    assert rows.nth(0).inner_text().split("\t") == ["p1", "Unreadable: summary.json: not a summary of anofpdm segment"]
    assert rows.nth(0).locator("a").count() == 0
    assert rows.nth(1).locator("a").count() == 1


def test_scans_of_another_browser_are_found(serving, hold, open_page, scan):
    hold.release()
    job = serving.upload(scan).json
    page = open_page(serving).page
    assert page.locator("#none").is_visible()
    page.click("#others summary")
    page.wait_for_selector(f"#other-scans #scan-{job['id']}[data-state=done]")
    page.click(f"#scan-{job['id']} .open")
    page.wait_for_selector(READY)
    assert page.text_content("h1") == job["name"]
    page.once("dialog", lambda dialog: dialog.accept())
    page.click("#delete")
    page.wait_for_url("**/")
    assert serving.request(f"/api/jobs/{job['id']}").status == 404


def test_a_foreign_report_has_no_access_to_the_server(start, results_folder, open_page, tmp_path):
    """Results from elsewhere can contain any page as report."""
    shutil.copytree(results_folder / "p1", tmp_path / "results" / "p1")
    (tmp_path / "results" / "p1" / "report.html").write_text(
        "<script>const show = (text) => { document.title = text; };"
        "fetch('/api/results').then(() => show('reached'), () => show('blocked'));"
        "try { localStorage.x = 1; show('stored'); } catch {}</script>"
    )
    server = start("view", tmp_path / "results")
    opened = open_page(server)
    key = server.request("/api/results").json[0]["key"]
    opened.page.goto(f"http://127.0.0.1:{server.port}/api/results/{key}/files/report")
    opened.wait_until("document.title === 'blocked'")
    assert opened.page.title() == "blocked"
    opened.errors.clear()  # messages of the browser about it


def test_the_api_page(serving, open_page):
    opened = open_page(serving)
    opened.page.click("text=API documentation")
    opened.page.wait_for_selector(READY)
    assert "/api/jobs/{job_id}/cancel" in opened.page.inner_text("#calls")
    assert opened.fits()


def test_login_with_a_token(start, results_folder, browser):
    server = start("view", results_folder, "--token", "a-very-long-token")
    page = browser.new_context().new_page()
    page.goto(f"http://127.0.0.1:{server.port}/scan")
    page.fill("#token", "a-very-long-token")
    page.click("button")
    page.wait_for_selector(READY)
    assert page.url == f"http://127.0.0.1:{server.port}/"
    assert page.locator("#rows tr").count() == 2
    page.context.close()
