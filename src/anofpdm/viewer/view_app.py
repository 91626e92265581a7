"""The application of `anofpdm view`: read-only access to results of `anofpdm segment`."""

from pathlib import Path

from fastapi import APIRouter, FastAPI

from anofpdm import __version__
from anofpdm.errors import CohortError
from anofpdm.segment.outputs import SUMMARY
from anofpdm.viewer.niivue import Niivue
from anofpdm.viewer.pages import create_app, viewer_status
from anofpdm.viewer.results import ResultFolder
from anofpdm.viewer.schemas import ResultListItem, Status

DESCRIPTION = "Results of `anofpdm segment` in one folder, read-only."


def create_view_app(folder: Path, niivue: Niivue) -> FastAPI:
    results = ResultFolder(folder)
    if not folder.is_dir():
        raise CohortError(f"{folder}: no such folder; give the --out folder of 'anofpdm segment'")
    if not results.search():
        raise CohortError(f"{folder}: no results in it (no {SUMMARY}); give the --out folder of 'anofpdm segment'")
    router = APIRouter()

    @router.get("/api/status", tags=["server"])
    def get_status() -> Status:
        """Version and capabilities of this server."""
        return Status(kind="view", version=__version__, viewer=viewer_status(niivue))

    @router.get("/api/results", tags=["results"])
    def list_results() -> list[ResultListItem]:
        """All results in the folder, which is searched at each request."""
        return [result.list_item() for result in results.search()]

    return create_app("AnoFPDM result viewer", DESCRIPTION, router, results.get, home="list", niivue=niivue)
