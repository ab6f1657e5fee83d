// Step 1, naive: one thread takes one row and walks it three times (mean, variance, result).
// Needs: sm_80 or later
//
// Four passes over memory, and neighbouring threads read a whole row apart: of every 32-byte sector that a warp fetches
// it uses 4 bytes at once and hopes that the rest is still in cache when its turn comes. Sums are double: one thread adds
// up a whole row, one element after the other, and the rounding of each addition in fp32 would show in the result.
#include "row_normalize.cuh"

__global__ void naive(Rows r) {
  const int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= r.rows) return;
  const float* x = r.x + row * r.ldx;
  float* y = r.y + row * r.ldy;
  double sum = 0, squares = 0;
  for (int i = 0; i < r.cols; ++i) sum += x[i];
  const float mean = float(sum / r.cols);
  for (int i = 0; i < r.cols; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.f / sqrtf(float(squares / (r.cols - 1)));
  for (int i = 0; i < r.cols; ++i) y[i] = (x[i] - mean) * scale;
}

const char* run(Rows r, cudaStream_t stream) {
  naive<<<unsigned((r.rows + 127) / 128), 128, 0, stream>>>(r);
  return last_error();
}

ROW_NORMALIZE_ENTRY(run)
