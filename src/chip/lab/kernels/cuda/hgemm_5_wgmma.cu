// Rung 5, wgmma + TMA: what Hopper was built for. Warp-specialised, persistent, in clusters.
// Needs: sm_90a
//
// Adds four things. (1) wgmma reads both operands from shared memory and runs asynchronously: a warpgroup multiplies
// 64 x 256 x 16 with one instruction, and no fragment passes through registers on the way in. (2) TMA: one thread asks
// for a whole tile; addresses, bounds and swizzle are the copy engine's work. (3) Roles: one warpgroup only loads and
// gives its registers away, two only multiply, 64 rows of the tile each; mbarriers hand the stages of a ring to and fro,
// so nobody waits for a whole block. (4) A block stays on its SM and takes tile after tile: the loads of the next tile
// run during the last tile's epilogue. Two blocks of a cluster work on tiles one above the other: each loads half of the
// B tile they share, for both (multicast), which saves a third of the reads from L2.
// The last round of tiles leaves SMs idle: tiles of many widths, so that one of them comes out nearly even. Where a product
// has fewer tiles than the device has SMs, blocks divide k. Either two blocks of a cluster (PARTS): each sends the sums of
// half the rows to the other's shared memory and finishes the other half. Or any number (`splits`): each leaves its sums in
// a workspace, as its registers hold them, and the last to arrive adds them in a fixed order and writes the tile.
// A launch may start early: B, the weights, is then asked for while the kernel before it still runs.
// Roof: the wgmma path.
#include "hopper.cuh"

template <int BM_, int BN_, int STAGES_, int HIGH_, int PARTS_ = 1>
struct Config {
  static constexpr int BM = BM_, BN = BN_, STAGES = STAGES_;
  static constexpr int HIGH = HIGH_;    // blocks of a cluster one above the other: they share what they load of B
  static constexpr int PARTS = PARTS_;  // parts of k, a block of the cluster each
  static constexpr int CLUSTER = HIGH * PARTS;
  static constexpr int DEPTH = 64, ROW_BYTES = 128;
  static constexpr int CONSUMERS = 2, THREADS = 128 * (1 + CONSUMERS);
  static constexpr int WG_ROWS = BM / CONSUMERS;  // rows of the tile that one warpgroup multiplies
  static constexpr int STAGE_BYTES = (BM + BN) * ROW_BYTES;
  static constexpr int PATCH_COLS = BN % 32 ? 16 : BN % 64 ? 32 : 64, PATCH_ROW_BYTES = 2 * PATCH_COLS;
  static constexpr int PATCH_BYTES = 64 * PATCH_ROW_BYTES;  // 64 rows of C on their way out; two for each warpgroup that writes
  static constexpr int PATCHES = STAGES * STAGE_BYTES;
  static constexpr int SENT = PATCHES + 2 * (CONSUMERS / PARTS) * PATCH_BYTES;  // sums from the other block
  static constexpr int BARRIERS = SENT + (PARTS - 1) * WG_ROWS * BN * 4;
  static constexpr int BYTES = BARRIERS + (2 * STAGES + 2) * 8 + 1024;  // 1024: to start at a multiple of it
  static_assert(BYTES <= 232448 && (PARTS == 1 || PARTS == CONSUMERS));
};

// Where blocks that share a tile leave their sums, and how many of them have arrived (zero between launches).
struct Shared {
  float* sums;
  int* arrived;
  int splits;
};

// Which tiles a cluster takes, in which order, and which part of k: the same for its producer and its consumers.
// `splits` counts the parts of k; `in_cluster` those that one cluster takes at once, of which this block has number `part`.
struct Walk {
  int tiles_m, tiles_n, tiles_k, group, splits, in_cluster, part, at, step;
  __device__ __forceinline__ bool next(int& row, int& col, int& split, int& first, int& end) {
    const int jobs = splits / in_cluster;
    if (at >= tiles_m * tiles_n * jobs) return false;
    tile_at(at / jobs, tiles_m, tiles_n, group, row, col);
    split = at % jobs * in_cluster + part;
    const int share = ceil_div(tiles_k, splits);  // no part is empty: see `launch`
    first = split * share;
    end = min(first + share, tiles_k);
    at += step;
    return true;
  }
};

// The stage of the ring that is next, and the parity of its phase.
template <int STAGES>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// Before the kernel before this one has finished, B is asked for as far as the ring goes; A may be its result.
template <typename C>
__device__ __forceinline__ void produce(Walk walk, int above, uint32_t base, uint32_t full, uint32_t empty,
                                        const CUtensorMap& a, const CUtensorMap& b) {
  constexpr int SLICE = C::BN / C::HIGH;  // rows of the B tile that this block loads for all that share it
  const uint16_t mask = ((1 << C::HIGH) - 1) << (walk.part * C::HIGH);
  auto load_b = [&](int stage, int k, int col) {
    const uint32_t to = base + stage * C::STAGE_BYTES + (C::BM + above * SLICE) * C::ROW_BYTES, landed = full + 8 * stage;
    if constexpr (C::HIGH == 1) tma_load(to, b, landed, k * C::DEPTH, col * C::BN);
    else tma_load_multicast(to, b, landed, k * C::DEPTH, col * C::BN + above * SLICE, mask);
  };
  Ring<C::STAGES> ring;
  bool begun = false;
  int row, col, split, first, end, early = 0;  // stages whose part of B is on its way
  while (walk.next(row, col, split, first, end)) {
    if (!begun) {
      for (begun = true; early < min(C::STAGES, end - first); ++early) {
        barrier_expect(full + 8 * early, C::STAGE_BYTES);  // bytes from this block and from its neighbour
        load_b(early, first + early, col);
      }
      wait_for_previous_kernel();
    }
    for (int k = first; k < end; ++k, ring.advance()) {
      const uint32_t landed = full + 8 * ring.stage;
      if (early > 0) --early;
      else {
        barrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);  // all consumers that share it are done with it
        barrier_expect(landed, C::STAGE_BYTES);
        load_b(ring.stage, k, col);
      }
      tma_load(base + ring.stage * C::STAGE_BYTES, a, landed, k * C::DEPTH, (row * C::HIGH + above) * C::BM);
    }
  }
}

// 64 rows of sums through two swizzled patches of shared memory to C, 64, 32 or 16 columns at a time.
template <typename T, typename C>
__device__ __forceinline__ void write_out(const float (&sum)[C::BN / 2], uint32_t patches, const CUtensorMap& c, int row,
                                          int col, int group) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const int in_row = warp * 16 + lane % 16, in_piece = lane / 16;  // the row stmatrix wants of this lane
  constexpr int PARTS = C::BN / C::PATCH_COLS, PIECES = C::PATCH_COLS / 8;
  const int swizzle = in_row * C::PATCH_ROW_BYTES / 128 % PIECES;
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
    const uint32_t patch = patches + part % 2 * C::PATCH_BYTES;
    if (thread == 0) {  // the store from this patch, two back, has read it; after an odd number of parts, the last one
      if (PARTS % 2 && part == 0) tma_wait_read<0>();
      else tma_wait_read<1>();
    }
    named_barrier(1 + group, 128);
#pragma unroll
    for (int j = 0; j < PIECES; j += 2) {
      const float* d = &sum[(part * PIECES + j) * 4];
      const uint32_t to = patch + in_row * C::PATCH_ROW_BYTES + (((j + in_piece) ^ swizzle) << 4);
      store_matrices(to, narrow2<T>(d[0], d[1]), narrow2<T>(d[2], d[3]), narrow2<T>(d[4], d[5]), narrow2<T>(d[6], d[7]));
    }
    fence_for_tma();
    named_barrier(1 + group, 128);
    if (thread == 0) tma_store(c, patch, col + part * C::PATCH_COLS, row);
  }
}

// The sums of all blocks of a tile, for the last of them to arrive; false for the others. `tile` counts warpgroups' parts.
template <typename C>
__device__ __forceinline__ bool join(float (&sum)[C::WG_ROWS / 64][C::BN / 2], const Shared& shared, int tile, int split,
                                     int group) {
  constexpr int EACH = C::WG_ROWS * C::BN;
  __shared__ int before[C::CONSUMERS];
  const int thread = threadIdx.x % 128;
  float* mine = shared.sums + (int64_t(tile) * shared.splits + split) * EACH + thread;
#pragma unroll
  for (int i = 0; i < C::WG_ROWS / 64; ++i)
#pragma unroll
    for (int j = 0; j < C::BN / 2; ++j) mine[(i * (C::BN / 2) + j) * 128] = sum[i][j];
  __threadfence();
  named_barrier(1 + group, 128);
  if (thread == 0) before[group] = atomicAdd(shared.arrived + tile, 1);
  named_barrier(1 + group, 128);
  if (before[group] != shared.splits - 1) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < C::WG_ROWS / 64; ++i)
#pragma unroll
    for (int j = 0; j < C::BN / 2; ++j) sum[i][j] = 0;
  for (int s = 0; s < shared.splits; ++s) {
    const float* theirs = shared.sums + (int64_t(tile) * shared.splits + s) * EACH + thread;
#pragma unroll
    for (int i = 0; i < C::WG_ROWS / 64; ++i)
#pragma unroll
      for (int j = 0; j < C::BN / 2; ++j) sum[i][j] += __ldcg(theirs + (i * (C::BN / 2) + j) * 128);
  }
  if (thread == 0) shared.arrived[tile] = 0;
  return true;
}

// Two blocks with the parts of a tile exchange sums: those of warpgroup g end in part g, which has room for them at `room`.
// `sent` and `taken` are barriers of each block; true for the warpgroup that has all of its sums.
template <typename C>
__device__ __forceinline__ bool exchange(float (&sum)[C::WG_ROWS / 64][C::BN / 2], int above, int part, int group,
                                         uint32_t room, uint32_t sent, uint32_t taken, uint32_t parity) {
  const int thread = threadIdx.x % 128, other = above + (part ^ 1) * C::HIGH;
  const bool sends = group != part;
  const uint32_t at = (sends ? address_in(room, other) : room) + thread * 16;
  barrier_take_over(sends ? taken : sent, sends ? parity ^ 1 : parity);
#pragma unroll
  for (int i = 0; i < C::WG_ROWS / 64; ++i)
#pragma unroll
    for (int j = 0; j < C::BN / 8; ++j) {
      const uint32_t place = at + (i * (C::BN / 8) + j) * 128 * 16;
      if (sends) store4_cluster(place, &sum[i][4 * j]);
      else add4_shared(&sum[i][4 * j], place);
    }
  barrier_hand_over(sends ? sent : taken, other);
  return !sends;
}

template <typename T, typename C>
__device__ __forceinline__ void consume(Walk walk, int above, int group, uint32_t base, uint32_t full, uint32_t empty,
                                        const CUtensorMap& c, const Shared& shared) {
  const int thread = threadIdx.x % 128;
  auto release = [&](int stage) {  // tells every producer that writes to this stage
    if (thread < C::HIGH) barrier_arrive_at(empty + 8 * stage, walk.part * C::HIGH + thread);
  };
  const uint32_t sent = empty + 8 * C::STAGES, taken = sent + 8;
  uint32_t parity = 0;
  Ring<C::STAGES> ring;
  float sum[C::WG_ROWS / 64][C::BN / 2];
  int row, col, split, first, end;
  while (walk.next(row, col, split, first, end)) {
    int last = 0;
    for (int k = first; k < end; ++k, ring.advance()) {
      const uint32_t a = base + ring.stage * C::STAGE_BYTES + group * C::WG_ROWS * C::ROW_BYTES;
      const uint64_t y = matrix_descriptor(base + ring.stage * C::STAGE_BYTES + C::BM * C::ROW_BYTES);
      barrier_wait(full + 8 * ring.stage, ring.parity);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < C::DEPTH / 16; ++step)
#pragma unroll
        for (int i = 0; i < C::WG_ROWS / 64; ++i)
          wgmma<T>(sum[i], matrix_descriptor(a + i * 64 * C::ROW_BYTES) + step * STEP_16, y + step * STEP_16, k - first | step);
      wgmma_commit();
      wgmma_wait<1>();  // this stage's products are under way; the last stage's are done, and it may be refilled
      if (k > first) release(last);
      last = ring.stage;
    }
    wgmma_wait<0>();
    release(last);
    const int block = row * C::HIGH + above, row0 = block * C::BM + group * C::WG_ROWS;
    if constexpr (C::PARTS > 1) {
      const bool mine = exchange<C>(sum, above, walk.part, group, base + C::SENT, sent, taken, parity);
      parity ^= 1;
      if (!mine) continue;
    } else if (shared.splits > 1 &&
               !join<C>(sum, shared, (block * walk.tiles_n + col) * C::CONSUMERS + group, split, group)) {
      continue;
    }
#pragma unroll
    for (int i = 0; i < C::WG_ROWS / 64; ++i)
      write_out<T, C>(sum[i], base + C::PATCHES + (C::PARTS > 1 ? 0 : group) * 2 * C::PATCH_BYTES, c, row0 + i * 64, col * C::BN, group);
  }
  if (thread == 0) tma_wait_read<0>();
}

template <typename T, typename C>
__global__ void __cluster_dims__(C::CLUSTER, 1, 1) __launch_bounds__(C::THREADS, 1)
    wgmma_tiles(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                const __grid_constant__ CUtensorMap c, int tiles_m, int tiles_n, int tiles_k, int group, Shared shared) {
  extern __shared__ unsigned char memory[];
  const uint32_t base = (shared_address(memory) + 1023) & ~1023u;
  const uint32_t full = base + C::BARRIERS, empty = full + 8 * C::STAGES;
  const int rank = blockIdx.x % C::CLUSTER, above = rank % C::HIGH, role = threadIdx.x / 128;
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&a, &b, &c}) tma_prefetch(*map);
    for (int s = 0; s < C::STAGES; ++s) {
      barrier_init(full + 8 * s, 1);
      barrier_init(empty + 8 * s, C::CONSUMERS * C::HIGH);
    }
    for (int i = 0; i < 2; ++i) barrier_init(empty + 8 * (C::STAGES + i), 128);
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  cluster_sync();
  const Walk walk{tiles_m, tiles_n, tiles_k, group, shared.splits, C::PARTS, rank / C::HIGH,
                  int(blockIdx.x) / C::CLUSTER, int(gridDim.x) / C::CLUSTER};
  if (role == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
    if (threadIdx.x == 0) produce<C>(walk, above, base, full, empty, a, b);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    consume<T, C>(walk, above, role - 1, base, full, empty, c, shared);
  }
  cluster_sync();  // no block leaves while a neighbour may still write to it or arrive at its barriers
}

// Room for the sums of blocks that share tiles: elements and counters.
struct Room {
  float* sums;
  int* arrived;
  int64_t floats;
  int counters;
};

template <typename C, typename T>
const char* launch(Gemm<T> g, int group, int splits, bool overlap, Room room, cudaStream_t stream) {
  CUtensorMap a, b, c;
  if (const char* wrong = describe(a, g.a, g.m, g.k, g.lda, C::BM)) return wrong;
  if (const char* wrong = describe(b, g.b, g.n, g.k, g.ldb, C::BN / C::HIGH)) return wrong;
  if (const char* wrong = describe<T>(c, g.c, g.m, g.n, g.ldc, 64, C::PATCH_COLS)) return wrong;
  int device = 0, sms = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  const int tiles_m = ceil_div(g.m, C::BM * C::HIGH), tiles_n = ceil_div(g.n, C::BN);  // of a cluster's height
  const int tiles_k = ceil_div(g.k, C::DEPTH), parts = tiles_m * C::HIGH * tiles_n * C::CONSUMERS;
  if (tiles_k < C::PARTS) return "wgmma rung: too small a k to divide in a cluster";
  splits = C::PARTS > 1 ? C::PARTS : ceil_div(tiles_k, ceil_div(tiles_k, min(max(splits, 1), tiles_k)));  // no part is empty
  if (splits > C::PARTS && (parts > room.counters || int64_t(parts) * splits * C::WG_ROWS * C::BN > room.floats))
    return "wgmma rung: the workspace is too small for so many splits";
  const int clusters = min(sms / C::CLUSTER, tiles_m * tiles_n * splits / C::PARTS);
  return launch_early(wgmma_tiles<T, C>, dim3(clusters * C::CLUSTER), C::THREADS, C::BYTES, overlap, stream, a, b, c,
                      tiles_m, tiles_n, tiles_k, group, Shared{room.sums, room.arrived, splits});
}

// config = variant + 100 x (tile rows of a cluster in a band) + 10000 x (blocks that share a tile); 0: 128 x 256 tiles
template <typename T>
const char* run_in(Gemm<T> g, int config, bool overlap, Room room, cudaStream_t stream) {
  if (config == 0) config = 801;
  const int variant = config % 100, group = config / 100 % 100, splits = config / 10000;
  auto with = [&](auto c) { return launch<decltype(c)>(g, group ? group : 8, splits, overlap, room, stream); };
  if (variant == 1) return with(Config<128, 256, 4, 2>{});
  if (variant == 2) return with(Config<128, 256, 4, 1>{});
  if (variant == 3) return with(Config<256, 128, 4, 2>{});
  if (variant == 5) return with(Config<128, 192, 4, 2>{});
  if (variant == 6) return with(Config<128, 192, 4, 1>{});
  if (variant == 7) return with(Config<128, 128, 5, 2>{});
  if (variant == 8) return with(Config<128, 128, 5, 1>{});
  if (variant == 9) return with(Config<128, 64, 6, 1>{});
  if (variant == 10) return with(Config<128, 224, 4, 2>{});
  if (variant == 11) return with(Config<128, 224, 4, 1>{});
  if (variant == 12) return with(Config<128, 160, 5, 2>{});
  if (variant == 13) return with(Config<128, 144, 5, 2>{});
  if (variant == 14) return with(Config<128, 112, 6, 2>{});
  if (variant == 15) return with(Config<128, 96, 7, 2>{});
  if (variant == 16) return with(Config<128, 96, 7, 1>{});
  if (variant == 20) return with(Config<128, 96, 6, 1, 2>{});
  if (variant == 21) return with(Config<128, 128, 5, 1, 2>{});
  if (variant == 22) return with(Config<128, 160, 4, 1, 2>{});
  if (variant == 23) return with(Config<128, 192, 4, 1, 2>{});
  if (variant == 24) return with(Config<128, 224, 3, 1, 2>{});
  if (variant == 25) return with(Config<128, 256, 3, 1, 2>{});
  return "wgmma rung: no such config";
}

template <typename T>
const char* run(Gemm<T> g, int config, cudaStream_t stream) {
  return run_in(g, config, false, Room{}, stream);
}

HGEMM_ENTRY(run)

// The same, started early or not, with a workspace for a config whose blocks share tiles.
extern "C" const char* hgemm_with(const void* a, const void* b, void* c, int m, int n, int k, int64_t lda, int64_t ldb,
                                  int64_t ldc, int is_bf16, int config, int overlap, void* sums, void* arrived,
                                  int64_t floats, int counters, cudaStream_t stream) {
  const Room room{(float*)sums, (int*)arrived, floats, counters};
  auto with = [&](auto* x, auto* y, auto* z) {
    return run_in(Gemm<std::remove_reference_t<decltype(*z)>>{x, y, z, m, n, k, lda, ldb, ldc}, config, overlap, room, stream);
  };
  if (is_bf16) return with((const bf16*)a, (const bf16*)b, (bf16*)c);
  return with((const __half*)a, (const __half*)b, (__half*)c);
}
