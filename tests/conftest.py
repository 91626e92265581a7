import os
import shutil
import signal

# Tensors in tests are small: more threads would only get in each other's way, also in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started in the background of a script: tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import settings
from PIL import ImageDraw

# Without a deadline: on a busy machine an example may take any time. In CI the same examples every time; elsewhere, new
# ones are tried.
settings.register_profile("anywhere", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "anywhere")


@pytest.fixture(scope="session", autouse=True)
def small_contact_sheets():
    """One row of slices instead of six: nearly all tests that prepare a cohort do not look at its contact sheet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anofpdm.cohorts.contact_sheet.MAX_ROWS", 1)
        yield


@pytest.fixture
def drawn_texts(monkeypatch):
    """What is written into pictures, in that order."""
    texts: list[str] = []
    monkeypatch.setattr(ImageDraw.ImageDraw, "text", lambda _pen, _at, text, *_args, **_options: texts.append(text))
    return texts


@pytest.fixture(scope="module")
def browser_flags():
    """Of chromium; a test file can replace them."""
    return ["--no-sandbox"]


@pytest.fixture(scope="module")
def browser(browser_flags):
    """The system's chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        pytest.skip("no chromium here")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=executable, args=browser_flags)
        yield started
        started.close()


def record_problems(page, *expected_addresses):
    """The list of a page's messages and errors, and of its requests to other addresses."""
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda sent: sent.url.startswith(expected_addresses) or problems.append(sent.url))
    return problems


@pytest.fixture
def open_file(browser):
    """Opens pages from disk. They may not report errors, open dialogs, load other files or store anything."""
    opened: list = []

    def open_file(path, **options):
        page = browser.new_page(**options)
        page.set_default_timeout(10_000)
        problems = record_problems(page, "file:", "data:")
        page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
        page.goto(path.as_uri())
        opened.append((page, problems))
        return page

    yield open_file
    for page, problems in opened:
        assert problems == []
        assert page.context.storage_state() == {"cookies": [], "origins": []}
        page.close()


# They take longest. Started first, none of them is left for one worker while the other has nothing to do.
LONG_FILES = (
    "docs/test_docs.py", "viewer/test_in_browser.py", "test_end_to_end.py", "cli/test_commands.py",
    "study/test_protocol.py", "phantoms/test_phantom.py", "cohorts/test_prepare.py", "demo/test_demo.py",
    "report/test_page_in_browser.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONG_FILES))  # otherwise the order is kept
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu:
        import torch

        if not torch.cuda.is_available():
            for item in on_gpu:
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))
