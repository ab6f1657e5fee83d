// Hopper's own instructions, one small function each: mbarriers, TMA copies, wgmma. sm_90a only.
#pragma once
#include <cuda.h>

#include <cstdio>

#include "hgemm.cuh"

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// -- mbarriers: 64-bit words in shared memory that count arrivals and bytes; a phase ends when both are used up --------
__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Waits for the end of the phase of this parity. A fresh barrier counts as past its phase of parity 1.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
#ifdef CHIP_DEBUG
  for (int tries = 0; !done; ++tries) {
    if (tries == 1 << 20) {
      printf("block %d thread %d waits for ever: barrier at byte %u, parity %u\n", blockIdx.x, threadIdx.x, barrier, parity);
      __trap();
    }
#else
  while (!done) {
#endif
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes) {  // one arrival, and bytes to come
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// At the same barrier of a block of the cluster. No scope wider than the block is asked for: what is handed over was read
// by wgmma, which has finished; `.release.cluster` would put a fence of the whole GPU before every arrival.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// The same, where threads of another block wrote to this one's shared memory before, or are told that it was read.
__device__ __forceinline__ void barrier_hand_over(uint32_t barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
__device__ __forceinline__ void barrier_take_over(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
}
__device__ __forceinline__ uint32_t address_in(uint32_t address, int rank) {  // the same place in a block of the cluster
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
__device__ __forceinline__ void store4_cluster(uint32_t to, const float* x) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
__device__ __forceinline__ void add4_shared(float* x, uint32_t from) {
  float y[4];
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n" : "=f"(y[0]), "=f"(y[1]), "=f"(y[2]), "=f"(y[3]) : "r"(from));
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] += y[i];
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// -- TMA: one thread asks for a box of a matrix; the copy engine brings it, swizzles it and counts its bytes -----------
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap& map, uint32_t barrier, int col, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];\n" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(col), "r"(row)
      : "memory");
}
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap& map, uint32_t barrier, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(
          to),
      "l"(&map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
__device__ __forceinline__ void tma_prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}
// To the same place in every block of `mask`, each of which has its own barrier told.
__device__ __forceinline__ void tma_load_multicast(uint32_t to, const CUtensorMap& map, uint32_t barrier, int col, int row,
                                                   uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4}], [%2], %5;\n" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(col), "r"(row), "h"(mask)
      : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap& map, uint32_t from, int col, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];\n" ::"l"(&map),
               "r"(from), "r"(col), "r"(row)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void tma_wait_read() {  // until all but PENDING stores have left shared memory
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(PENDING) : "memory");
}
// What threads wrote to shared memory becomes visible to the copy engine.
__device__ __forceinline__ void fence_for_tma() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// -- wgmma: a warpgroup (128 threads) multiplies 64 x 16 by 16 x N straight from shared memory, asynchronously ---------
// A tile of 128-byte rows (64 elements along k), swizzled as TMA's SWIZZLE_128B leaves it, its first row at a multiple of
// 1024 bytes: groups of 8 rows are 1024 bytes apart. A step of 16 along k is 32 bytes on the start address.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address) {
  return (uint64_t(1) << 62) | (uint64_t(1024 >> 4) << 32) | (uint64_t(1) << 16) | ((address & 0x3FFFF) >> 4);
}
constexpr uint64_t STEP_16 = 32 >> 4;  // what to add to a descriptor for the next 16 along k

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}

#define REGS4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define REGS8(i) REGS4(i), REGS4(i + 4)
#define REGS16(i) REGS8(i), REGS8(i + 8)
#define REGS32(i) REGS16(i), REGS16(i + 16)
#define REGS64(i) REGS32(i), REGS32(i + 32)
#define NAMES4 "%0, %1, %2, %3"
#define NAMES8 NAMES4 ", %4, %5, %6, %7"
#define NAMES16 NAMES8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES32 NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES48 NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES56 NAMES48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES64 NAMES56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES72 NAMES64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NAMES80 NAMES72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES96 NAMES80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES112 NAMES96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES128 NAMES112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// d = a b^T, or += where `add`. Thread t of the warpgroup holds rows 16 (t / 32) + t % 32 / 4 and 8 below it: of each
// eight columns j the neighbours 2 (t % 4) and + 1, as d[4 j], d[4 j + 1] and, for the lower row, d[4 j + 2], d[4 j + 3].
#define WGMMA_ASM(shape, type, names, a, b, flag, ...)                                                         \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " flag ", 0;\nwgmma.mma_async.sync.aligned." shape ".f32." type "." type \
               " {" names "}, " a ", " b ", p, 1, 1, 0, 0;\n}\n"                                              \
               : __VA_ARGS__                                                                                   \
               : "l"(x), "l"(y), "r"(add))
#define WGMMA(count, shape, names, a, b, flag, ...)                                              \
  template <typename T>                                                                          \
  __device__ __forceinline__ void wgmma(float (&d)[count], uint64_t x, uint64_t y, int add) {    \
    if constexpr (std::is_same_v<T, bf16>) WGMMA_ASM(shape, "bf16", names, a, b, flag, __VA_ARGS__); \
    else WGMMA_ASM(shape, "f16", names, a, b, flag, __VA_ARGS__);                                \
  }
WGMMA(4, "m64n8k16", NAMES4, "%4", "%5", "%6", REGS4(0))
WGMMA(8, "m64n16k16", NAMES8, "%8", "%9", "%10", REGS8(0))
WGMMA(16, "m64n32k16", NAMES16, "%16", "%17", "%18", REGS16(0))
WGMMA(32, "m64n64k16", NAMES32, "%32", "%33", "%34", REGS32(0))
WGMMA(48, "m64n96k16", NAMES48, "%48", "%49", "%50", REGS32(0), REGS16(32))
WGMMA(56, "m64n112k16", NAMES56, "%56", "%57", "%58", REGS32(0), REGS16(32), REGS8(48))
WGMMA(64, "m64n128k16", NAMES64, "%64", "%65", "%66", REGS64(0))
WGMMA(72, "m64n144k16", NAMES72, "%72", "%73", "%74", REGS64(0), REGS8(64))
WGMMA(80, "m64n160k16", NAMES80, "%80", "%81", "%82", REGS64(0), REGS16(64))
WGMMA(96, "m64n192k16", NAMES96, "%96", "%97", "%98", REGS64(0), REGS32(64))
WGMMA(112, "m64n224k16", NAMES112, "%112", "%113", "%114", REGS64(0), REGS32(64), REGS16(96))
WGMMA(128, "m64n256k16", NAMES128, "%128", "%129", "%130", REGS64(0), REGS64(64))

// Four 8 x 8 matrices from registers to shared memory: lanes 0-7 give the rows of the first, 8-15 of the second, ...
__device__ __forceinline__ void store_matrices(uint32_t to, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

// -- host: what TMA has to know of a matrix ------------------------------------------------------------------------------
// Rows of elements of T in boxes of 64, 32 or 16 along the row, swizzled: sizes and boxes of each dimension (elements of a row
// come first), and the elements from one to the next of each but the first. nullptr, or what is wrong with it.
template <typename T, int RANK>
const char* describe_boxes(CUtensorMap& map, const T* base, const int64_t (&sizes)[RANK], const int64_t (&steps)[RANK - 1],
                           const int (&boxes)[RANK]) {
  static decltype(&cuTensorMapEncodeTiled) encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status;
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status);
#else
    cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &status);
#endif
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  if (!encode) return "wgmma rung: the driver has no cuTensorMapEncodeTiled; it needs CUDA 12";
  if (steps[0] % 8 || reinterpret_cast<uintptr_t>(base) % 16)
    return "wgmma rung: rows of A, B and C must start at multiples of 16 bytes (TMA)";
  cuuint64_t size[RANK], stride[RANK - 1];
  cuuint32_t box[RANK], one[RANK];
  for (int i = 0; i < RANK; ++i) size[i] = sizes[i], box[i] = boxes[i], one[i] = 1;
  for (int i = 0; i < RANK - 1; ++i) stride[i] = steps[i] * sizeof(T);
  const auto type = std::is_same_v<T, bf16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const auto swizzle = boxes[0] == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                       : boxes[0] == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                        : CU_TENSOR_MAP_SWIZZLE_32B;
  const CUresult e = encode(&map, type, RANK, const_cast<T*>(base), size, stride, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return e == CUDA_SUCCESS ? nullptr : "wgmma rung: cuTensorMapEncodeTiled refused the matrix";
}

// A row-major matrix taken in boxes of box_rows x 64 (or 32, 16) elements.
template <typename T>
const char* describe(CUtensorMap& map, const T* base, int rows, int cols, int64_t ld, int box_rows, int box_cols = 64) {
  return describe_boxes<T, 2>(map, base, {cols, rows}, {ld}, {box_cols, box_rows});
}
