"""Export of a student to formats that other programs run: ONNX and MONAI bundles."""
