"""Model files: safetensors and JSON, verified when read, written atomically, never pickled.

weights.safetensors          averaged weights; the header holds the configuration and a hash of both
config.json                  a copy of the configuration, to be read by people; refused where it differs
state.safetensors            everything needed to resume training: network, average, optimiser, step
state.previous.safetensors   the previous state, as a backup
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from anofpdm.errors import ModelError, NotEnoughMemoryError
from anofpdm.network.weight_format import restore
from anofpdm.util.files import write_atomically
from anofpdm.util.memory import REMEDY, is_out_of_memory

FORMAT = 1
WEIGHTS, CONFIG = "weights.safetensors", "config.json"
STATE, PREVIOUS = "state.safetensors", "state.previous.safetensors"

Tensors = Mapping[str, Tensor]


def save_model(folder: Path, weights: Tensors, config: Mapping[str, Any]) -> str:
    """Returns the hash by which calibrations and results name this model."""
    (folder / CONFIG).unlink(missing_ok=True)  # killed here: no configuration, rather than that of other weights
    digest = _write(folder / WEIGHTS, weights, config)
    write_atomically(folder / CONFIG, json.dumps({**config, "sha256": digest}, indent=2).encode())
    return digest


def load_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """Weights, configuration and hash."""
    if not (folder / WEIGHTS).is_file():
        if (folder / "student" / WEIGHTS).is_file():
            raise ModelError(f"{folder}: has a student only, and this command needs its diffusion model")
        raise ModelError(
            f"{folder}: not a model (no {WEIGHTS}); check the path, train one with `anofpdm train`, or use one "
            "that ships (`anofpdm models` lists them)"
        )
    tensors, config, digest = _read(
        folder / WEIGHTS, "restore it from a backup, or resume its training to write it again"
    )
    _check_copy(folder / CONFIG, {**config, "sha256": digest})
    try:
        return restore(tensors), config, digest
    except ValueError as problem:
        raise ModelError(f"{folder}: {problem}; train it again") from None


@contextlib.contextmanager
def weights_must_fit(folder: Path, remedy: str = "train it again") -> Iterator[None]:
    """While the weights of a folder are loaded into the network of its configuration."""
    try:
        yield
    except RuntimeError as problem:
        if "loading state_dict" not in str(problem):  # of memory or the device
            raise
        raise ModelError(f"{folder}: the weights do not fit the network in its configuration; {remedy}") from None


def holds_model(folder: Path, step: int) -> bool:
    """Whether the model is complete and of this step. The state is saved first, so a run may be killed in between."""
    try:
        return (folder / CONFIG).is_file() and load_model(folder)[1].get("step") == step
    except ModelError:
        return False


def _check_copy(path: Path, config: Mapping[str, Any]) -> None:
    """A copy edited by hand would have no effect."""
    if not path.is_file():
        return
    try:
        same = json.loads(path.read_text()) == config
    except (OSError, ValueError, RecursionError):
        same = False
    if not same:
        raise ModelError(
            f"{path}: differs from the configuration stored in {WEIGHTS}, which is the one that counts and cannot be "
            f"edited; restore {CONFIG}, or remove it"
        )


def save_state(folder: Path, tensors: Tensors, config: Mapping[str, Any]) -> None:
    """The previous state is kept as a backup."""
    path, previous = folder / STATE, folder / PREVIOUS
    if path.is_file():
        previous.unlink(missing_ok=True)
        try:
            previous.hardlink_to(path)
        except OSError:  # the file system has no links
            shutil.copyfile(path, previous)
    _write(path, tensors, config)


def load_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not (folder / STATE).is_file():
        raise ModelError(f"{folder}: nothing to resume (no {STATE}); leave out --resume to start, or check the path")
    remedy = "train again"
    if (folder / PREVIOUS).is_file():
        remedy = f"remove it and rename {PREVIOUS} to {STATE} to resume from the previous save"
    tensors, config, _ = _read(folder / STATE, remedy)
    return tensors, config


def _write(path: Path, tensors: Tensors, config: Mapping[str, Any]) -> str:
    saved = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    header = json.dumps(dict(config), sort_keys=True)
    digest = _digest(saved, header)
    write_atomically(path, save(saved, {"anofpdm": header, "sha256": digest}))
    return digest


def _read(path: Path, remedy: str) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header, digest = metadata["anofpdm"], metadata["sha256"]
        config: dict[str, Any] = json.loads(header)
        if not isinstance(config, dict):
            raise ValueError("no configuration")
    except (SafetensorError, OSError, KeyError, ValueError, RecursionError) as problem:
        if is_out_of_memory(problem):
            raise NotEnoughMemoryError(f"{path}: not enough memory to load it; {REMEDY}") from None
        raise ModelError(f"{path}: damaged, or not an anofpdm file ({problem}); {remedy}") from None
    if config.get("format") != FORMAT:
        raise ModelError(
            f"{path}: format {config.get('format')}, but this version reads format {FORMAT}; train it again"
        )
    if _digest(tensors, header) != digest:
        raise ModelError(f"{path}: damaged (the contents do not match the hash); {remedy}")
    return tensors, config, digest


def _digest(tensors: Tensors, header: str) -> str:
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
