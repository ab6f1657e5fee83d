"""Which tier a kernel is of: how it can be run again without the model.

1  copies and fills of the CUDA runtime
2  matrix products of cuBLAS and cuBLASLt
3  the framework's own kernels: called again through their operator
Triton kernels and kernels of other libraries are named as such; what no operator launched cannot be called again.
"""

from __future__ import annotations

import re

from chip.files.traces import Kernel, Operator

TIERS = {1: "tier1_cuda_runtime", 2: "tier2_cublas", 3: "tier3_framework"}
METHODS = {
    1: "cudaMemcpyAsync and cudaMemsetAsync called directly",
    2: "cuBLAS and cuBLASLt called directly",
    3: "the recorded operator called again",
}
PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "_addmm_activation"))
# as cuBLAS 12 and 13 name what they launch; the framework's own kernels carry at::native
CUBLAS = re.compile(
    r"^nvjet|^sm\d+_xmma|xmma_gemm|cutlass_\d+_|cutlass::Kernel|gemvx|gemv|gemm|splitKreduce|cublasLt|dot_kernel", re.I
)
NATIVE = re.compile(r"at::native|at_cuda_detail|at::cuda|c10::|softmax_warp_")
ATTENTION = re.compile(r"flash_fwd|flash::|fmha|cudnn|attention|mem_eff", re.I)
TRITON = re.compile(r"^triton_|_kernel_\d+d\d+d|^_\w+_kernel(_\d+)?$")


def plain(name: str) -> str:
    """A kernel's name as it is compared. Of the runtime's copies and fills the profiler says which memory they touch,
    but not always: one fill is `Memset (Device)`, and the same run again `Memset (Unknown)`."""
    return name.replace("Unknown", "Device") if name.startswith(("Memset ", "Memcpy ")) else name


def tier_of(kernel: Kernel, operator: Operator | None) -> int | None:
    """1, 2 or 3; None where nothing here can run it again."""
    if kernel.kind in ("memcpy", "memset"):
        return 1
    if operator is None:
        return None
    if kernel.kind == "kernel" and is_product(operator) and family_of(kernel) == "cublas":
        return 2
    return 3


def is_product(operator: Operator) -> bool:
    return operator.name.removeprefix("aten::") in PRODUCTS


def family_of(kernel: Kernel) -> str:
    """Whose kernel it is, by its name: runtime, cublas, attention, native, triton or custom."""
    if kernel.kind in ("memcpy", "memset"):
        return "runtime"
    if kernel.kind == "operator":
        return "operator"
    if NATIVE.search(kernel.name):
        return "native"
    if ATTENTION.search(kernel.name):
        return "attention"
    if TRITON.search(kernel.name):
        return "triton"
    if CUBLAS.search(kernel.name):
        return "cublas"
    return "custom"
