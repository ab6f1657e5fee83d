// Rung 2, wgmma + TMA: a product for few rows at the bandwidth of memory, every SM with the same bytes of W.
// Needs: sm_90a
//
// The first rung has a block for each tile, and a block's life is short: half of it is filling its queue and emptying it.
// Here a block stays on its SM and has one queue from its first byte to its last. (1) W is cut into steps of a tile's rows
// by DEPTH elements of k; the steps, tile after tile, are divided evenly among the blocks (stream-K), so all of them read the
// same number of bytes, however many tiles there are. (2) One thread asks TMA for the steps, the queue is as deep as shared
// memory allows, and nobody computes an address. (3) W's rows are the 64 rows of wgmma and tokens its columns, 8 to 64 of them:
// both come from shared memory as TMA left them. (4) A tile that several blocks share is added up by the last of them to
// arrive, from what each left in a workspace, in a fixed order: the same inputs give the same bits. (5) As in the first rung
// the queue is filled with W before the kernel before has finished; x is asked for after it.
#include "hopper.cuh"
#include "skinny.cuh"

// TOKENS: 8, 16, 32 or 64. GROUPS: warpgroups, each with 64 rows of the tile. BOXES: of 64 elements along k, a step.
template <int TOKENS_, int GROUPS_, int BOXES_, int KIB_, bool GATED_>
struct Config {
  static constexpr int TOKENS = TOKENS_, GROUPS = GROUPS_, BOXES = BOXES_;
  static constexpr bool GATED = GATED_;
  static constexpr int ROWS = 64 * GROUPS, COLUMNS = GATED ? ROWS / 2 : ROWS;  // of W, and of the result, in a tile
  static constexpr int DEPTH = 64 * BOXES, THREADS = 128 * GROUPS + 32;
  static constexpr int W_BOX = ROWS * 128, X_BOX = TOKENS * 128, X_AT = BOXES * W_BOX;  // bytes
  static constexpr int STAGE_BYTES = BOXES * (W_BOX + X_BOX), STAGES = KIB_ * 1024 / STAGE_BYTES;
  static constexpr int BARRIERS = STAGES * STAGE_BYTES, BYTES = BARRIERS + 2 * STAGES * 8 + 1024;
  static constexpr int SUMS = 64 * TOKENS;  // of a warpgroup
};

// The steps of a block, and who shares a tile. Steps are counted through all tiles: tile = step / per_tile.
struct Share {
  int64_t total;
  int per_tile, blocks;
  __device__ __forceinline__ int first(int block) const { return int(block * total / blocks); }
  __device__ __forceinline__ int owner(int step) const { return int(((step + int64_t(1)) * blocks - 1) / total); }
};

template <typename C>
__device__ __forceinline__ void ask_w(const CUtensorMap& w, uint32_t to, uint32_t full, int step, int per_tile) {
  const int tile = step / per_tile, k = step % per_tile * C::DEPTH;
#pragma unroll
  for (int b = 0; b < C::BOXES; ++b) {
    if constexpr (C::GATED) tma_load(to + b * C::W_BOX, w, full, k + 64 * b, 0, 0, tile * (C::ROWS / 16));
    else tma_load(to + b * C::W_BOX, w, full, k + 64 * b, tile * C::ROWS);
  }
}
template <typename C>
__device__ __forceinline__ void ask_x(const CUtensorMap& x, uint32_t to, uint32_t full, int step, int per_tile) {
  const int k = step % per_tile * C::DEPTH;
#pragma unroll
  for (int b = 0; b < C::BOXES; ++b) tma_load(to + C::X_AT + b * C::X_BOX, x, full, k + 64 * b, 0);
}

template <typename C>
__device__ __forceinline__ void produce(const CUtensorMap& w, const CUtensorMap& x, uint32_t base, uint32_t full,
                                        uint32_t empty, int first, int end, int per_tile) {
  const int ahead = min(end - first, C::STAGES);
  for (int s = 0; s < ahead; ++s) {
    barrier_expect(full + 8 * s, C::STAGE_BYTES);
    ask_w<C>(w, base + s * C::STAGE_BYTES, full + 8 * s, first + s, per_tile);
  }
  wait_for_previous_kernel();
  for (int s = 0; s < ahead; ++s) ask_x<C>(x, base + s * C::STAGE_BYTES, full + 8 * s, first + s, per_tile);
  int stage = 0;
  uint32_t parity = 0;
  for (int step = first + ahead; step < end; ++step) {
    barrier_wait(empty + 8 * stage, parity);
    barrier_expect(full + 8 * stage, C::STAGE_BYTES);
    ask_w<C>(w, base + stage * C::STAGE_BYTES, full + 8 * stage, step, per_tile);
    ask_x<C>(x, base + stage * C::STAGE_BYTES, full + 8 * stage, step, per_tile);
    if (++stage == C::STAGES) stage = 0, parity ^= 1;
  }
}

// Adds what all blocks of this tile found, in their order; false where this one is not the last to arrive.
template <typename C>
__device__ __forceinline__ bool join(float (&sum)[C::TOKENS / 2], float* partial, int* arrived, const Share& share, int tile,
                                     int group) {
  __shared__ int before[C::GROUPS];
  const int thread = threadIdx.x % 128, begin = tile * share.per_tile;
  const int head = share.owner(begin), tail = share.owner(begin + share.per_tile - 1);
  // a block has at most two tiles that it shares: the one it begins with, and the one it ends with
  auto place = [&](int block) { return partial + ((block * 2 + (block == head)) * C::GROUPS + group) * C::SUMS + thread; };
  float* mine = place(blockIdx.x);
#pragma unroll
  for (int j = 0; j < C::TOKENS / 2; ++j) mine[j * 128] = sum[j];
  __threadfence();
  named_barrier(1 + group, 128);
  if (thread == 0) before[group] = atomicAdd(arrived + head * C::GROUPS + group, 1);
  named_barrier(1 + group, 128);
  if (before[group] != tail - head) return false;
  __threadfence();
#pragma unroll
  for (int j = 0; j < C::TOKENS / 2; ++j) sum[j] = 0;
  for (int block = head; block <= tail; ++block) {
    const float* theirs = place(block);
#pragma unroll
    for (int j = 0; j < C::TOKENS / 2; ++j) sum[j] += __ldcg(theirs + j * 128);
  }
  if (thread == 0) arrived[head * C::GROUPS + group] = 0;
  return true;
}

// Rows of W are columns of the result. Gated, TMA laid eight rows of gate above the same eight of up: one thread has both.
template <typename T, typename C>
__device__ __forceinline__ void write_out(const Skinny<T>& g, const float (&sum)[C::TOKENS / 2], int tile, int group) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  constexpr int HALVES = C::GATED ? 1 : 2;
#pragma unroll
  for (int half = 0; half < HALVES; ++half) {
    const int column = tile * C::COLUMNS + (C::GATED ? group * 32 + warp * 8 : group * 64 + warp * 16 + half * 8) + lane / 4;
    if (column >= g.n) continue;
    const float bias = g.bias ? widen(g.bias[column]) : 0, up_bias = C::GATED && g.bias ? widen(g.bias[g.n + column]) : 0;
#pragma unroll
    for (int i = 0; i < C::TOKENS / 4; ++i) {
      const int token = i / 2 * 8 + lane % 4 * 2 + i % 2, at = i / 2 * 4 + i % 2;
      if (token >= g.m) continue;
      float y = sum[at + half * 2] + bias;
      if constexpr (C::GATED) y = y / (1 + __expf(-y)) * (sum[at + 2] + up_bias);
      g.out[token * g.ldo + column] = narrow<T>(y);
    }
  }
}

template <typename T, typename C>
__device__ __forceinline__ void consume(const Skinny<T>& g, const Share& share, uint32_t base, uint32_t full, uint32_t empty,
                                        int first, int end) {
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  auto release = [&](int stage) {
    if (thread == 0) barrier_arrive(empty + 8 * stage);
  };
  float sum[C::TOKENS / 2];
  int stage = 0, step = first;
  uint32_t parity = 0;
  while (step < end) {
    const int tile = step / share.per_tile, stop = min(end, (tile + 1) * share.per_tile);
    const bool whole = stop - step == share.per_tile;
    int last = -1;
    for (bool fresh = true; step < stop; ++step) {
      const uint32_t at = base + stage * C::STAGE_BYTES;
      barrier_wait(full + 8 * stage, parity);
      wgmma_fence();
#pragma unroll
      for (int b = 0; b < C::BOXES; ++b) {
        const uint64_t rows = matrix_descriptor(at + b * C::W_BOX + group * 64 * 128);
        const uint64_t tokens = matrix_descriptor(at + C::X_AT + b * C::X_BOX);
#pragma unroll
        for (int i = 0; i < 4; ++i) wgmma<T>(sum, rows + i * STEP_16, tokens + i * STEP_16, !fresh || b || i);
      }
      wgmma_commit();
      wgmma_wait<1>();  // the step before is done: its stage may be filled again
      if (last >= 0) release(last);
      last = stage;
      fresh = false;
      if (++stage == C::STAGES) stage = 0, parity ^= 1;
    }
    wgmma_wait<0>();
    release(last);
    if (whole || join<C>(sum, g.partial, g.arrived, share, tile, group)) write_out<T, C>(g, sum, tile, group);
  }
}

template <typename T, typename C>
__global__ void __launch_bounds__(C::THREADS, 1)
    skinny_steps(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x, const Skinny<T> g,
                 const Share share) {
  extern __shared__ unsigned char memory[];
  const uint32_t base = (shared_address(memory) + 1023) & ~1023u;
  const uint32_t full = base + C::BARRIERS, empty = full + 8 * C::STAGES;
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::STAGES; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, C::GROUPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  __syncthreads();
  const int first = share.first(blockIdx.x), end = share.first(blockIdx.x + 1);
  if (threadIdx.x < 128 * C::GROUPS) consume<T, C>(g, share, base, full, empty, first, end);
  else if (threadIdx.x == 128 * C::GROUPS) produce<C>(w, x, base, full, empty, first, end, share.per_tile);
}

template <typename C, typename T>
const char* launch(const Skinny<T>& g, bool overlap, Workspace room, cudaStream_t stream) {
  CUtensorMap w, x;
  if constexpr (C::GATED) {  // eight rows of gate, the same of up, the next eight of gate, ...
    if (g.n % 8) return "skinny, wgmma rung: gated, it takes multiples of 8 columns";
    if (const char* wrong = describe_boxes<T, 4>(w, g.w, {g.k, 8, 2, g.n / 8}, {g.ldw, g.n * g.ldw, 8 * g.ldw},
                                                 {64, 8, 2, C::ROWS / 16}))
      return wrong;
  } else if (const char* wrong = describe(w, g.w, g.n, g.k, g.ldw, C::ROWS)) {
    return wrong;
  }
  if (const char* wrong = describe(x, g.x, g.m, g.k, g.ldx, C::TOKENS)) return wrong;
  const int per_tile = ceil_div(g.k, C::DEPTH);
  const int64_t total = int64_t(ceil_div(g.n, C::COLUMNS)) * per_tile;
  const int sms = sm_count(), blocks = total < sms ? int(total) : sms;
  if (blocks * C::GROUPS > room.counters || int64_t(blocks) * 2 * C::GROUPS * C::SUMS > room.floats)
    return "skinny, wgmma rung: the workspace is too small";
  return launch_early(skinny_steps<T, C>, dim3(blocks), C::THREADS, C::BYTES, overlap, stream, w, x, g,
                      Share{total, per_tile, blocks});
}

// config: 0, or warpgroups + 10 x boxes + 100 x (1 where the queue takes 208 KiB of shared memory instead of 160).
template <typename T, bool GATED, int TOKENS>
const char* run_for(const Skinny<T>& g, int config, bool overlap, Workspace room, cudaStream_t stream) {
  if (config == 0) config = 21;
  auto with = [&](auto c) { return launch<decltype(c)>(g, overlap, room, stream); };
  if (config == 11) return with(Config<TOKENS, 1, 1, 160, GATED>{});
  if (config == 21) return with(Config<TOKENS, 1, 2, 160, GATED>{});
  if (config == 12) return with(Config<TOKENS, 2, 1, 160, GATED>{});
  if (config == 22) return with(Config<TOKENS, 2, 2, 160, GATED>{});
  if (config == 121) return with(Config<TOKENS, 1, 2, 208, GATED>{});
  if (config == 112) return with(Config<TOKENS, 2, 1, 208, GATED>{});
  return "skinny, wgmma rung: no such config";
}

template <typename T, bool GATED>
const char* run(const Skinny<T>& g, int config, bool overlap, Workspace room, cudaStream_t stream) {
  if (g.m <= 8) return run_for<T, GATED, 8>(g, config, overlap, room, stream);
  if (g.m <= 16) return run_for<T, GATED, 16>(g, config, overlap, room, stream);
  if (g.m <= 32) return run_for<T, GATED, 32>(g, config, overlap, room, stream);
  return run_for<T, GATED, 64>(g, config, overlap, room, stream);
}

SKINNY_ENTRY(run)
