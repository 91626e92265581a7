"""A MONAI bundle, run by MONAI, computes what `anofpdm segment` does; its files are those of a bundle."""

import json
import zipfile
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import anofpdm
from anofpdm.cli.main import app
from anofpdm.export.monai_bundle import BundleSource, bundle_files
from anofpdm.models.registry import FOLDER, ShippedModel
from anofpdm.segment.model import load
from tests.export.export_toys import MAX_GAP, scan_with_lesions
from tests.optional_toys import save_model, scan_files

NEEDED = ("LICENSE", "configs/metadata.json", "configs/inference.json", "models/model.ts", "docs/README.md")
REQUIRED = (  # by MONAI's schema
    "schema", "version", "monai_version", "pytorch_version", "numpy_version", "required_packages_version", "task",
    "description", "authors", "copyright", "network_data_format",
)  # fmt: skip


def export(*words) -> str:
    done = CliRunner().invoke(app, ["export", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


def run_bundle(bundle: Path, out: Path, **files) -> None:
    """As `python -m monai.bundle run` does."""
    scripts = pytest.importorskip("monai.bundle", reason="monai is not installed")
    config = str(bundle / "configs" / "inference.json")
    words = {name: str(path) for name, path in files.items()}
    scripts.run(config_file=config, bundle_root=str(bundle), output_dir=str(out), device="cpu", **words)


@pytest.fixture
def uncompiled(monkeypatch):
    """Files of a bundle without its network, which takes seconds to compile."""
    monkeypatch.setattr("anofpdm.export.monai_bundle.compile_whole_scan", lambda _: b"")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "bundle"
    assert str(folder) in export("phantom-tumour", "--format", "monai", "--out", folder)
    return folder


@pytest.mark.filterwarnings("ignore::anofpdm.errors.ScanWarning")
def test_probabilities_and_mask_are_ours(bundle, tmp_path):
    files = scan_with_lesions(tmp_path, ("flair", "t2"), codes="PIR")
    result = load("phantom-tumour", "cpu").segment(files, engine="student")
    assert result.mask.any()
    run_bundle(bundle, tmp_path / "out", **files)
    probability = nib.Nifti1Image.from_filename(tmp_path / "out" / "p_flair_probability.nii.gz")
    np.testing.assert_allclose(probability.affine, nib.Nifti1Image.from_filename(files["flair"]).affine, atol=1e-5)
    np.testing.assert_allclose(probability.get_fdata(), result.anomaly_map, atol=MAX_GAP)
    mask = nib.Nifti1Image.from_filename(tmp_path / "out" / "p_flair_mask.nii.gz").get_fdata()
    assert (mask != result.mask).sum() <= 1e-3 * result.mask.sum()


def test_a_scan_without_an_optional_modality(tmp_path):
    model = load(save_model(tmp_path / "model"), "cpu")
    export(model.folder, "--format", "monai", "--out", tmp_path / "bundle")
    files = scan_files(tmp_path, modalities=("t2", "flair"))
    run_bundle(tmp_path / "bundle", tmp_path / "out", **files)
    probability = nib.Nifti1Image.from_filename(tmp_path / "out" / "p_flair_probability.nii.gz").get_fdata()
    np.testing.assert_allclose(probability, model.segment(files).anomaly_map, atol=MAX_GAP)


def test_files_of_the_bundle(bundle):
    assert all((bundle / name).is_file() for name in NEEDED)
    assert max(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) < 25e6
    assert (bundle / "LICENSE").read_text().startswith("SPDX-License-Identifier: Apache-2.0")
    names = zipfile.ZipFile(bundle / "models" / "model.ts").namelist()
    assert any("/code/" in name for name in names)  # TorchScript, which torch.load does not write
    assert "phantom-tumour" in (bundle / "docs" / "README.md").read_text()


def test_metadata(bundle):
    metadata = json.loads((bundle / "configs" / "metadata.json").read_text())
    assert set(REQUIRED) <= set(metadata)
    assert metadata["version"] == anofpdm.__version__
    assert all(isinstance(metadata[name], str) for name in REQUIRED[:5] + REQUIRED[6:10])
    for tensors in metadata["network_data_format"].values():
        for tensor in tensors.values():
            assert {"type", "format", "num_channels", "spatial_shape", "dtype", "value_range"} <= set(tensor)


def test_metadata_describe_the_network(bundle):
    scripts = pytest.importorskip("monai.bundle", reason="monai is not installed")
    files = {"meta_file": bundle / "configs" / "metadata.json", "config_file": bundle / "configs" / "inference.json"}
    spacing = {"spacing": torch.ones(1, 3)}
    options = {"device": "cpu", "any": 12, "extra_forward_args": spacing, "bundle_root": str(bundle)}
    scripts.verify_net_in_out(net_id="network_def", **{name: str(path) for name, path in files.items()}, **options)


@pytest.mark.usefixtures("uncompiled")
def test_licences_of_the_model_go_along(tmp_path):
    folder = save_model(tmp_path / "model")
    source = BundleSource(load(folder, "cpu").student, folder)
    assert source.licence == "not stated"
    assert "LICENSE" not in bundle_files(source)
    (folder / "LICENSE").write_text("CC BY 4.0")
    (folder / "DATA_LICENSE").write_text("of the scans")
    files = bundle_files(source)
    assert (files["LICENSE"], files["docs/data_license.txt"]) == (b"CC BY 4.0", b"of the scans")
    assert json.loads(files["configs/metadata.json"])["copyright"] == "Licence of the weights: see LICENSE"


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("licence", ["Apache-2.0", "CC-BY-NC-SA-4.0"])
def test_terms_of_shipped_weights_become_the_licence(licence, tmp_path, monkeypatch):
    folder = save_model(tmp_path / "model")
    terms = f"SPDX-License-Identifier: {licence}\nof the scans\n"
    (folder / "DATA_LICENSE").write_text(terms)
    model = ShippedModel("model", "scans", ("flair",), licence)
    monkeypatch.setattr(BundleSource, "shipped", model)
    files = bundle_files(BundleSource(load(folder, "cpu").student, folder))
    assert files["docs/data_license.txt"].decode() == terms
    assert files["LICENSE"].decode().startswith(terms)
    assert ("Apache License" in files["LICENSE"].decode()) == (licence == "Apache-2.0")


def test_what_exists_is_kept(tmp_path):
    (tmp_path / "file").write_text("mine")
    done = CliRunner().invoke(app, ["export", "phantom-tumour", "--format", "monai", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "exists already" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_model_without_a_student(tmp_path):
    for name in ("weights.safetensors", "config.json", "calibration.json"):
        (tmp_path / name).symlink_to(FOLDER / "phantom-tumour" / name)
    words = ["export", str(tmp_path), "--format", "onnx", "--out", str(tmp_path / "x.onnx")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "anofpdm distill" in done.output
