"""The folder of an evaluation: file names, stored results, and a lock. Nothing here depends on how scores are made."""

import contextlib
import io
import json
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm.errors import ConfigError
from anofpdm.scoring.metrics.lesions import SizeBin
from anofpdm.study.comparison.scores import Scores
from anofpdm.util.distributed import World
from anofpdm.util.files import folder_lock, remove_temporary_files, write_atomically

WORK = "work"  # scratch space, removed afterwards
Examples = dict[str, np.ndarray]  # "maps" and "masks" of the example slices


@contextlib.contextmanager
def locked_results(out: Path, settings: dict[str, Any], world: World) -> Iterator[None]:
    """For one run at a time. All results of a folder share their settings."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "settings.json"
    stored = json.loads(path.read_text()) if path.is_file() else settings
    if stored != settings:
        differing = ", ".join(sorted(name for name in settings if stored.get(name) != settings[name]))
        raise ConfigError(f"{out}: holds an evaluation with different {differing}; choose another --out")
    world.all_gather(None)
    with folder_lock(out, needed=world.is_main):
        if world.is_main:
            shutil.rmtree(out / WORK, ignore_errors=True)  # of a run that was killed
            for folder in (out, *out.glob("methods/*")):
                remove_temporary_files(folder)
            write_atomically(path, json.dumps(settings, indent=2).encode())
        yield


def save_scores(scores: Scores, path: Path, provenance: Mapping[str, str], examples: Examples) -> None:
    """Slices first, numbers last: a result is complete if its .json exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {**scores.slices, **{f"example_{name}": value for name, value in examples.items()}}
    np.savez_compressed(buffer, **arrays)
    path.with_suffix(".json").unlink(missing_ok=True)
    write_atomically(path.with_suffix(".npz"), buffer.getvalue())
    payload = {**scores.to_dict(), "made_with": dict(provenance)}
    write_atomically(path.with_suffix(".json"), json.dumps(payload, indent=2).encode())


def load_scores(path: Path, provenance: Mapping[str, str]) -> tuple[Scores, Examples] | None:
    """None if missing, incomplete, or made with other models."""
    try:
        payload = json.loads(path.with_suffix(".json").read_text())
        if payload["made_with"] != provenance:
            return None
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        slices = {name: value for name, value in arrays.items() if not name.startswith("example_")}
        examples = {name.removeprefix("example_"): arrays[name] for name in arrays.keys() - slices.keys()}
        scores = Scores(
            numbers=payload["numbers"],
            intervals={name: (ends[0], ends[1]) for name, ends in payload["intervals"].items()},
            by_size=[SizeBin(size["above"], size["up_to"], size["count"], size["dice"]) for size in payload["by_size"]],
            by_patient=payload["by_patient"],
            slices=slices,
        )
        return scores, examples
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
