"""The matrix product behind an operator, as cuBLAS is asked for it: column-major, so C = A B becomes C' = B' A'."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chip.files.traces import Operator, TensorArg

BATCHED = ("bmm", "baddbmm")


@dataclass(frozen=True, slots=True)
class GemmOperand:
    """One operand as cuBLAS sees it: op, leading dimension, elements between batches, which tensor of the operator."""

    transposed: bool
    ld: int
    batch_stride: int
    tensor: int | None  # None: made anew (the result)


@dataclass(frozen=True, slots=True)
class Gemm:
    """C (m x n) = alpha op(A) op(B) + beta C, column-major; `bias` is a row added by a cuBLASLt epilogue."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    a: GemmOperand
    b: GemmOperand
    c: GemmOperand
    alpha: float = 1.0
    beta: float = 0.0
    bias: int | None = None  # tensor of the operator
    epilogue: str = ""  # "", "bias", "relu_bias", "gelu_bias"

    @property
    def api(self) -> str:
        if self.epilogue:
            return "cublasLtMatmul"
        return "cublasGemmStridedBatchedEx" if self.batch > 1 else "cublasGemmEx"

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


def gemm_of(operator: Operator) -> Gemm | str:
    """The product, or why it cannot be asked for directly."""
    name = operator.name.removeprefix("aten::")
    places = [a["tensor"] if isinstance(a, dict) and "tensor" in a else None for a in operator.args]
    first = 0 if name in ("mm", "bmm") else 1
    left, right = (*places[first : first + 2], None, None)[:2]
    if left is None or right is None:
        return "its operands were not recorded"
    x, y = operator.tensors[left], operator.tensors[right]
    if len(x.shape) != (3 if name in BATCHED else 2) or len(y.shape) != len(x.shape):
        return f"operands of {len(x.shape)} and {len(y.shape)} dimensions"
    batch = x.shape[0] if name in BATCHED else 1
    rows, inner, cols = x.shape[-2], x.shape[-1], y.shape[-1]
    if y.shape[-2] != inner or x.dtype != y.dtype:
        return "operands do not fit"
    if 0 in (batch, rows, inner, cols):
        return "an empty product"
    a, b = _matrix(y, right), _matrix(x, left)  # column-major: the right operand comes first
    if a is None or b is None:
        return "an operand must be copied first: neither of its strides is 1"
    c = GemmOperand(False, cols, rows * cols, None)
    product = Gemm(cols, rows, inner, batch, x.dtype, a, b, c)
    return product if first == 0 else _with_added(operator, name, product, places[0])


def _matrix(t: TensorArg, index: int) -> GemmOperand | None:
    """Row-major r x c with stride (ld, 1) is column-major c x r; with (1, ld) it must be transposed."""
    rows, cols = t.shape[-2:]
    down, across = t.stride[-2:]
    batch_stride = t.stride[0] if len(t.shape) == 3 else 0
    if across == 1 and down >= max(1, cols):
        return GemmOperand(False, down, batch_stride, index)
    if down == 1 and across >= max(1, rows):
        return GemmOperand(True, across, batch_stride, index)
    if cols == 1 and down == 1:  # a column: any leading dimension serves
        return GemmOperand(False, max(across, 1), batch_stride, index)
    if rows == 1 and across == 1:
        return GemmOperand(False, max(down, cols), batch_stride, index)
    return None


def _with_added(operator: Operator, name: str, product: Gemm, added: int | None) -> Gemm | str:
    """addmm and baddbmm: a bias row goes to the epilogue, a full matrix is copied to C first and then beta is used."""
    if added is None:
        return "what is added was not recorded"
    beta, alpha = (_number(operator, place, key) for place, key in ((3, "beta"), (4, "alpha")))
    bias = operator.tensors[added]
    row = bias.shape == (product.m,) and bias.stride == (1,)
    if name in ("addmm", "_addmm_activation") and row and alpha == beta == 1 and product.k > 1 and product.m > 1:
        gelu = bool(operator.kwargs.get("use_gelu", False))
        epilogue = "bias" if name == "addmm" else "gelu_bias" if gelu else "relu_bias"
        return replace(product, bias=added, epilogue=epilogue)
    return replace(product, alpha=alpha, beta=beta)


def _number(operator: Operator, place: int, key: str) -> float:
    """By name, or by place, as the profiler lists it."""
    value = operator.kwargs.get(key, operator.args[place] if len(operator.args) > place else 1)
    return float(value) if isinstance(value, (int, float)) else 1.0
