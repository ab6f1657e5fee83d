// Rung 3, WMMA: the tensor cores, through CUDA's own C++ interface.
// Needs: sm_80 or later
//
// Adds the matrix unit: a warp multiplies 16 x 16 x 16 fragments in one instruction. Eight warps share a 128 x 128 tile,
// 64 x 32 each; slices of 32 along k pass through shared memory in 16-byte pieces. Loads and arithmetic still take
// turns, with a barrier between them, and fragments are loaded without regard to bank conflicts beyond a padded row.
// Roof: the mma.sync path, which is what WMMA becomes.
#include <mma.h>

#include "hgemm.cuh"
using namespace nvcuda;

constexpr int TILE = 128, DEPTH = 32, PITCH = DEPTH + 8;

template <typename T>
__device__ __forceinline__ void bring(T (*to)[PITCH], const T* from, int64_t ld, int row0, int rows, int k0, int k) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = threadIdx.x / 4 + 64 * i, first = threadIdx.x % 4 * 8;
    const T* source = from + (row0 + row) * ld + k0 + first;
    T* target = &to[row][first];
    if (row0 + row < rows && k0 + first + 8 <= k && reinterpret_cast<uintptr_t>(source) % 16 == 0) {
      *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(source);
    } else {
      for (int j = 0; j < 8; ++j)
        target[j] = row0 + row < rows && k0 + first + j < k ? source[j] : narrow<T>(0.f);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(256) tensor_tiles(Gemm<T> g) {
  __shared__ __align__(128) T a[TILE][PITCH], b[TILE][PITCH];
  __shared__ __align__(128) float patch[8][16 * 16];
  const int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / 4 * 64, warp_col = warp % 4 * 32;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[4][2];
  for (auto& row : sum)
    for (auto& f : row) wmma::fill_fragment(f, 0.f);
  for (int k0 = 0; k0 < g.k; k0 += DEPTH) {
    bring(a, g.a, g.lda, row0, g.m, k0, g.k);
    bring(b, g.b, g.ldb, col0, g.n, k0, g.k);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> x[4];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> y[2];  // B^T: k runs along its columns
#pragma unroll
      for (int i = 0; i < 4; ++i) wmma::load_matrix_sync(x[i], &a[warp_row + 16 * i][k], PITCH);
#pragma unroll
      for (int j = 0; j < 2; ++j) wmma::load_matrix_sync(y[j], &b[warp_col + 16 * j][k], PITCH);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) wmma::mma_sync(sum[i][j], x[i], y[j], sum[i][j]);
    }
    __syncthreads();
  }
  // a fragment's layout is not specified, so each goes through a patch of shared memory to be narrowed
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 2; ++j) {
      wmma::store_matrix_sync(patch[warp], sum[i][j], 16, wmma::mem_row_major);
      __syncwarp();
      for (int e = lane; e < 256; e += 32) {
        const int row = row0 + warp_row + 16 * i + e / 16, col = col0 + warp_col + 16 * j + e % 16;
        if (row < g.m && col < g.n) g.c[row * g.ldc + col] = narrow<T>(patch[warp][e]);
      }
      __syncwarp();
    }
}

template <typename T>
const char* run(Gemm<T> g, int, cudaStream_t stream) {
  tensor_tiles<<<dim3(ceil_div(g.n, TILE), ceil_div(g.m, TILE)), 256, 0, stream>>>(g);
  return last_error();
}

HGEMM_ENTRY(run)
