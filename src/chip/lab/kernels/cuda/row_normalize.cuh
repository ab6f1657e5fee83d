// What the three steps of row normalisation share: y = (x - mean) / std of each row, fp32, std with cols - 1 as torch has it.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

struct Rows {
  const float* x;
  float* y;
  int64_t rows;
  int cols;
  int64_t ldx, ldy;  // elements from one row to the next
};

inline const char* last_error() {
  const cudaError_t e = cudaGetLastError();
  return e == cudaSuccess ? nullptr : cudaGetErrorString(e);
}

// Defines the function that Python calls: nullptr, or what went wrong.
#define ROW_NORMALIZE_ENTRY(run)                                                                                \
  extern "C" const char* row_normalize(const float* x, float* y, int64_t rows, int cols, int64_t ldx, int64_t ldy, \
                                       cudaStream_t stream) {                                                    \
    return run(Rows{x, y, rows, cols, ldx, ldy}, stream);                                                        \
  }
