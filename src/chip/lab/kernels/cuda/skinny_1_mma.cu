// Rung 1, mma + cp.async: a product for few rows, y = x W^T (+ bias) or silu(gate) * up of it.
// Needs: sm_80 or later
//
// With up to 64 tokens a product is bound by reading W once. Rows of W are the rows of the tensor cores' tile and tokens
// its columns (mma m16n8k16), so one token costs no more bandwidth than eight. Four things keep the memory busy.
// (1) A sum over k may be taken in any order, as long as both factors agree: each lane takes 16 contiguous bytes of its
// rows of W and of x, and two mma use them as they are. No transposition, no ldmatrix, no exchange between lanes. (2) So a
// lane reads back only what it asked for itself: shared memory is a queue of its own, filled by cp.async STAGES tiles
// ahead, and no barrier is needed within the loop. (3) The eight warps of a block divide k among them and add up at the
// end; where there are fewer tiles than places on the device, blocks divide k too (`splits`), and the last to arrive adds
// their sums in a fixed order. (4) W does not depend on the kernel before: its first tiles are asked for before that
// one has finished (programmatic dependent launch, sm_90 or later), and only then x.
#include "skinny.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS, MOST_SPLITS = 8;

// TOKENS: tiles of 8 tokens. ROWS: tiles of 16 rows of W; gated, every second one is of `up`. CHUNKS: k in steps of 32.
template <int TOKENS_, int ROWS_, int CHUNKS_, int STAGES_, int RESIDENT_, bool GATED_>
struct Config {
  static constexpr int TOKENS = TOKENS_, ROWS = ROWS_, CHUNKS = CHUNKS_, STAGES = STAGES_, RESIDENT = RESIDENT_;
  static constexpr bool GATED = GATED_;
  static constexpr int DEPTH = 32 * CHUNKS;
  static constexpr int PIECES = CHUNKS * (2 * ROWS + TOKENS);  // of 16 bytes, a lane and stage
  static constexpr int COLUMNS = 16 * (GATED ? ROWS / 2 : ROWS);  // of the result, a block
  static constexpr int SUMS = 16 * ROWS * 8 * TOKENS;             // of a block
  static constexpr int QUEUE_BYTES = STAGES * PIECES * THREADS * 16, SUM_BYTES = (WARPS + 1) * SUMS * 4;
  static constexpr int BYTES = QUEUE_BYTES > SUM_BYTES ? QUEUE_BYTES : SUM_BYTES;
};

__device__ __forceinline__ void copy_async(uint32_t to, const void* from, int bytes) {  // the rest of 16 becomes zero
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ uint4 read_shared(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

template <typename T>
__device__ __forceinline__ void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
#define MMA(type)                                                                                        \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, "           \
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"                                           \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                            \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
  if constexpr (std::is_same_v<T, bf16>) MMA("bf16");
  else MMA("f16");
#undef MMA
}

// The lane's own queue of tiles on their way from memory.
template <typename T, typename C>
struct Queue {
  const Skinny<T>& g;
  uint32_t base;        // of this thread's first piece; the next lies THREADS x 16 bytes on
  int row, column, at;  // of W and of the result for the lane's first row; first k of the lane's pieces

  __device__ __forceinline__ Queue(const Skinny<T>& g, uint32_t memory) : g(g), base(memory + threadIdx.x * 16) {
    const int lane = threadIdx.x % 32;
    column = row = blockIdx.x * C::COLUMNS + lane / 4;
    at = lane % 4 * 8;
  }
  __device__ __forceinline__ uint32_t piece(int stage, int i) const { return base + (stage * C::PIECES + i) * (THREADS * 16); }
  // bytes of the 16 at k that lie inside the matrix
  __device__ __forceinline__ int bytes(int k) const { return min(16, max(0, (g.k - k) * 2)); }

  __device__ __forceinline__ void ask_w(int stage, int step) const {
#pragma unroll
    for (int r = 0; r < C::ROWS; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int down = 16 * (C::GATED ? r / 2 : r) + 8 * half;
        const bool inside = column + down < g.n;
        const int64_t from = C::GATED && r % 2 ? int64_t(row) + down + g.n : int64_t(row) + down;
#pragma unroll
        for (int c = 0; c < C::CHUNKS; ++c) {
          const int k = step * C::DEPTH + c * 32 + at, size = inside ? bytes(k) : 0;
          copy_async(piece(stage, (r * 2 + half) * C::CHUNKS + c), size ? g.w + from * g.ldw + k : g.w, size);
        }
      }
  }
  __device__ __forceinline__ void ask_x(int stage, int step) const {
#pragma unroll
    for (int t = 0; t < C::TOKENS; ++t) {
      const int token = t * 8 + threadIdx.x % 32 / 4;
#pragma unroll
      for (int c = 0; c < C::CHUNKS; ++c) {
        const int k = step * C::DEPTH + c * 32 + at, size = token < g.m ? bytes(k) : 0;
        copy_async(piece(stage, (2 * C::ROWS + t) * C::CHUNKS + c), size ? g.x + token * g.ldx + k : g.x, size);
      }
    }
  }
};

template <typename T, typename C>
__device__ __forceinline__ void multiply_tile(float (&sum)[C::ROWS][C::TOKENS][4], const Queue<T, C>& queue, int stage) {
#pragma unroll
  for (int c = 0; c < C::CHUNKS; ++c) {
    uint4 x[C::TOKENS];
#pragma unroll
    for (int t = 0; t < C::TOKENS; ++t) x[t] = read_shared(queue.piece(stage, (2 * C::ROWS + t) * C::CHUNKS + c));
#pragma unroll
    for (int r = 0; r < C::ROWS; ++r) {
      const uint4 upper = read_shared(queue.piece(stage, (r * 2) * C::CHUNKS + c));
      const uint4 lower = read_shared(queue.piece(stage, (r * 2 + 1) * C::CHUNKS + c));
#pragma unroll
      for (int t = 0; t < C::TOKENS; ++t) {
        multiply<T>(sum[r][t], upper.x, lower.x, upper.y, lower.y, x[t].x, x[t].y);
        multiply<T>(sum[r][t], upper.z, lower.z, upper.w, lower.w, x[t].z, x[t].w);
      }
    }
  }
}

// Sums of the eight warps become those of the block: total[token x 16 ROWS + row].
template <typename C>
__device__ __forceinline__ void add_warps(const float (&sum)[C::ROWS][C::TOKENS][4], float* each, float* total) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < C::ROWS; ++r)
#pragma unroll
    for (int t = 0; t < C::TOKENS; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) each[warp * C::SUMS + ((r * C::TOKENS + t) * 4 + i) * 32 + lane] = sum[r][t][i];
  __syncthreads();
  for (int o = threadIdx.x; o < C::SUMS; o += THREADS) {
    const int row = o % (16 * C::ROWS), token = o / (16 * C::ROWS);
    const int i = row % 16 / 8 * 2 + token % 2, from = row % 8 * 4 + token % 8 / 2;  // where mma left it
    const int place = ((row / 16 * C::TOKENS + token / 8) * 4 + i) * 32 + from;
    float all = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) all += each[w * C::SUMS + place];
    total[o] = all;
  }
  __syncthreads();
}

// Adds what the other blocks of this tile found, in their order; false where this one is not the last to arrive.
template <typename T, typename C>
__device__ __forceinline__ bool add_blocks(const Skinny<T>& g, float* total) {
  __shared__ bool last;
  float* mine = g.partial + (int64_t(blockIdx.y) * gridDim.x + blockIdx.x) * C::SUMS;
  for (int o = threadIdx.x; o < C::SUMS; o += THREADS) mine[o] = total[o];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&g.arrived[blockIdx.x], 1) == g.splits - 1;
  __syncthreads();
  if (!last) return false;
  __threadfence();
  for (int o = threadIdx.x; o < C::SUMS; o += THREADS) {
    float all = 0;
    for (int s = 0; s < g.splits; ++s) all += __ldcg(g.partial + (int64_t(s) * gridDim.x + blockIdx.x) * C::SUMS + o);
    total[o] = all;
  }
  if (threadIdx.x == 0) g.arrived[blockIdx.x] = 0;
  __syncthreads();
  return true;
}

template <typename T, typename C>
__device__ __forceinline__ void write_out(const Skinny<T>& g, const float* total) {
  for (int o = threadIdx.x; o < C::COLUMNS * 8 * C::TOKENS; o += THREADS) {
    const int j = o % C::COLUMNS, token = o / C::COLUMNS, column = blockIdx.x * C::COLUMNS + j;
    if (token >= g.m || column >= g.n) continue;
    const float* row = total + token * 16 * C::ROWS;
    float y = row[C::GATED ? j / 16 * 32 + j % 16 : j];
    if (g.bias) y += widen(g.bias[column]);
    if constexpr (C::GATED) {
      float up = row[j / 16 * 32 + 16 + j % 16];
      if (g.bias) up += widen(g.bias[g.n + column]);
      y = y / (1 + __expf(-y)) * up;
    }
    g.out[token * g.ldo + column] = narrow<T>(y);
  }
}

template <typename T, typename C>
__global__ void __launch_bounds__(THREADS, C::RESIDENT) skinny_tiles(const Skinny<T> g) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Queue<T, C> queue(g, static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
  const int steps = ceil_div(g.k, C::DEPTH), share = ceil_div(steps, g.splits);
  const int first = blockIdx.y * share + threadIdx.x / 32, end = min(steps, (int(blockIdx.y) + 1) * share);
  const int count = first < end ? ceil_div(end - first, WARPS) : 0;  // of this warp: first, first + WARPS, ...
  let_next_kernel_start();
#pragma unroll
  for (int s = 0; s < C::STAGES - 1; ++s)
    if (s < count) queue.ask_w(s, first + s * WARPS);
  wait_for_previous_kernel();
#pragma unroll
  for (int s = 0; s < C::STAGES - 1; ++s) {
    if (s < count) queue.ask_x(s, first + s * WARPS);
    commit();
  }
  float sum[C::ROWS][C::TOKENS][4] = {};
  int stage = 0;
  for (int i = 0; i < count; ++i) {
    wait_copies<C::STAGES - 2>();  // this tile has come; an empty group past the end keeps the count right
    const int next = i + C::STAGES - 1, to = stage == 0 ? C::STAGES - 1 : stage - 1;
    if (next < count) {
      queue.ask_w(to, first + next * WARPS);
      queue.ask_x(to, first + next * WARPS);
    }
    commit();
    multiply_tile<T, C>(sum, queue, stage);
    if (++stage == C::STAGES) stage = 0;
  }
  wait_copies<0>();
  __syncthreads();  // the queues are empty: their memory holds sums from here on
  float* each = reinterpret_cast<float*>(memory);
  float* total = each + WARPS * C::SUMS;
  add_warps<C>(sum, each, total);
  if (g.splits > 1 && !add_blocks<T, C>(g, total)) return;
  write_out<T, C>(g, total);
}

// Blocks for each tile: as many as fill the device once, each with two tiles of k or more for every warp.
inline int splits_for(int tiles, int steps, int places) {
  const int fill = tiles > places ? 1 : places / tiles, least = steps / (2 * WARPS);
  const int splits = min(min(fill, MOST_SPLITS), least);
  return splits > 1 ? splits : 1;
}

template <typename C, typename T>
const char* launch(Skinny<T> g, int splits, bool overlap, Workspace room, cudaStream_t stream) {
  const int tiles = ceil_div(g.n, C::COLUMNS);
  g.splits = splits ? splits : splits_for(tiles, ceil_div(g.k, C::DEPTH), sm_count() * C::RESIDENT);
  if (g.splits > 1 && (tiles > room.counters || int64_t(g.splits) * tiles * C::SUMS > room.floats))
    return "skinny: the workspace is too small for so many splits";
  return launch_early(skinny_tiles<T, C>, dim3(tiles, g.splits), THREADS, C::BYTES, overlap, stream, g);
}

// config: 0, or the number of splits.
template <typename T, bool GATED>
const char* run(const Skinny<T>& g, int config, bool overlap, Workspace room, cudaStream_t stream) {
  if (g.ldx % 8 || g.ldw % 8 || (uintptr_t)g.x % 16 || (uintptr_t)g.w % 16)
    return "skinny: rows of x and W must start at multiples of 16 bytes (cp.async)";
  if (config < 0 || config > MOST_SPLITS) return "skinny: no such config";
  int device = 0, most = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  auto with = [&](auto c) { return launch<decltype(c)>(g, config, overlap, room, stream); };
  if constexpr (GATED) {
    if (g.m <= 8) return with(Config<1, 2, 1, 4, 2, true>{});
    if (g.m <= 16) return with(Config<2, 2, 1, 4, 2, true>{});
  } else {
    if (g.m <= 8) return with(Config<1, 1, 2, 4, 2, false>{});
    if (g.m <= 16) return with(Config<2, 1, 2, 3, 2, false>{});
  }
  if (g.m <= 32) return with(Config<4, 2, 1, 3, 2, GATED>{});
  if (most >= Config<8, 4, 1, 3, 1, GATED>::BYTES) return with(Config<8, 4, 1, 3, 1, GATED>{});
  return with(Config<8, 2, 1, 2, 1, GATED>{});
}

SKINNY_ENTRY(run)
