// Rung 2, shared-memory tiling: a block of 256 threads computes a 128 x 128 tile of C, 8 x 8 elements a thread.
// Needs: sm_80 or later
//
// Adds reuse. A slice of A and of B (128 x 16 each) is brought to shared memory once and read by the whole block: global
// loads fall by 128. Each thread keeps 64 sums in registers, so that 16 shared loads feed 64 multiply-adds. The slices
// lie transposed (k first): the eight values a thread wants are neighbours, two 16-byte loads.
// Roof: still the fp32 FMA units; the tensor cores idle.
#include "hgemm.cuh"

constexpr int TILE = 128, DEPTH = 16, PITCH = TILE + 4;  // the pitch spreads the transposed stores over the banks

template <typename T>
__device__ __forceinline__ void bring(float (*to)[PITCH], const T* from, int64_t ld, int row0, int rows, int k0, int k) {
  const int row = threadIdx.x / 2, first = threadIdx.x % 2 * 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const bool inside = row0 + row < rows && k0 + first + i < k;
    to[first + i][row] = inside ? static_cast<float>(from[(row0 + row) * ld + k0 + first + i]) : 0.f;
  }
}

template <typename T>
__global__ void __launch_bounds__(256) shared_tiles(Gemm<T> g) {
  __shared__ __align__(16) float a[DEPTH][PITCH], b[DEPTH][PITCH];
  const int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
  const int ty = threadIdx.x / 16 * 4, tx = threadIdx.x % 16 * 4;  // its 8 rows: ty..+3 and 64+ty..+3; columns alike
  float sum[8][8] = {};
  for (int k0 = 0; k0 < g.k; k0 += DEPTH) {
    bring(a, g.a, g.lda, row0, g.m, k0, g.k);
    bring(b, g.b, g.ldb, col0, g.n, k0, g.k);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < DEPTH; ++k) {
      float x[8], y[8];
      *reinterpret_cast<float4*>(x) = *reinterpret_cast<float4*>(&a[k][ty]);
      *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<float4*>(&a[k][64 + ty]);
      *reinterpret_cast<float4*>(y) = *reinterpret_cast<float4*>(&b[k][tx]);
      *reinterpret_cast<float4*>(y + 4) = *reinterpret_cast<float4*>(&b[k][64 + tx]);
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[i][j] += x[i] * y[j];
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = row0 + i / 4 * 64 + ty + i % 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int col = col0 + j / 4 * 64 + tx + j % 4;
      if (row < g.m && col < g.n) g.c[row * g.ldc + col] = narrow<T>(sum[i][j]);
    }
  }
}

template <typename T>
const char* run(Gemm<T> g, int, cudaStream_t stream) {
  shared_tiles<<<dim3(ceil_div(g.n, TILE), ceil_div(g.m, TILE)), 256, 0, stream>>>(g);
  return last_error();
}

HGEMM_ENTRY(run)
