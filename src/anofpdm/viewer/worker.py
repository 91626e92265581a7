"""The process that segments: it loads the model once and does one scan at a time, as it is told over a pipe.

To cancel a scan is to end this process; nothing else frees the processor for certain. It works inside the folder of the
upload with bare file names, so that no sentence and no summary of its can hold a path of the server.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anofpdm.errors import AnoFPDMError, OutputError

if TYPE_CHECKING:
    from anofpdm.segment.model import Model

DICOM = "dicom"  # the name of an upload that holds all modalities
TOLD_EVERY = 0.1  # seconds between two words on how far it is
NICE = 5  # the server answers first


@dataclass(frozen=True)
class Orders:
    """What a worker is started with."""

    model: Path
    device: str = "auto"
    engine: str = "auto"
    seed: int | None = None
    batch: int | None = None


@dataclass(frozen=True)
class Task:
    """A scan: files by modality, bare names inside `folder`; results go to `out`."""

    folder: Path
    files: dict[str, str]
    series: str
    out: Path
    title: str


def work(orders: Orders, pipe: Connection) -> None:
    """Messages out: ("ready", about), ("progress", done, total), ("done",), ("failed", sentence), ("broken", where)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    with contextlib.suppress(OSError, AttributeError):
        os.nice(NICE)
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            model = _load(orders)
            model.engine(orders.engine)
        except AnoFPDMError as problem:
            pipe.send(("failed", str(problem)))
            return
        pipe.send(("ready", about(model, orders)))
        while True:
            pipe.send(_done(model, pipe.recv(), orders, pipe))


def about(model: "Model", orders: Orders) -> dict[str, Any]:
    return {
        "name": model.trained.folder.resolve().name,
        "modalities": list(model.modalities(orders.engine)),
        "sha256": model.trained.sha256,
        "device": str(model.trained.device),
    }


def _load(orders: Orders) -> "Model":
    from anofpdm.segment.model import load

    return load(orders.model, orders.device)


def _done(model: "Model", task: Task, orders: Orders, pipe: Connection) -> tuple[Any, ...]:
    try:
        os.chdir(task.folder)
        _segment(model, task, orders, pipe)
    except OutputError as problem:
        reason = getattr(problem.__cause__, "strerror", None) or "no room"
        return ("failed", f"The server could not write the result ({reason}); tell who runs it.")
    except AnoFPDMError as problem:
        from anofpdm.report.wording import remove_folders

        return ("failed", remove_folders(str(problem)))
    except MemoryError:
        return ("failed", "Memory ran out; give a scan with fewer voxels.")
    except OSError as problem:
        return ("failed", f"The server could not write the result ({problem.strerror}); tell who runs it.")
    except Exception as problem:  # its words might quote the upload; where it happened does not
        return ("broken", _where(problem))
    finally:
        os.chdir("/")
    return ("done",)


def _segment(model: "Model", task: Task, orders: Orders, pipe: Connection) -> None:
    import warnings

    from anofpdm.errors import ScanError, ScanWarning

    told = [time.monotonic()]

    def show(done: int, total: int) -> None:
        if time.monotonic() - told[0] >= TOLD_EVERY or done == total:
            told[0] = time.monotonic()
            pipe.send(("progress", done, total))

    files: dict[str, str | Path] = {name: Path(file) for name, file in task.files.items()}
    study = None
    if DICOM in files:
        from anofpdm.viewer.dicom import converted

        study, files = converted(Path(files[DICOM]), model.modalities(orders.engine), task.series)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScanWarning)  # they are in the summary
        result = model.segment(files, engine=orders.engine, seed=orders.seed, batch=orders.batch, on_progress=show)
    result.save(task.out, title=task.title)
    if study is not None:
        from anofpdm.viewer.dicom import save_dicom

        with contextlib.suppress(ScanError):  # the NIfTI mask is there; a download that is not is not offered
            save_dicom(study, result, task.out, task.title)


def _where(problem: Exception) -> str:
    """The kind of error and the lines that led to it, without its words."""
    lines = [f"{Path(one.filename).name}:{one.lineno}" for one in traceback.extract_tb(problem.__traceback__)[-6:]]
    return f"{type(problem).__name__} at {' '.join(lines)}"


def _end_with_the_server() -> None:
    """A server that is killed cannot tell its worker to stop."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
