"""A student as a MONAI bundle: a TorchScript file, and configurations that run it without this package.

Layout: LICENSE, configs/metadata.json, configs/inference.json, models/model.ts, docs/README.md, docs/data_license.txt,
and the cards of the model. MONAI itself is not needed to write it.
"""

import importlib.metadata
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anofpdm import __version__
from anofpdm.errors import ConfigError
from anofpdm.export.whole_scan import compile_whole_scan
from anofpdm.models.registry import CARD, ShippedModel, shipped_models
from anofpdm.student.student import FOLDER, Student
from anofpdm.student.student_network import StudentConfig
from anofpdm.util.files import translate_write_errors, write_atomically

SCHEMA = "https://project-monai.github.io/schema/meta_schema_20240725.json"
MONAI_VERSION = "1.6.1"  # that bundles were tested with
MODEL = "models/model.ts"
PAPER = (
    "Che et al. AnoFPDM: Anomaly Detection with Forward Process of Diffusion Models for Brain MRI. WACV 2025 "
    "(the method that the teacher of this network implements)"
)
AXES = [["L", "R"], ["P", "A"], ["I", "S"]]
DOCUMENTS = {  # in the model, in the bundle
    CARD: "docs/model_card.md", f"{FOLDER}/{CARD}": f"docs/{FOLDER}/README.md",
    "LICENSE": "LICENSE", "DATA_LICENSE": "docs/data_license.txt",
}  # fmt: skip
CODE_LICENCE = "Apache-2.0"


@dataclass(frozen=True)
class BundleSource:
    """A model and what is known of it."""

    student: Student
    folder: Path

    @property
    def shipped(self) -> ShippedModel | None:
        return next((model for model in shipped_models().values() if model.folder == self.folder), None)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def scans(self) -> str:
        return self.shipped.scans if self.shipped else "scans like those that it was trained on"

    @property
    def licence(self) -> str:
        """Of the weights."""
        if self.shipped:
            return self.shipped.licence
        return "see LICENSE" if (self.folder / "LICENSE").is_file() else "not stated"


def export_monai(source: BundleSource, out: Path) -> None:
    """Write the bundle; the folder appears only when it is complete."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: exists already; choose another folder")
    files = bundle_files(source)
    temporary = out.absolute().with_name(f".{out.absolute().name}.{os.getpid()}.tmp")
    with translate_write_errors(out):
        try:
            for name, data in files.items():
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(temporary / name, data)
            temporary.replace(out.absolute())
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def bundle_files(source: BundleSource) -> dict[str, bytes]:
    """Path in the bundle to contents."""
    metadata, inference = bundle_metadata(source), inference_config(source.student.config)
    return {
        MODEL: compile_whole_scan(source.student),
        "configs/metadata.json": json.dumps(metadata, indent=4).encode(),
        "configs/inference.json": json.dumps(inference, indent=4).encode(),
        "docs/README.md": _readme(source).encode(),
        **_documents(source),
    }


def inference_config(config: StudentConfig) -> dict[str, Any]:
    """`monai.bundle run` reads one file per modality, and writes probabilities and mask on the grid of the first."""
    names, first = list(config.modalities), config.needed[0]
    optional = {"allow_missing_keys": True} if config.optional else {}
    ordered = [first, *(name for name in names if name != first)]
    files = ", ".join(f"'{name}': @{name}" for name in ordered)
    fill = f"$lambda scan: {{**{{name: torch.zeros_like(scan['{first}']) for name in {names}}}, **scan}}"
    predict = f"@network_def(scan['image'].as_tensor()[None].to(@device), scan['{first}'].pixdim[None].to(@device))"
    return {
        "imports": ["$import torch", "$import monai"],
        "bundle_root": ".",
        "output_dir": "$@bundle_root + '/eval'",
        "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
        **{name: None if name in config.optional else f"{name}.nii.gz" for name in names},
        "datalist": f"$[{{name: path for name, path in {{{files}}}.items() if path}}]",
        "network_def": f"$torch.jit.load(@bundle_root + '/{MODEL}', map_location=@device).eval()",
        "preprocessing": {
            "_target_": "Compose",
            "transforms": [
                _transform("LoadImaged", names, reader="NibabelReader", ensure_channel_first=True, **optional),
                _transform("Orientationd", names, axcodes="RAS", labels=AXES, **optional),
                *([{"_target_": "Lambda", "func": fill}] if optional else []),
                _transform("ConcatItemsd", names, name="image"),
            ],
        },
        "dataset": {"_target_": "Dataset", "data": "@datalist", "transform": "@preprocessing"},
        "predict": f"$torch.no_grad()(lambda scan: {{**scan, 'pred': monai.data.MetaTensor({predict}[0].cpu())}})",
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                _transform("Invertd", "pred", transform="@preprocessing", orig_keys=first, nearest_interp=True),
                _transform("SplitDimd", "pred", output_postfixes=["probability", "mask"]),
                _save("probability", "float32"),
                _save("mask", "uint8"),
            ],
        },
        "run": ["$[@postprocessing(@predict(scan)) for scan in @dataset]"],
    }


def _transform(kind: str, keys: str | list[str], **options: Any) -> dict[str, Any]:
    return {"_target_": kind, "keys": keys, **options}


def _save(name: str, dtype: str) -> dict[str, Any]:
    options = {"output_dir": "@output_dir", "output_postfix": name, "output_dtype": dtype, "resample": False}
    return _transform("SaveImaged", f"pred_{name}", separate_folder=False, **options)


def bundle_metadata(source: BundleSource) -> dict[str, Any]:
    """By MONAI's schema for bundles."""
    config, shipped = source.student.config, source.shipped
    scores = {f"{score.what}, {score.data}": score.value for score in shipped.scores} if shipped else {}
    return {
        "schema": SCHEMA,
        "name": f"AnoFPDM {source.name}",
        "version": __version__,
        "changelog": {__version__: "exported by anofpdm"},
        "monai_version": MONAI_VERSION,
        "pytorch_version": torch.__version__,
        "numpy_version": np.__version__,
        "required_packages_version": {"nibabel": importlib.metadata.version("nibabel")},
        "task": "Lesion segmentation in brain MRI, trained with image-level labels only",
        "description": f"Student network of the AnoFPDM model {source.name}; for {source.scans}",
        "authors": "The AnoFPDM toolkit contributors" if shipped else "not stated",
        "copyright": f"Licence of the weights: {source.licence}",
        "data_type": "nibabel",
        "image_classes": f"{', '.join(config.modalities)}: raw intensities on one grid, 0 outside the brain",
        "pred_classes": "channel 0: probability of lesion; channel 1: 1 is lesion, 0 is not",
        "eval_metrics": scores,
        "intended_use": "Research only. Not a medical device; not for diagnosis or treatment.",
        "references": [PAPER],
        "network_data_format": _data_format(config),
        "anofpdm": {"student_sha256": source.student.sha256, "teacher_sha256": source.student.teacher_sha256},
    }


def _data_format(config: StudentConfig) -> dict[str, Any]:
    image = _tensor("magnitude", list(config.modalities), modality="MR")
    spacing = _tensor("mm", ["x", "y", "z"], type="vector", spatial_shape=[])
    pred = _tensor("segmentation", ["probability", "mask"], value_range=[0, 1])
    return {"inputs": {"image": image, "spacing": spacing}, "outputs": {"pred": pred}}


def _tensor(kind: str, channels: list[str], **others: Any) -> dict[str, Any]:
    """By default an image of any size."""
    return {
        "type": "image",
        "format": kind,
        "num_channels": len(channels),
        "spatial_shape": ["*", "*", "*"],
        "dtype": "float32",
        "value_range": [],
        "is_patch_data": False,
        "channel_def": {str(number): name for number, name in enumerate(channels)},
        **others,
    }


def _documents(source: BundleSource) -> dict[str, bytes]:
    """Cards and licences of the model. A shipped one without LICENSE: the terms in DATA_LICENSE, and the text if it is
    the package's own licence and installed."""
    paths = {there: source.folder / here for here, there in DOCUMENTS.items()}
    documents = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    if "LICENSE" not in documents and source.shipped:
        terms = documents.get("docs/data_license.txt", f"SPDX-License-Identifier: {source.licence}\n".encode())
        text = importlib.metadata.distribution("anofpdm").read_text("licenses/LICENSE")
        own = f"\n{text}" if text and source.licence == CODE_LICENCE else ""
        documents["LICENSE"] = terms + own.encode()
    return documents


def _readme(source: BundleSource) -> str:
    config = source.student.config
    files = " ".join(f"--{name} {name}.nii.gz" for name in config.modalities)
    optional = f" Optional: {', '.join(config.optional)}; omit the option of a missing one." if config.optional else ""
    return f"""# AnoFPDM {source.name}

Lesion segmentation in brain MRI; trained with image-level labels only. For {source.scans}.

## Run

    pip install "monai>={MONAI_VERSION}" nibabel fire
    python -m monai.bundle run --config_file configs/inference.json --output_dir out \\
        {files}

in the folder of this bundle. All files must be on one grid, in any orientation.{optional} Results are named after the
file of {config.needed[0]}: `_probability.nii.gz` (probability of lesion) and `_mask.nii.gz`, on its grid.

`models/model.ts` is TorchScript. It takes the images of one or several scans, [N, {len(config.modalities)}, X, Y, Z]
with axes towards right, anterior and superior, and the voxel size in mm, [N, 3]. It returns probability and mask,
[N, 2, X, Y, Z]. Normalisation, slices of {config.size} x {config.size} pixels, detection and removal of small
components are part of it.

## Limits

Scans are not checked: `anofpdm segment` warns of scans unlike those in training, registers raw series and strips the
skull; this bundle does not. A research tool, not a medical device.

Licence of the weights: {source.licence}.
"""
