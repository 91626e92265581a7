"""The process that segments. It loads the model once and processes one scan at a time, as instructed over a pipe.

A scan is cancelled by ending this process: nothing else frees the processor reliably. The working directory is the
folder of the upload and files are given by bare names, so that no message or summary can contain a path of the server.
"""

import contextlib
import os
import re
import traceback
import warnings
from dataclasses import dataclass, replace
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from anofpdm.choices import Raw
from anofpdm.errors import AnoFPDMError, OutputError, ScanError, ScanWarning
from anofpdm.scans.modalities import InputModalities
from anofpdm.segment.outputs import PREPARATION
from anofpdm.util.memory import keep_freed_memory
from anofpdm.util.text import remove_folders
from anofpdm.util.workers import follow_parent
from anofpdm.viewer.jobs import INPUT, UNFINISHED, Job

if TYPE_CHECKING:
    from anofpdm.segment.model import Model
    from anofpdm.segment.request import SegmentRequest

DICOM = "dicom"  # form field with all modalities in one zip
SERIES_SEPARATOR = re.compile(r"\s*[,;]\s*|\s+(?=\w+\s*=)")  # flair=3 t2=Axial T2; descriptions may contain spaces
NICENESS = 5  # requests are served first
CRASHED = "Internal error; the log of the server shows where. Contact its administrator."


@dataclass(frozen=True)
class WorkerConfig:
    model: Path
    device: str = "auto"
    engine: str = "auto"
    seed: int | None = None
    batch: int | None = None
    raw: str = Raw.AUTO


# ---- messages to the server ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """The model is loaded. What a server with it accepts:"""

    inputs: InputModalities
    raw: bool = False  # series on different grids, or of whole heads
    dicom: bool = False  # a zip of DICOM files


@dataclass(frozen=True)
class Advanced:
    done: float = 0
    total: float = 0


@dataclass(frozen=True)
class Ended:
    """A scan, or the loading of the model."""

    problem: str | None = None  # for the user; None: the result is complete
    location: str = ""  # of an error of this program, for the log


# ---- the process -----------------------------------------------------------------------------------------------------


def run_worker(config: WorkerConfig, pipe: Connection) -> None:
    """Sends Ready or Ended, then receives jobs and their folders; for each it sends Advanced repeatedly, and Ended."""
    follow_parent()
    with contextlib.suppress(OSError, AttributeError):
        os.nice(NICENESS)
    keep_freed_memory()
    with contextlib.suppress(EOFError, BrokenPipeError):
        from anofpdm.segment.model import load

        try:
            model = load(config.model, config.device)
            request = model.request(engine=config.engine, seed=config.seed, batch=config.batch, raw=config.raw)
        except AnoFPDMError as error:
            pipe.send(Ended(str(error)))
            return
        request = replace(request, advice="")  # which names options of the command line
        pipe.send(Ready(request.inputs, request.raw is not Raw.NEVER, find_spec("pydicom") is not None))
        while True:
            job, folder = pipe.recv()
            pipe.send(_run_job(model, request, job, folder, pipe))


def _run_job(model: "Model", request: "SegmentRequest", job: Job, folder: Path, pipe: Connection) -> Ended:
    try:
        os.chdir(folder / INPUT)
        _segment(model, request, job, folder / UNFINISHED, pipe)
    except (OSError, OutputError) as error:
        reason = getattr(error, "strerror", None) or getattr(error.__cause__, "strerror", None) or "disk full"
        return Ended(f"The server could not write the result ({reason}); contact its administrator.")
    except AnoFPDMError as error:
        return Ended(remove_folders(str(error)))
    except MemoryError:
        return Ended("Not enough memory; upload a scan with fewer voxels.")
    except Exception as error:  # its text could quote the upload; its location cannot
        return Ended(CRASHED, locate_error(error))
    finally:
        os.chdir("/")
    return Ended()


def _segment(model: "Model", request: "SegmentRequest", job: Job, out: Path, pipe: Connection) -> None:
    from anofpdm.raw.brain import BrainFinder
    from anofpdm.raw.cache import StudyCache

    files: dict[str, str | Path] = {**job.files}
    study, find_brain = None, BrainFinder()
    if DICOM in files:
        from anofpdm.segment.inputs import read_dicom_study

        try:
            series = parse_series_text(job.series)
            study = read_dicom_study(Path(files[DICOM]), request.inputs, series, request.raw, find_brain)
            request = request if study.on_one_grid else replace(request, raw=Raw.ALWAYS)
            files = {**study.convert(Path())}
        except ScanError as error:
            raise ScanError(adapt_to_web(str(error))) from None

    def send_progress(task: str, done: float, total: float, note: str = "") -> None:  # noqa: ARG001
        pipe.send(Advanced(done, total))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScanWarning)  # they are in the summary
        preparation = Path(os.path.relpath(out / PREPARATION))  # recorded: no path of the server
        cache = StudyCache(preparation, brains=find_brain.extracted)
        result = model.segment(files, request=request, progress=send_progress, raw_run=cache)
    result.save(out, title=job.title)
    if study is not None:
        with contextlib.suppress(ScanError):  # the NIfTI mask exists; DICOM results are then not offered
            result.save_dicom(study, out, job.title)


def parse_series_text(text: str) -> dict[str, str]:
    """Modality to series, from text such as flair=3, t2=7."""
    from anofpdm.scans.dicom.match import parse_series

    return parse_series([word for word in SERIES_SEPARATOR.split(text.strip()) if word])


def adapt_to_web(message: str) -> str:
    """Replace mentions of command-line options, which have no place on a page."""
    return message.replace("--series ", "Series: ").replace(" (--preview shows all)", "")


def locate_error(error: Exception) -> str:
    """Type and code lines of an error, without its message."""
    lines = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-6:]]
    return f"{type(error).__name__} at {' '.join(lines)}"
