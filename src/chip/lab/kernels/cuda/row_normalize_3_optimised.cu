// Step 3, optimised: a row lives in registers; 16-byte loads; one reduction, by warp shuffles, of Welford's moments.
// Needs: sm_80 or later
//
// Adds: (1) float4 loads and stores, a quarter of the memory instructions, all in flight at once. (2) Mean and squared
// deviations travel together as (count, mean, M2) and merge exactly (Chan's form of Welford), so that one reduction does
// what took two, without the cancellation of E[x^2] - E[x]^2. (3) Shuffles within a warp; only rows over 1024 elements
// need a barrier at all, one. (4) A row of up to 1024 elements is one warp's, four rows a block: short rows fill the SM.
// Longer rows get more warps, not more a thread: 128 bytes each, which is eight loads in flight.
// Rows too long for registers are read a second time, which by then comes from L2.
#include "row_normalize.cuh"

template <int WIDTH>
struct alignas(4 * WIDTH) Pack {
  float v[WIDTH];
};

template <int WIDTH>
__device__ __forceinline__ Pack<WIDTH> load(const float* p) {
  Pack<WIDTH> out;
  if constexpr (WIDTH == 4) *reinterpret_cast<float4*>(out.v) = __ldcs(reinterpret_cast<const float4*>(p));
  else out.v[0] = __ldcs(p);
  return out;
}
template <int WIDTH>
__device__ __forceinline__ void store(float* p, const Pack<WIDTH>& value) {
  if constexpr (WIDTH == 4) __stcs(reinterpret_cast<float4*>(p), *reinterpret_cast<const float4*>(value.v));
  else __stcs(p, value.v[0]);
}

struct Moments {
  float count, mean, m2;
  __device__ __forceinline__ void merge(float n, float other_mean, float other_m2) {
    const float total = count + n, share = total > 0 ? __fdividef(n, total) : 0, delta = other_mean - mean;
    m2 += other_m2 + delta * delta * count * share;
    mean += delta * share;
    count = total;
  }
  __device__ __forceinline__ void merge_warp() {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2)
      merge(__shfl_xor_sync(~0u, count, lane), __shfl_xor_sync(~0u, mean, lane), __shfl_xor_sync(~0u, m2, lane));
  }
};

// Moments of the whole row from those of its threads, WARPS of them.
template <int WARPS>
__device__ __forceinline__ Moments reduce(Moments own) {
  own.merge_warp();
  if constexpr (WARPS == 1) return own;
  __shared__ Moments of_warp[WARPS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) of_warp[warp] = own;
  __syncthreads();
  Moments all = lane < WARPS ? of_warp[lane] : Moments{0, 0, 0};
  all.merge_warp();
  return all;
}

// WARPS on a row, ROWS rows a block, PACKS packs of a row in each thread's registers. Compared with the row's own length
// `packs` a thread may hold fewer: the rest counts as absent.
template <int WIDTH, int WARPS, int ROWS, int PACKS>
__global__ void __launch_bounds__(32 * WARPS * ROWS) in_registers(Rows r, int packs) {
  const int64_t row = int64_t(blockIdx.x) * ROWS + (ROWS > 1 ? threadIdx.x / 32 : 0);
  if (row >= r.rows) return;  // whole warps leave, and only where a row is one warp's
  const int first = ROWS > 1 ? threadIdx.x % 32 : threadIdx.x;
  const float* x = r.x + row * r.ldx;
  float* y = r.y + row * r.ldy;
  Pack<WIDTH> held[PACKS];
#pragma unroll
  for (int i = 0; i < PACKS; ++i) {
    const int at = first + i * 32 * WARPS;
    if (at < packs) held[i] = load<WIDTH>(x + at * WIDTH);
  }
  Moments own{0, 0, 0};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < PACKS; ++i)
    if (first + i * 32 * WARPS < packs) {
      own.count += WIDTH;
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) sum += held[i].v[j];
    }
  own.mean = own.count > 0 ? sum / own.count : 0;
#pragma unroll
  for (int i = 0; i < PACKS; ++i)
    if (first + i * 32 * WARPS < packs)
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) own.m2 += (held[i].v[j] - own.mean) * (held[i].v[j] - own.mean);
  const Moments all = reduce<WARPS>(own);
  const float scale = 1.f / sqrtf(all.m2 / (r.cols - 1));
#pragma unroll
  for (int i = 0; i < PACKS; ++i) {
    const int at = first + i * 32 * WARPS;
    if (at < packs) {
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) held[i].v[j] = (held[i].v[j] - all.mean) * scale;
      store<WIDTH>(y + at * WIDTH, held[i]);
    }
  }
}

template <int WIDTH>
__global__ void __launch_bounds__(1024) read_twice(Rows r, int packs) {
  const float* x = r.x + int64_t(blockIdx.x) * r.ldx;
  float* y = r.y + int64_t(blockIdx.x) * r.ldy;
  Moments own{0, 0, 0};
  for (int at = threadIdx.x; at < packs; at += 1024) {
    const Pack<WIDTH> p = *reinterpret_cast<const Pack<WIDTH>*>(x + int64_t(at) * WIDTH);  // to be kept in L2
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      own.count += 1;
      const float delta = p.v[j] - own.mean;
      own.mean += delta / own.count;
      own.m2 += delta * (p.v[j] - own.mean);
    }
  }
  const Moments all = reduce<32>(own);
  const float scale = 1.f / sqrtf(all.m2 / (r.cols - 1));
  for (int at = threadIdx.x; at < packs; at += 1024) {
    Pack<WIDTH> p = load<WIDTH>(x + int64_t(at) * WIDTH);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) p.v[j] = (p.v[j] - all.mean) * scale;
    store<WIDTH>(y + int64_t(at) * WIDTH, p);
  }
}

template <int WIDTH>
const char* launch(Rows r, cudaStream_t stream) {
  const int packs = r.cols / WIDTH;
  const unsigned rows = unsigned(r.rows), fours = unsigned((r.rows + 3) / 4);
  if (packs <= 32) in_registers<WIDTH, 1, 4, 1><<<fours, 128, 0, stream>>>(r, packs);
  else if (packs <= 64) in_registers<WIDTH, 1, 4, 2><<<fours, 128, 0, stream>>>(r, packs);
  else if (packs <= 128) in_registers<WIDTH, 1, 4, 4><<<fours, 128, 0, stream>>>(r, packs);
  else if (packs <= 256) in_registers<WIDTH, 1, 4, 8><<<fours, 128, 0, stream>>>(r, packs);
  else if (packs <= 512) in_registers<WIDTH, 2, 1, 8><<<rows, 64, 0, stream>>>(r, packs);
  else if (packs <= 1024) in_registers<WIDTH, 4, 1, 8><<<rows, 128, 0, stream>>>(r, packs);
  else if (packs <= 2048) in_registers<WIDTH, 8, 1, 8><<<rows, 256, 0, stream>>>(r, packs);
  else if (packs <= 4096) in_registers<WIDTH, 16, 1, 8><<<rows, 512, 0, stream>>>(r, packs);
  else if (packs <= 8192) in_registers<WIDTH, 32, 1, 8><<<rows, 1024, 0, stream>>>(r, packs);
  else read_twice<WIDTH><<<rows, 1024, 0, stream>>>(r, packs);
  return last_error();
}

const char* run(Rows r, cudaStream_t stream) {
  const bool wide = r.cols % 4 == 0 && r.ldx % 4 == 0 && r.ldy % 4 == 0 &&
                    reinterpret_cast<uintptr_t>(r.x) % 16 == 0 && reinterpret_cast<uintptr_t>(r.y) % 16 == 0;
  return wide ? launch<4>(r, stream) : launch<1>(r, stream);
}

ROW_NORMALIZE_ENTRY(run)
