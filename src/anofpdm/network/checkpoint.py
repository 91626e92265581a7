"""A model on disk: safetensors and JSON, checked on the way in, whole or absent on the way out, never a pickle.

weights.safetensors          the averaged weights; its own header holds the configuration and a hash of everything
config.json                  the same configuration, for reading
state.safetensors            all that a run needs to go on: network, average, optimiser, step
state.previous.safetensors   the one before, in case
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anofpdm.errors import ModelError
from anofpdm.util.files import write_atomically

FORMAT = 1
WEIGHTS, STATE, PREVIOUS, CONFIG = (
    "weights.safetensors",
    "state.safetensors",
    "state.previous.safetensors",
    "config.json",
)

Tensors = Mapping[str, Tensor]


def save_model(folder: Path, weights: Tensors, config: Mapping[str, Any]) -> str:
    """Returns the hash by which calibrations and results name this model."""
    digest = _write(folder / WEIGHTS, weights, config)
    write_atomically(folder / CONFIG, json.dumps({**config, "sha256": digest}, indent=2).encode())
    return digest


def load_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """Weights, configuration and hash."""
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"{folder}: not a model (no {WEIGHTS}); train one with `anofpdm train`, or check the path")
    return _read(folder / WEIGHTS, "restore it from a copy, or resume its training to write it anew")


def holds_model(folder: Path, step: int) -> bool:
    """Whether the model is whole and of this step. The state is saved first: a run may have been killed in between."""
    try:
        _, said, digest = load_model(folder)
        return said["step"] == step and json.loads((folder / CONFIG).read_text())["sha256"] == digest
    except (ModelError, OSError, ValueError, KeyError):
        return False


def save_state(folder: Path, tensors: Tensors, config: Mapping[str, Any]) -> None:
    """The state before is kept until the new one is whole, and after."""
    path = folder / STATE
    if path.is_file():
        spare = folder / f".{PREVIOUS}.tmp"
        spare.unlink(missing_ok=True)
        try:
            os.link(path, spare)
        except OSError:  # a file system without links
            shutil.copyfile(path, spare)
        spare.replace(folder / PREVIOUS)
        spare.unlink(missing_ok=True)  # renaming a file to another name of itself leaves both
    _write(path, tensors, config)


def load_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not (folder / STATE).is_file():
        raise ModelError(f"{folder}: nothing to resume (no {STATE}); leave out --resume to start, or check the path")
    remedy = "train again"
    if (folder / PREVIOUS).is_file():
        remedy = f"remove it and rename {PREVIOUS} to {STATE} to go on from the save before"
    tensors, config, _ = _read(folder / STATE, remedy)
    return tensors, config


def _write(path: Path, tensors: Tensors, config: Mapping[str, Any]) -> str:
    whole = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    said = json.dumps(dict(config), sort_keys=True)
    digest = _digest(whole, said)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(whole, temporary, {"anofpdm": said, "sha256": digest})
        temporary.chmod(0o644)  # the library writes for the owner alone; models are shared
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except (SafetensorError, OSError) as problem:
        raise ModelError(
            f"{path}: could not be written ({problem}); earlier saves are intact, free disk space and resume"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    return digest


def _read(path: Path, remedy: str) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        said, digest = metadata["anofpdm"], metadata["sha256"]
        config: dict[str, Any] = json.loads(said)
        if not isinstance(config, dict):
            raise ValueError("no configuration")
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as problem:
        raise ModelError(f"{path}: damaged, or not one of ours ({problem}); {remedy}") from None
    if config.get("format") != FORMAT:
        raise ModelError(f"{path}: of format {config.get('format')}, this version reads {FORMAT}; train it again")
    if _digest(tensors, said) != digest:
        raise ModelError(f"{path}: damaged (its contents do not match their hash); {remedy}")
    return tensors, config, digest


def _digest(tensors: Tensors, said: str) -> str:
    digest = hashlib.sha256(said.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
