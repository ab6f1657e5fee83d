// Rung 4, mma.sync: the tensor cores by PTX, fed by ldmatrix from swizzled tiles that cp.async keeps filling.
// Needs: sm_80 or later
//
// Adds four things. (1) cp.async copies global memory to shared memory without passing through registers, STAGES tiles
// deep, so loads run while the tensor cores do. (2) A row of a tile is 64 elements = 128 bytes = all 32 banks; its eight
// 16-byte pieces are stored at (piece XOR row % 8), so that ldmatrix, which reads one piece from each of eight rows,
// meets eight different bank groups. (3) Fragments are double-buffered in registers: the next ones are fetched a few at a
// time between the products of the last, across the barrier between two tiles too. (4) A block stays on its SM and takes tile
// after tile of C: the first loads of the next one run during the last products and the epilogue of this one.
// Each warp owns 64 x 64 of C: 128 sums a thread, and 32 mma for 8 ldmatrix.x4.
// Roof: the mma.sync path, on Hopper about six tenths of what wgmma can do.
#include <climits>

#include "hgemm.cuh"

constexpr int DEPTH = 64, ROW_BYTES = 128, STEPS = DEPTH / 16;
constexpr int BAND_ROWS = 2048, PATCH_ROWS = 32, PATCH_BYTES = PATCH_ROWS * ROW_BYTES;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Where the 16-byte piece `piece` of row `row` lies in a tile.
__device__ __forceinline__ uint32_t swizzled(int row, int piece) { return row * ROW_BYTES + ((piece ^ (row & 7)) << 4); }

__device__ __forceinline__ void copy_async(uint32_t to, const void* from, int bytes) {  // the rest of 16 becomes zero
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_or_zero(uint32_t to, const void* from, bool zero) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; cp.async.cg.shared.global.L2::128B [%0], [%1], 16, p; }\n" ::"r"(to),
               "l"(from), "r"((int)zero)
               : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

template <typename T>
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#define MMA(type)                                                                                       \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, "          \
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"                                          \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (std::is_same_v<T, bf16>) MMA("bf16");
  else MMA("f16");
#undef MMA
}

// A warp's 64 x 64 sums become rows of 128 bytes in its own patch of shared memory, 32 of them at a time, which are then
// written whole.
template <typename T>
__device__ __forceinline__ void write_out(const Gemm<T>& g, const float (&sum)[4][8][4], unsigned char* patch, int row0,
                                          int col, int lane) {
  const bool wide = g.ldc % 8 == 0 && reinterpret_cast<uintptr_t>(g.c) % 16 == 0;
  col += lane % 8 * 8;
#pragma unroll
  for (int top = 0; top < 64; top += PATCH_ROWS) {
#pragma unroll
    for (int i = 0; i < PATCH_ROWS / 16; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<uint32_t*>(patch + swizzled(16 * i + 8 * half + lane / 4, j) + lane % 4 * 4) =
              narrow2<T>(sum[top / 16 + i][j][2 * half], sum[top / 16 + i][j][2 * half + 1]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < PATCH_ROWS / 4; ++i) {
      const int r = 4 * i + lane / 8, row = row0 + top + r;
      const T* source = reinterpret_cast<const T*>(patch + swizzled(r, lane % 8));
      if (row >= g.m) continue;
      T* target = g.c + row * g.ldc + col;
      if (wide && col + 8 <= g.n) {
        *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(source);
      } else {
        for (int j = 0; j < 8 && col + j < g.n; ++j) target[j] = source[j];
      }
    }
    __syncwarp();
  }
}

// One matrix's tiles of ROWS x 64 on their way to shared memory, the same pieces of it by the same thread each time, in
// STEPS portions: copies are issued between products, not in one burst. WHOLE: k is a multiple of 8, so that a piece is
// inside or outside, which takes a third of the instructions that a part of one does.
template <typename T, int ROWS, int THREADS, bool WHOLE>
struct Source {
  static constexpr int PASS = THREADS / 8, PORTION = ROWS / PASS / STEPS;  // rows of one pass, passes of a portion
  const T* next;   // this thread's first piece of the next tile
  int rows, left;  // how many of its rows lie inside the matrix, counted from its first; elements left along k

  __device__ __forceinline__ void aim(const T* from, int64_t ld, int row0, int all_rows, int k) {
    const int piece = threadIdx.x % 8, row = threadIdx.x / 8;
    next = from + (row0 + row) * ld + piece * 8;
    rows = all_rows - row0 - row;
    left = k - piece * 8;
  }
  __device__ __forceinline__ void bring(uint32_t stage, int step, int portion) {  // step: elements from pass to pass
    const uint32_t to = stage + swizzled(threadIdx.x / 8, threadIdx.x % 8);
    const int bytes = min(16, max(0, left * 2)), inside = left > 0 ? rows : 0;
#pragma unroll
    for (int i = portion * PORTION; i < (portion + 1) * PORTION; ++i) {  // nothing is read outside
      const T* from = next + static_cast<int64_t>(i) * step;
      if constexpr (WHOLE) copy_or_zero(to + i * PASS * ROW_BYTES, from, i * PASS >= inside);
      else copy_async(to + i * PASS * ROW_BYTES, from, i * PASS < rows ? bytes : 0);
    }
  }
  __device__ __forceinline__ void advance() {
    next += DEPTH;
    left -= DEPTH;
  }
};

template <typename T, int BM, int BN, int STAGES, bool WHOLE>
__global__ void __launch_bounds__(BM / 64 * BN / 64 * 32) mma_tiles(Gemm<T> g, int group) {
  constexpr int THREADS = BM / 64 * BN / 64 * 32, STAGE_BYTES = (BM + BN) * ROW_BYTES;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t base = shared_address(memory), end = base + STAGES * STAGE_BYTES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / (BN / 64) * 64, warp_col = warp % (BN / 64) * 64;
  const int tiles_m = ceil_div(g.m, BM), tiles_n = ceil_div(g.n, BN), tiles_k = ceil_div(g.k, DEPTH);
  auto corner = [&](int tile, int& row0, int& col0) {
    tile_at(tile, tiles_m, tiles_n, group, row0, col0);
    row0 *= BM, col0 *= BN;
  };

  // what is loaded runs STAGES - 1 steps along k ahead of what is multiplied, from one tile of C into the next
  Source<T, BM, THREADS, WHOLE> a;
  Source<T, BN, THREADS, WHOLE> b;
  const int a_step = a.PASS * g.lda, b_step = b.PASS * g.ldb;
  int loading = blockIdx.x, loading_k = 0;
  uint32_t filling = base, reading = base;  // stages
  auto after = [&](uint32_t stage) { return stage + STAGE_BYTES == end ? base : stage + STAGE_BYTES; };
  auto aim = [&] {
    int row0, col0;
    corner(loading, row0, col0);
    a.aim(g.a, g.lda, row0, g.m, g.k);
    b.aim(g.b, g.ldb, col0, g.n, g.k);
  };
  auto fill = [&](int portion) {  // an empty group past the end keeps the count of groups uniform
    if (loading < tiles_m * tiles_n) {
      a.bring(filling, a_step, portion);
      b.bring(filling + BM * ROW_BYTES, b_step, portion);
    }
    if (portion < STEPS - 1) return;
    commit();
    filling = after(filling);
    a.advance();
    b.advance();
    if (++loading_k == tiles_k) {
      loading_k = 0;
      loading += gridDim.x;
      if (loading < tiles_m * tiles_n) aim();
    }
  };
  // ldmatrix.x4 takes its row addresses from the lanes, eight for each of four 8 x 8 matrices:
  // of A rows 0-7 and 8-15 at k, then at k + 8; of B rows 0-7 at k and k + 8, then rows 8-15
  const int a_row = warp_row + lane % 16, a_piece = lane / 16;
  const int b_row = warp_col + lane % 8 + lane / 16 * 8, b_piece = lane / 8 % 2;
  uint32_t x[2][4][4], y[2][4][4];
  auto load = [&](int into, int step, int i) {  // a quarter of the fragments of 16 elements along k
    load_matrices(x[into][i], reading + swizzled(a_row + 16 * i, 2 * step + a_piece));
    load_matrices(y[into][i], reading + BM * ROW_BYTES + swizzled(b_row + 16 * i, 2 * step + b_piece));
  };

  aim();
  for (int s = 0; s < STAGES - 1; ++s)
#pragma unroll
    for (int portion = 0; portion < STEPS; ++portion) fill(portion);
  wait_copies<STAGES - 2>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; ++i) load(0, 0, i);
  for (int tile = blockIdx.x; tile < tiles_m * tiles_n; tile += gridDim.x) {
    float sum[4][8][4] = {};
    for (int k = 0; k < tiles_k; ++k) {
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        if (step == STEPS - 1) {  // the last fragments of this tile are in registers: its stage may be refilled
          fill(step);
          wait_copies<STAGES - 2>();
          __syncthreads();
          reading = after(reading);  // past the last tile: stale data that nothing multiplies
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          load((step + 1) % 2, (step + 1) % STEPS, i);
          if (step < STEPS - 1 && i == 1) fill(step);
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const int n = i % 2 ? 7 - j : j;  // there and back again: one operand stays from each product to the next
            multiply<T>(sum[i][n], x[step % 2][i], y[step % 2][n / 2][n % 2 * 2], y[step % 2][n / 2][n % 2 * 2 + 1]);
          }
        }
      }
    }
    int row0, col0;
    corner(tile, row0, col0);
    const uint32_t free = (reading == base ? end : reading) - STAGE_BYTES;  // the stage that is filled next, but not yet
    write_out<T>(g, sum, memory + (free - base) + warp * PATCH_BYTES, row0 + warp_row, col0 + warp_col, lane);
    __syncthreads();
  }
  wait_copies<0>();
}

template <int BM, int BN, int STAGES, bool WHOLE, typename T>
const char* launch(Gemm<T> g, int group, cudaStream_t stream) {
  constexpr int THREADS = BM / 64 * BN / 64 * 32, BYTES = STAGES * (BM + BN) * ROW_BYTES;
  static_assert(THREADS / 32 * PATCH_BYTES <= (BM + BN) * ROW_BYTES, "the patches lie in one stage");
  auto kernel = mma_tiles<T, BM, BN, STAGES, WHOLE>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES) != cudaSuccess) return last_error();
  int device = 0, sms = 0, resident = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, THREADS, BYTES);
  const int blocks = min(ceil_div(g.m, BM) * ceil_div(g.n, BN), sms * max(1, resident));
  kernel<<<blocks, THREADS, BYTES, stream>>>(g, group ? group : BAND_ROWS / BM);
  return last_error();
}

// config = variant + 10 x (tile rows in a band; 0: 2048 rows of A). Variant 1: 128 x 256, 4 stages (192 KiB of shared
// memory); 2: 128 x 128, 3 stages (96 KiB: two blocks on an SM of Hopper); 3: 256 x 128, 4 stages; 0: the fastest that
// fits. A k that is no multiple of 8 is left to 128 x 128.
template <typename T>
const char* run(Gemm<T> g, int config, cudaStream_t stream) {
  if (g.lda % 8 || g.ldb % 8 || (uintptr_t)g.a % 16 || (uintptr_t)g.b % 16)
    return "mma.sync rung: rows of A and B must start at multiples of 16 bytes (cp.async)";
  if (max(g.lda, g.ldb) > INT_MAX / 64) return "mma.sync rung: rows of A and B lie too far apart";
  int variant = config % 10;
  if (variant == 0) {
    int device = 0, most = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    variant = most >= 4 * (128 + 256) * ROW_BYTES ? 3 : 2;
  }
  if (g.k % 8) return launch<128, 128, 3, false>(g, config / 10, stream);
  if (variant == 1) return launch<128, 256, 4, true>(g, config / 10, stream);
  if (variant == 2) return launch<128, 128, 3, true>(g, config / 10, stream);
  if (variant == 3) return launch<256, 128, 4, true>(g, config / 10, stream);
  return "mma.sync rung: no such config";
}

HGEMM_ENTRY(run)
