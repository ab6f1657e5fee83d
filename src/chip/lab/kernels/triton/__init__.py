"""Triton kernels, one file each. A file has

KIND                        the operator (`chip.ops`) it computes
inputs(op, ...)             random tensors for it, rows `pad` elements further apart than they are long
run(*tensors, out=None)     our kernel; PyTorch's answer where Triton cannot run (`language.usable` tells)
native(*tensors)            PyTorch's own, as a user would write it
reference(*tensors)         the same in float64
BENCH                       the calls worth timing
"""
