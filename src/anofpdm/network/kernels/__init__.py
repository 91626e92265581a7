"""GPU kernels in Triton and CUDA graphs. Each has a plain torch equivalent."""
