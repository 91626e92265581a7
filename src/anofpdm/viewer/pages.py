"""Parts that both servers share: HTML pages, files of results, error responses."""

import logging
import mimetypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.exceptions import HTTPException

from anofpdm import __version__
from anofpdm.report.render import render
from anofpdm.viewer.limits import RequestError, error_response
from anofpdm.viewer.niivue import Niivue
from anofpdm.viewer.results import SCAN, Result
from anofpdm.viewer.schemas import FileResponseItem, ResultResponse, ViewerStatus
from anofpdm.viewer.worker import locate_error

LOG = logging.getLogger("anofpdm.viewer")
MEDIA_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
NIIVUE = "niivue.js"  # its hash is checked first
STATIC = {path.name: path for path in Path(__file__).with_name("static").iterdir() if path.suffix in MEDIA_TYPES}
INLINE = ("report", "picture")  # roles shown in the browser; all others are downloads
# A report may come from elsewhere and contain any script. In a sandbox it has no access to this server.
REPORT_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
    ),
    "X-Frame-Options": "SAMEORIGIN",
}
MESSAGES = {
    404: "There is no such page.",
    405: "This method is not allowed here.",
    422: "The request does not match the description of the API (/api).",
    500: "Internal error; the log of the server shows where.",
}
Responses = dict[int | str, dict[str, Any]]  # by status, for the documentation of the API
NOT_FOUND: Responses = {404: {"description": "No such scan."}}
UNREADABLE: Responses = {422: {"description": "The result cannot be read: its summary is damaged."}}


def create_app(
    title: str, description: str, api: APIRouter, find_result: Callable[[str], Result], *, home: str, niivue: Niivue
) -> FastAPI:
    """`home` is the template of the start page; `api`, what this server has besides results."""
    app = FastAPI(title=title, version=__version__, description=description, docs_url=None, redoc_url=None)
    for kind in (RequestError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _handle_error)
    for router in (api, _create_results_router(find_result), _create_pages_router(home, niivue)):
        app.include_router(router)
    return app


def _handle_error(_request: Request, error: Exception) -> Response:
    headers, field = getattr(error, "headers", None), None
    match error:
        case RequestError():
            status, message, field = error.status, str(error), error.field
        case HTTPException():
            status, message = error.status_code, MESSAGES.get(error.status_code, "The request failed.")
        case RequestValidationError():
            status, message = 422, MESSAGES[422]
        case _:  # its text can quote the request: only its location is logged
            LOG.error("%s", locate_error(error))
            status, message = 500, MESSAGES[500]
    return error_response(status, message, field, headers)


# ---- pages -----------------------------------------------------------------------------------------------------------


def _create_pages_router(home: str, niivue: Niivue) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    for path, name in {"/": home, "/scan": "scan", "/api": "api"}.items():
        page = render(f"viewer_{name}.html")
        router.add_api_route(path, lambda page=page: HTMLResponse(page))
    router.add_api_route("/favicon.ico", lambda: Response(status_code=204))

    @router.get("/static/{name}")
    def static_file(name: str) -> FileResponse:
        path = niivue.path if name == NIIVUE else STATIC.get(name)
        if path is None:
            raise RequestError(404, MESSAGES[404])
        return FileResponse(path, media_type=MEDIA_TYPES[path.suffix], headers={"Cache-Control": "no-cache"})

    return router


def viewer_status(niivue: Niivue) -> ViewerStatus:
    return ViewerStatus(url=f"/static/{NIIVUE}" if niivue.path else None, why_not=niivue.why_not)


# ---- results ---------------------------------------------------------------------------------------------------------


def _create_results_router(find_result: Callable[[str], Result]) -> APIRouter:
    router = APIRouter(prefix="/api/results", tags=["results"], responses={**NOT_FOUND, **UNREADABLE})

    @router.get("/{key}")
    def get_result(key: str) -> ResultResponse:
        """The findings in a scan and the files of its result."""
        return _describe_result(_require_readable(find_result(key)))

    @router.get("/{key}/files/{role}", response_class=FileResponse)
    def get_file(key: str, role: str) -> FileResponse:
        """A file of a result: mask, map, findings, slices, summary, picture, report, dicom-seg, scan-MODALITY."""
        result = _require_readable(find_result(key))
        path = result.file(role)
        return FileResponse(
            path,
            media_type=mimetypes.guess_type(path)[0] or "application/octet-stream",
            filename=download_name(result, role, path),
            content_disposition_type="inline" if role in INLINE else "attachment",
            headers=REPORT_HEADERS if role == "report" else {},
        )

    return router


def _require_readable(result: Result) -> Result:
    if result.unreadable:
        raise RequestError(422, f"This result cannot be read. {result.unreadable}; segment the scan again.")
    return result


def _describe_result(result: Result) -> ResultResponse:
    def describe(role: str, path: Path) -> FileResponseItem:
        url = f"/api/results/{result.key}/files/{role}"
        return FileResponseItem(role=role, name=download_name(result, role, path), url=url)

    return ResultResponse(
        **result.list_item().model_dump(),
        missing_modalities=result.summary.missing_modalities,
        notes=result.summary.public_warnings(),
        lesions=result.lesions(),
        scans=[describe(f"{SCAN}{name}", path) for name, path in result.scans().items()],
        files=[describe(role, path) for role, path in result.files.items()],
    )


def download_name(result: Result, role: str, path: Path) -> str:
    """File name for a download, of ASCII letters only."""
    is_scan = role.startswith(SCAN)
    name = role.removeprefix(SCAN) + path.name[path.name.index(".") :] if is_scan else path.name
    name, title = (re.sub(r"[^A-Za-z0-9._-]+", "_", text) for text in (name, result.title))
    prefix = title.strip("._") or "result"
    return name if name.startswith(prefix) else f"{prefix}_{name}"
