"""The pages as people have them: a real browser, real files, and pixels that are looked at."""

import io
import shutil
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from PIL import Image

from anofpdm.viewer.niivue import niivue

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
with_niivue = pytest.mark.skipif(niivue().path is None, reason=niivue().why_not)
FLAGS = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
QUIET = ("GPU stall", "status of 4")  # of the software that draws, and refusals that a test asked for


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def serving(start, slow_model, tmp_path_factory):
    return start("serve", slow_model, "--out", tmp_path_factory.mktemp("kept"), "--device", "cpu")


@dataclass
class Opened:
    page: Any
    troubles: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def go(self, url):
        self.page.goto(url)
        self.page.wait_for_selector("body[data-ready]")

    def film(self, so) -> np.ndarray:
        """[row, column, 3]: what is drawn, as the eye has it, once it is so; software draws slowly."""
        for _ in range(80):
            picture = self.page.locator("#film").screenshot()
            film = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)
            if so(film):
                return film
            self.page.wait_for_timeout(100)
        raise AssertionError("what should be seen is not")

    def until(self, so):
        """Asked from outside: the pages' policy forbids what playwright's own waiting does inside."""
        for _ in range(600):
            if self.page.evaluate(so):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never: {so}")

    def fits(self):
        return self.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.fixture
def open_page(browser):
    contexts, all_opened = [], []

    def open_it(server, **options):
        options = {"viewport": {"width": 760, "height": 700}, **options}
        contexts.append(browser.new_context(**options))
        opened = Opened(contexts[-1].new_page())
        all_opened.append(opened)
        home = f"http://127.0.0.1:{server.port}/"
        opened.page.set_default_timeout(45_000)
        opened.page.on("console", lambda said: opened.troubles.append(said.text))
        opened.page.on("pageerror", lambda error: opened.troubles.append(str(error)))
        opened.page.on(
            "request",
            lambda one: one.url.startswith((home, "blob:", "data:")) or opened.strangers.append(one.url),
        )
        opened.go(home)
        return opened

    yield open_it
    for opened in all_opened:
        assert [said for said in opened.troubles if not any(word in said for word in QUIET)] == []
        assert opened.strangers == []
    for context in contexts:
        context.close()


def bluish(film):
    """Pixels that a mask of cyan has coloured."""
    return int(((film[..., 2] - film[..., 0]) > 40).sum())


def lit(film):
    return int((film.max(axis=-1) > 60).sum())


def apart(one, other):
    return int((np.abs(one - other).max(axis=-1) > 30).sum())


@with_niivue
def test_upload_progress_result_download_and_delete(serving, open_page, make_scan, tmp_path):
    opened = open_page(serving)
    page = opened.page
    for modality, path in make_scan(3, (32, 36, 40)).items():  # long enough to be seen at work on a fast machine too
        shutil.copy(path, tmp_path / f"anna_{modality}.nii.gz")
        page.set_input_files(f"#file-{modality}", tmp_path / f"anna_{modality}.nii.gz")
    page.click("#send")
    page.wait_for_selector("#scans li[data-state=running]")
    assert page.text_content("#scans .file") == "anna"
    opened.until("(bar => bar && 0 < bar.value && bar.value < bar.max)(document.querySelector('#scans progress'))")
    assert "%" in page.text_content("#scans .state")
    page.wait_for_selector("#scans li[data-state=done]")
    page.click("#scans .look")
    page.wait_for_selector("body[data-ready]")
    assert page.text_content("h1") == "anna"
    opened.film(lambda film: lit(film) > 2000 and bluish(film) > 200)
    with page.expect_download() as saved:
        page.click("text=Mask (NIfTI)")
    assert saved.value.suggested_filename.endswith("_mask.nii.gz")
    page.once("dialog", lambda dialog: dialog.accept())
    page.click("#delete")
    page.wait_for_url("**/")
    page.wait_for_selector("#none:not([hidden])")


@pytest.fixture
def volume(viewing, open_page):
    """The first result of the folder, its axial plane alone."""
    opened = open_page(viewing)
    opened.page.click("#rows a >> nth=0")
    opened.page.wait_for_selector("body[data-ready]")
    opened.page.click("label:has(input[value=axial])")
    opened.page.uncheck("#map-on")
    return opened


@with_niivue
def test_overlays_are_drawn_and_taken_away(volume):
    drawn = volume.film(lambda film: lit(film) > 5000 and bluish(film) > 300)
    volume.page.uncheck("#mask-on")
    bare = volume.film(lambda film: bluish(film) < bluish(drawn) / 10)
    volume.page.check("#map-on")
    mapped = volume.film(lambda film: apart(film, bare) > 300)
    volume.page.fill("#map", "100")
    volume.film(lambda film: apart(film, mapped) > 100)
    assert volume.page.text_content("#map-said") == "100%"
    volume.page.uncheck("#map-on")
    volume.film(lambda film: apart(film, bare) == 0)
    volume.page.check("#mask-on")
    volume.film(lambda film: apart(film, drawn) == 0)


@with_niivue
def test_slices_scans_views_and_findings(volume):
    page = volume.page
    page.uncheck("#mask-on")
    page.fill("#slice", "2")
    low = volume.film(lambda film: lit(film) > 5000)
    page.fill("#slice", "7")
    middle = volume.film(lambda film: apart(film, low) > 1000)
    assert "slice 7" in page.text_content("#where")
    page.focus("#slice")
    page.keyboard.press("ArrowRight")
    assert page.text_content("#slice-said") == "8"
    page.fill("#slice", "7")
    page.select_option("#modality", "scan-t2")
    before = volume.film(lambda film: apart(film, middle) > 500)  # the same slice of another scan
    for view in ("coronal", "planes", "solid", "all"):
        page.click(f"label:has(input[value={view}])")
        before = volume.film(lambda film, before=before: lit(film) > 1500 and apart(film, before) > 1500)
    where = page.text_content("#where")
    page.click(".go >> nth=0")
    assert page.text_content("#where") != where


def test_errors_stand_where_they_belong(serving, open_page, scan, tmp_path):
    opened = open_page(serving)
    page = opened.page
    page.click("#send")
    assert "Choose the files" in page.text_content("#wrong-form")
    page.set_input_files("#file-flair", scan["flair"])
    page.click("#send")
    assert "T2 is missing" in page.text_content("#wrong-t2")
    (tmp_path / "bad_t2.nii.gz").write_text("hello, world")
    page.set_input_files("#file-t2", tmp_path / "bad_t2.nii.gz")
    page.click("#send")
    page.wait_for_selector("#wrong-t2:not([hidden])")
    assert "t2.nii: not a NIfTI file" in page.text_content("#wrong-t2")
    assert page.locator("#wrong-flair").is_hidden()
    assert page.evaluate("document.activeElement.id") == "file-t2"
    cut = scan["t2"].read_bytes()[:-400]
    (tmp_path / "t2.nii.gz").write_bytes(cut)
    page.set_input_files("#file-t2", tmp_path / "t2.nii.gz")
    page.click("#send")
    page.wait_for_selector("#scans li[data-state=failed]")
    assert "t2.nii.gz: cut short" in page.text_content("#scans .state")
    page.click("#scans .delete")
    page.wait_for_selector("#none:not([hidden])")


def test_dropped_files_find_their_places(serving, open_page):
    opened = open_page(serving)
    page = opened.page
    page.evaluate(
        """() => {
            const data = new DataTransfer();
            for (const name of ["p_T2w.nii.gz", "p_FLAIR.nii.gz", "notes.txt"]) data.items.add(new File(["x"], name));
            document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }"""
    )
    names = [page.evaluate(f"document.getElementById('file-{m}').files[0].name") for m in ("flair", "t2")]
    assert names == ["p_FLAIR.nii.gz", "p_T2w.nii.gz"]
    assert "notes.txt" in page.text_content("#wrong-form")


def test_places_in_the_queue_and_cancel_on_a_phone(serving, open_page, scan):
    opened = open_page(serving, viewport={"width": 360, "height": 740})
    page = opened.page
    for _ in range(2):
        for modality, path in scan.items():
            page.set_input_files(f"#file-{modality}", path)
        page.click("#send")
        page.wait_for_selector("#file-flair:invalid, #slot-flair:not(.given)")
    page.wait_for_selector("#scans li[data-state=running]")
    assert "one scan before it" in page.text_content("#scans li[data-state=queued] .state")
    assert opened.fits()
    for _ in range(2):
        page.click("#scans li:not([data-state=cancelled]) .cancel >> nth=0")
        page.wait_for_timeout(200)
    opened.until("document.querySelectorAll('#scans li[data-state=cancelled]').length === 2")
    assert serving.ask("/api/status").json["waiting"] == 0


@with_niivue
def test_a_list_of_results_and_a_narrow_screen_in_the_dark(viewing, open_page):
    opened = open_page(viewing, viewport={"width": 340, "height": 700}, color_scheme="dark")
    page = opened.page
    assert page.locator("#rows tr").count() == 2
    page.fill("#search", "SUB-07")
    assert page.locator("#rows tr").count() == 1
    assert opened.fits()
    page.click("#rows a")
    page.wait_for_selector("body[data-ready]")
    assert page.text_content("h1") == "sub-07_ses-1"
    assert opened.fits()
    opened.film(lambda film: lit(film) > 500)
    assert page.locator("#delete-row").is_hidden()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, background[4:-1].split(","))) < 150
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "back"


def test_without_niivue_the_slice_browser_is_shown_and_why(start, made_results, open_page, tmp_path):
    server = start("view", made_results, env={"XDG_CACHE_HOME": str(tmp_path)})
    opened = open_page(server)
    page = opened.page
    page.click("#rows a >> nth=0")
    page.wait_for_selector("body[data-ready]")
    assert "'anofpdm serve --set-up' fetches it with npm" in page.text_content("#why-not")
    assert page.locator("#volumes").is_hidden()
    frame = page.frame_locator("#slices")
    frame.locator("body[data-ready]").wait_for()
    before = frame.locator("#which").text_content()
    frame.locator("#next").click()
    assert frame.locator("#which").text_content() != before
    assert page.locator("#film").is_hidden()


def test_a_report_in_a_results_folder_reaches_nothing_of_the_server(start, made_results, open_page, tmp_path):
    """Someone else's results may hold a page of someone else's making."""
    shutil.copytree(made_results / "p1", tmp_path / "results" / "p1")
    (tmp_path / "results" / "p1" / "report.html").write_text(
        "<script>const say = (text) => { document.title = text; };"
        "fetch('/api/results').then(() => say('reached'), () => say('kept out'));"
        "try { localStorage.x = 1; say('stored'); } catch {}</script>"
    )
    server = start("view", tmp_path / "results")
    opened = open_page(server)
    key = server.ask("/api/results").json[0]["key"]
    opened.page.goto(f"http://127.0.0.1:{server.port}/api/results/{key}/files/report")
    opened.until("document.title === 'kept out'")
    assert opened.page.title() == "kept out"
    opened.troubles.clear()  # what the browser says of it


def test_the_apis_page(serving, open_page):
    opened = open_page(serving)
    opened.page.click("text=The API behind this page")
    opened.page.wait_for_selector("body[data-ready]")
    assert "/api/jobs/{job_id}/cancel" in opened.page.inner_text("#calls")
    assert opened.fits()


def test_a_token_is_asked_for_and_taken(start, made_results, browser):
    server = start("view", made_results, "--token", "a-very-long-token")
    page = browser.new_context().new_page()
    page.goto(f"http://127.0.0.1:{server.port}/scan")
    page.fill("#token", "a-very-long-token")
    page.click("button")
    page.wait_for_selector("body[data-ready]")
    assert page.url == f"http://127.0.0.1:{server.port}/"
    assert page.locator("#rows tr").count() == 2
    page.context.close()
