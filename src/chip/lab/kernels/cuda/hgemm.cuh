// What every rung of the HGEMM ladder shares: the problem, its entry point, and the order of the tiles.
//
// C = A B^T with A (m x k), B (n x k) and C (m x n) row-major, as torch.nn.functional.linear has them: both factors are
// contiguous along k. Inputs and result are fp16 or bf16, sums are fp32. Nothing here includes torch: a rung compiles in
// seconds, and Python hands it plain pointers.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

template <typename T>
struct Gemm {
  const T* a;
  const T* b;
  T* c;
  int m, n, k;
  int64_t lda, ldb, ldc;  // elements from one row to the next
};

using bf16 = __nv_bfloat16;

template <typename T>
__device__ __forceinline__ T narrow(float x) {
  if constexpr (std::is_same_v<T, bf16>) return __float2bfloat16_rn(x);
  else return __float2half_rn(x);
}

// Two neighbours of a row as one 32-bit word, the first in the low half.
template <typename T>
__device__ __forceinline__ uint32_t narrow2(float low, float high) {
  T pair[2] = {narrow<T>(low), narrow<T>(high)};
  return *reinterpret_cast<uint32_t*>(pair);
}

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The i-th tile in bands of `group` tile rows, walked down within a band: tiles that run at the same time then share
// rows of A and of B, and what one SM brought from memory the others find in L2.
__device__ __forceinline__ void tile_at(int i, int tiles_m, int tiles_n, int group, int& row, int& col) {
  const int band = i / (group * tiles_n), first = band * group;
  const int height = min(group, tiles_m - first), within = i - band * group * tiles_n;
  row = first + within % height;
  col = within / height;
}

inline const char* last_error() {
  const cudaError_t e = cudaGetLastError();
  return e == cudaSuccess ? nullptr : cudaGetErrorString(e);
}

__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// A kernel that may begin before the one before it has finished, where `overlap` says so (programmatic dependent launch).
template <typename Kernel, typename... Arguments>
const char* launch_early(Kernel kernel, dim3 grid, int threads, int bytes, bool overlap, cudaStream_t stream,
                         const Arguments&... arguments) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) return last_error();
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t how = {};
  how.gridDim = grid;
  how.blockDim = dim3(threads);
  how.dynamicSmemBytes = bytes;
  how.stream = stream;
  how.attrs = &early;
  how.numAttrs = overlap ? 1 : 0;
  cudaLaunchKernelEx(&how, kernel, arguments...);
  return last_error();
}

// Defines the function that Python calls: nullptr, or what went wrong. `config` picks one of a rung's variants.
#define HGEMM_ENTRY(run)                                                                                          \
  extern "C" const char* hgemm(const void* a, const void* b, void* c, int m, int n, int k, int64_t lda,           \
                               int64_t ldb, int64_t ldc, int is_bf16, int config, cudaStream_t stream) {          \
    if (is_bf16) return run(Gemm<bf16>{(const bf16*)a, (const bf16*)b, (bf16*)c, m, n, k, lda, ldb, ldc}, config, stream); \
    return run(Gemm<__half>{(const __half*)a, (const __half*)b, (__half*)c, m, n, k, lda, ldb, ldc}, config, stream);      \
  }
