// Step 2, fused: one block takes one row, keeps it in shared memory, and touches global memory once each way.
// Needs: sm_80 or later
//
// Two passes over memory, read and write, which is the least there can be; neighbouring threads read neighbouring
// elements. What is left: sums go through shared memory, log2(threads) barriers each, twice (mean, then variance), and a
// short row leaves most of its block idle.
#include "row_normalize.cuh"

constexpr int THREADS = 256;

__device__ float block_sum(float value, float* scratch) {
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    __syncthreads();
  }
  const float sum = scratch[0];
  __syncthreads();
  return sum;
}

__global__ void __launch_bounds__(THREADS) fused(Rows r) {
  extern __shared__ float row[];
  __shared__ float scratch[THREADS];
  const float* x = r.x + int64_t(blockIdx.x) * r.ldx;
  float* y = r.y + int64_t(blockIdx.x) * r.ldy;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < r.cols; i += THREADS) sum += row[i] = x[i];
  const float mean = block_sum(sum, scratch) / r.cols;
  for (int i = threadIdx.x; i < r.cols; i += THREADS) squares += (row[i] - mean) * (row[i] - mean);
  const float scale = 1.f / sqrtf(block_sum(squares, scratch) / (r.cols - 1));
  for (int i = threadIdx.x; i < r.cols; i += THREADS) y[i] = (row[i] - mean) * scale;
}

const char* run(Rows r, cudaStream_t stream) {
  const size_t bytes = size_t(r.cols) * sizeof(float);
  int device = 0, most = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (bytes + THREADS * sizeof(float) > size_t(most)) return "fused row_normalize: a row does not fit in shared memory";
  if (cudaFuncSetAttribute(fused, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)) != cudaSuccess)
    return last_error();
  fused<<<unsigned(r.rows), THREADS, bytes, stream>>>(r);
  return last_error();
}

ROW_NORMALIZE_ENTRY(run)
