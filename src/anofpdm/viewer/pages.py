"""What both servers have: their pages, the files of results, and errors in words."""

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib import resources
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from anofpdm import __version__
from anofpdm.viewer.niivue import Niivue
from anofpdm.viewer.refusals import RefusalError
from anofpdm.viewer.results import SCAN, Result, findings, kind_of, told
from anofpdm.viewer.schemas import FileTold, Problem, ResultTold, ViewerTold

STATIC = {
    "viewer.css": "text/css; charset=utf-8",
    "common.js": "text/javascript; charset=utf-8",
    "home.js": "text/javascript; charset=utf-8",
    "list.js": "text/javascript; charset=utf-8",
    "scan.js": "text/javascript; charset=utf-8",
    "volumes.js": "text/javascript; charset=utf-8",
    "api.js": "text/javascript; charset=utf-8",
}
NIIVUE_URL = "/static/niivue.js"
SHOWN = ("report", "picture")  # in the browser; all else is to be saved
# A report holds one script of ours; a page from elsewhere might hold another. In a sandbox it can reach nothing here.
REPORT_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
    ),
    "X-Frame-Options": "SAMEORIGIN",
}
ANSWERS: dict[int | str, dict[str, object]] = {404: {"model": Problem, "description": "There is no such scan."}}
Lookup = Callable[[str], Result]
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def static(name: str) -> Path:
    return Path(str(resources.files("anofpdm.viewer") / "static" / name))


def new_app(title: str, about: str, lifespan: Lifespan | None = None) -> FastAPI:
    app = FastAPI(title=title, version=__version__, description=about, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_exception_handler(RefusalError, _refusal)
    app.add_exception_handler(RequestValidationError, _not_understood)
    app.add_exception_handler(HTTPException, _http_error)
    return app


# ---- pages -----------------------------------------------------------------------------------------------------------


def pages_router(home: str, niivue: Niivue) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    def page(name: str) -> Callable[[], FileResponse]:
        return lambda: FileResponse(static(name), media_type="text/html; charset=utf-8")

    router.add_api_route("/", page(home))
    router.add_api_route("/scan", page("scan.html"))
    router.add_api_route("/api", page("api.html"))
    router.add_api_route("/favicon.ico", lambda: Response(status_code=204))

    @router.get("/static/{name}")
    def piece(name: str) -> FileResponse:
        cached = {"Cache-Control": "no-cache"}
        if name == "niivue.js" and niivue.path is not None:
            return FileResponse(niivue.path, media_type=STATIC["home.js"], headers=cached)
        if name not in STATIC:
            raise RefusalError(404, "There is no such page.")
        return FileResponse(static(name), media_type=STATIC[name], headers=cached)

    return router


def viewer_told(niivue: Niivue) -> ViewerTold:
    ready = niivue.path is not None
    return ViewerTold(ready=ready, url=NIIVUE_URL if ready else None, why_not=niivue.why_not)


# ---- results ---------------------------------------------------------------------------------------------------------


def results_router(lookup: Lookup) -> APIRouter:
    router = APIRouter(prefix="/api/results", tags=["results"], responses=ANSWERS)

    @router.get("/{key}")
    def result(key: str) -> ResultTold:
        """What was found in a scan, and the files of it."""
        return described(lookup(key))

    @router.get("/{key}/files/{role}", response_class=FileResponse)
    def file(key: str, role: str) -> FileResponse:
        """A file of a result: mask, map, findings, slices, summary, picture, report, dicom-seg, scan-MODALITY."""
        found = lookup(key)
        path = found.file(role)
        name = file_name(found, role, path)
        kept = "inline" if role in SHOWN else "attachment"
        headers = REPORT_HEADERS if role == "report" else {}
        return FileResponse(
            path, media_type=kind_of(path), filename=name, content_disposition_type=kept, headers=headers
        )

    return router


def described(result: Result) -> ResultTold:
    files = {role: path for role, path in result.files.items() if not role.startswith(SCAN)}
    scans = {f"{SCAN}{name}": path for name, path in result.scans().items()}
    return ResultTold(
        **told(result),
        notes=result.notes(),
        lesions=findings(result),
        scans=[_file_told(result, role, path) for role, path in scans.items()],
        files=[_file_told(result, role, path) for role, path in files.items()],
    )


def _file_told(result: Result, role: str, path: Path) -> FileTold:
    return FileTold(role=role, name=file_name(result, role, path), url=f"/api/results/{result.key}/files/{role}")


def file_name(result: Result, role: str, path: Path) -> str:
    """For the browser to save it under; of plain letters, whatever the result is called."""
    ending = path.name[path.name.index(".") :] if role.startswith(SCAN) else ""
    name = f"{role.removeprefix(SCAN)}{ending}" if ending else path.name
    before = re.sub(r"[^A-Za-z0-9._-]+", "_", result.title).strip("._") or "result"
    return name if name.startswith(before) else f"{before}_{name}"


# ---- errors ----------------------------------------------------------------------------------------------------------


def _refusal(_request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RefusalError)
    said = {"error": problem.message, "field": problem.field}
    return JSONResponse(said, problem.status, headers=problem.headers)


def _not_understood(_request: Request, _problem: Exception) -> Response:
    return JSONResponse({"error": "The request is not as the API's page (/api) describes it.", "field": None}, 422)


def _http_error(_request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    said = {404: "There is no such page.", 405: "That cannot be done here."}.get(problem.status_code, "Not possible.")
    return JSONResponse({"error": said, "field": None}, problem.status_code, headers=problem.headers)
