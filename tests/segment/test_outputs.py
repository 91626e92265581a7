"""Names of result files: users' scripts rely on them."""

import subprocess
import sys

from anofpdm.segment import outputs


def test_file_names():
    names = {name: value for name, value in vars(outputs).items() if name.isupper() and not name.startswith("_")}
    assert names == {
        "MASK": "mask.nii.gz",
        "ANOMALY_MAP": "anomaly_map.nii.gz",
        "FINDINGS": "findings.csv",
        "SLICES": "slices.csv",
        "SUMMARY": "summary.json",
        "OVERVIEW": "overview.png",
        "REPORT": "report.html",
        "SEG_NRRD": "mask.seg.nrrd",
        "LABEL_TABLE": "mask_labels.txt",
        "DICOM_SEG": "mask_seg.dcm",
        "DICOM_CAPTURE": "report_capture.dcm",
        "BIDS_DESCRIPTION": "dataset_description.json",
        "PREPARATION": "preparation",
        "BIDS_SUMMARY": "_desc-anofpdm_summary.json",
    }


def test_names_can_be_imported_without_torch_and_numpy():
    code = "import sys, anofpdm.segment.outputs; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
