// Rung 1, naive: one thread computes one element of C and walks along k by itself.
// Needs: sm_80 or later
//
// Each of the 2k operands is loaded for a single multiply-add. Neighbouring threads of a warp read different rows of B,
// k elements apart, so a load touches many cache lines; caches save memory traffic, nothing saves the load unit.
// Roof: the fp32 FMA units.
#include "hgemm.cuh"

template <typename T>
__global__ void naive(Gemm<T> g) {
  const int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= g.m || col >= g.n) return;
  const T *a = g.a + row * g.lda, *b = g.b + col * g.ldb;
  float sum = 0;
  for (int k = 0; k < g.k; ++k) sum += static_cast<float>(a[k]) * static_cast<float>(b[k]);
  g.c[row * g.ldc + col] = narrow<T>(sum);
}

template <typename T>
const char* run(Gemm<T> g, int, cudaStream_t stream) {
  const dim3 block(16, 16);
  naive<<<dim3(ceil_div(g.n, 16), ceil_div(g.m, 16)), block, 0, stream>>>(g);
  return last_error();
}

HGEMM_ENTRY(run)
