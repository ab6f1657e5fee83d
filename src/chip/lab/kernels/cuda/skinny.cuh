// What the rungs of the product for few rows share: the problem, its entry point, and the launch that may start early.
//
// y = x W^T (+ bias) with x (m x k, m at most 64) and W (n x k) row-major; or, gated, y = silu(gate) * up, where W holds the n
// rows of gate above the n rows of up.
#pragma once
#include "hgemm.cuh"

constexpr int MOST_TOKENS = 64;

template <typename T>
struct Skinny {
  const T* x;
  const T* w;
  const T* bias;  // or null
  T* out;
  float* partial;  // sums of blocks that share a tile
  int* arrived;    // how many of them are done; zero between launches
  int m, n, k;     // n: columns of the result; a gated W has 2 n rows
  int64_t ldx, ldw, ldo;
  int splits;
};

template <typename T>
__device__ __forceinline__ float widen(T x) {
  if constexpr (std::is_same_v<T, bf16>) return __bfloat162float(x);
  else return __half2float(x);
}

// Where blocks that share a tile leave their sums: elements and counters.
struct Workspace {
  int64_t floats;
  int counters;
};

inline int sm_count() {
  int device = 0, found = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device);
  return found;
}

// Defines the function that Python calls: nullptr, or what went wrong. `run<T, gated>` is the rung's own.
#define SKINNY_ENTRY(run)                                                                                               \
  template <typename T>                                                                                                 \
  const char* enter(const Skinny<T>& g, bool gated, int config, bool overlap, Workspace room, cudaStream_t stream) {    \
    if (g.m < 1 || g.m > MOST_TOKENS) return "skinny: takes 1 to 64 rows of x";                                         \
    return gated ? run<T, true>(g, config, overlap, room, stream) : run<T, false>(g, config, overlap, room, stream);    \
  }                                                                                                                     \
  extern "C" const char* skinny(const void* x, const void* w, const void* bias, void* out, void* partial,               \
                                void* arrived, int m, int n, int k, int64_t ldx, int64_t ldw, int64_t ldo, int is_bf16, \
                                int gated, int config, int overlap, int64_t floats, int counters,                       \
                                cudaStream_t stream) {                                                                  \
    const Workspace room{floats, counters};                                                                             \
    if (is_bf16)                                                                                                        \
      return enter(Skinny<bf16>{(const bf16*)x, (const bf16*)w, (const bf16*)bias, (bf16*)out, (float*)partial,         \
                                (int*)arrived, m, n, k, ldx, ldw, ldo, 1},                                              \
                   gated, config, overlap, room, stream);                                                               \
    return enter(Skinny<__half>{(const __half*)x, (const __half*)w, (const __half*)bias, (__half*)out, (float*)partial, \
                                (int*)arrived, m, n, k, ldx, ldw, ldo, 1},                                              \
                 gated, config, overlap, room, stream);                                                                 \
  }
