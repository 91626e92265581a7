"""`anofpdm view`: results of `anofpdm segment`, to look at. It only reads."""

from pathlib import Path

from fastapi import FastAPI

from anofpdm import __version__
from anofpdm.errors import CohortError
from anofpdm.segment.outputs import SUMMARY
from anofpdm.viewer.niivue import Niivue
from anofpdm.viewer.pages import new_app, pages_router, results_router, viewer_told
from anofpdm.viewer.results import ResultFolder, told
from anofpdm.viewer.schemas import ResultLine, Status

ABOUT = "Results of `anofpdm segment` in one folder. Everything here only reads."


def view_app(folder: Path, niivue: Niivue) -> FastAPI:
    results = opened(folder)
    app = new_app("AnoFPDM: results", ABOUT)

    @app.get("/api/status", tags=["server"])
    def status() -> Status:
        """What this server can do."""
        return Status(kind="view", version=__version__, viewer=viewer_told(niivue))

    @app.get("/api/results", tags=["results"])
    def all_results() -> list[ResultLine]:
        """Every result in the folder, looked for anew."""
        return [ResultLine(**told(one)) for one in results.look()]

    app.include_router(results_router(results.get))
    app.include_router(pages_router("list.html", niivue))
    return app


def opened(folder: Path) -> ResultFolder:
    if not folder.is_dir():
        raise CohortError(f"{folder}: no such folder; give the --out folder of 'anofpdm segment'")
    results = ResultFolder(folder)
    if not results.look():
        raise CohortError(f"{folder}: no results in it (no {SUMMARY}); give the --out folder of 'anofpdm segment'")
    return results
