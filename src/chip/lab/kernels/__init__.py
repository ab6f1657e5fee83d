"""Kernels that we own: Triton (`triton/`, one file each) and CUDA C++ (`cuda/`, one file a step), with what builds
them, proves them right and holds them against PyTorch. Found by listing the two folders: see `catalog`."""
