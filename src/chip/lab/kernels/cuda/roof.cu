// The roofs of the HGEMM ladder's first four rungs: how fast an instruction path is when it waits for nothing.
// Needs: sm_80 or later
//
// Each warp repeats the path's instruction on values that are in registers already: fp32 FMA, or mma.sync m16n8k16 with
// fp32 sums. Enough independent chains hide the latency; the values are random, for zeros would draw less power.
#include "hgemm.cuh"

constexpr int CHAINS = 8, REPEATS = 8;  // independent sums of a warp; instructions of each chain per turn of the loop

__device__ __forceinline__ uint32_t scramble(uint32_t x) {  // a value of magnitude about one in each half, either type
  x = (x ^ 61) ^ (x >> 16), x *= 9, x ^= x >> 4, x *= 0x27d4eb2d, x ^= x >> 15;
  return (x & 0x807F807F) | 0x3F003F00;
}

template <typename T>
__global__ void __launch_bounds__(256) mma_path(float* out, int turns, unsigned seed) {
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = scramble(seed + threadIdx.x * 8 + i);
  for (int i = 0; i < 2; ++i) b[i] = scramble(seed + threadIdx.x * 8 + 4 + i);
  float d[CHAINS][4] = {};
  for (int t = 0; t < turns; ++t)
#pragma unroll
    for (int r = 0; r < REPEATS; ++r)
#pragma unroll
      for (int c = 0; c < CHAINS; ++c) {
#define MMA(type)                                                                                       \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, "          \
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"                                          \
               : "+f"(d[c][0]), "+f"(d[c][1]), "+f"(d[c][2]), "+f"(d[c][3])                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
        if constexpr (std::is_same_v<T, bf16>) MMA("bf16");
        else MMA("f16");
      }
  float sum = 0;
  for (int c = 0; c < CHAINS; ++c) sum += d[c][0] + d[c][1] + d[c][2] + d[c][3];
  if (sum == 12345.f) *out = sum;  // never, but the compiler cannot know
}

__global__ void __launch_bounds__(256) fma_path(float* out, int turns, unsigned seed) {
  const float x = __uint_as_float(scramble(seed + threadIdx.x) & 0x3F7FFFFF);  // below one: the sums stay finite
  float d[CHAINS];
  for (int c = 0; c < CHAINS; ++c) d[c] = threadIdx.x + c;
  for (int t = 0; t < turns; ++t)
#pragma unroll
    for (int r = 0; r < REPEATS; ++r)
#pragma unroll
      for (int c = 0; c < CHAINS; ++c) d[c] = fmaf(d[c], x, x);
  float sum = 0;
  for (int c = 0; c < CHAINS; ++c) sum += d[c];
  if (sum == 12345.f) *out = sum;
}

// FLOPs of one call come back through `flops`. path: 0 fp32 FMA, 1 mma.sync of fp16, 2 mma.sync of bf16.
extern "C" const char* roof(int path, int turns, float* out, double* flops, cudaStream_t stream) {
  int device = 0, sms = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  const int blocks = sms * (path == 0 ? 8 : 2);
  const double per_warp = path == 0 ? 2.0 * 32 : 2.0 * 16 * 8 * 16;
  *flops = per_warp * blocks * 8 * double(turns) * REPEATS * CHAINS;
  if (path == 0) fma_path<<<blocks, 256, 0, stream>>>(out, turns, 1);
  else if (path == 1) mma_path<__half><<<blocks, 256, 0, stream>>>(out, turns, 1);
  else mma_path<bf16><<<blocks, 256, 0, stream>>>(out, turns, 1);
  return last_error();
}
