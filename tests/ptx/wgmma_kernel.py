"""A kernel around one wgmma shape: operands in by TMA (or A by registers), products, accumulators out."""

import numpy as np
from numba import cuda

from dgnumba.integers import u32, u64
from dgnumba.layouts import lanes
from dgnumba.layouts.descriptors import SmemDescriptor, low_word
from dgnumba.ptx import Fragment, barrier, fragment, mbarrier, memory, tma, unrolled, wgmma

DTYPES = ("float8_e4m3fn", "float8_e5m2")
PAIRS = [(a, b) for a in DTYPES for b in DTYPES]
SOURCES = ("shared", "registers")
K = 128  # bytes of a row: the 128-byte swizzle's
SWIZZLED = SmemDescriptor(swizzle=128)


def smem_bytes(n):
    """Dynamic shared memory: a barrier, A, B, A's registers, and room to align."""
    return 1024 + 1024 + 64 * K + n * K + 128 * 16


@unrolled
def store_fragment(frag: Fragment, address: u64) -> None:
    """st.global.f32 - all registers of a fragment, one after another."""
    for i in range(len(frag)):
        memory.store_global_f32_if(True, address + 4 * i, frag[i])


def make(n, choices, leave_out=""):
    """A kernel `(tmap_a, tmap_b, registers, out)` with one product for each (a_dtype, b_dtype, source) of `choices`.

    tmap_a, tmap_b  uint8 [64, 128] and [n, 128], boxes of the whole, swizzle 128
    registers       uint32 [128, 4]: A's first 32 columns by `lanes.wgmma_a_fp8`
    leave_out       a line of the kernel that is not there
    out             float32 [len(choices), 128, n / 2]; a product from shared memory sums 128 of K, one from registers 32
    """
    BYTES, ACC, A, B, REGISTERS = (64 + n) * K, n // 2, 1024, 1024 + 64 * K, 1024 + (64 + n) * K

    def product_of(choice):
        a_dtype, b_dtype, source = choice
        if source == "shared":
            mma = wgmma.mma_for(a_dtype, b_dtype, a=SWIZZLED, b=SWIZZLED)

            @cuda.jit(device=True, forceinline=True)
            def product(acc, frag_a, desc_a, desc_b):
                acc = mma(acc, desc_a, desc_b, 0)
                acc = mma(acc, desc_a + 2, desc_b + 2, 1)
                acc = mma(acc, desc_a + 4, desc_b + 4, 1)
                return mma(acc, desc_a + 6, desc_b + 6, 1)
        else:
            mma_rs = wgmma.mma_rs_for(a_dtype, b_dtype, b=SWIZZLED)

            @cuda.jit(device=True, forceinline=True)
            def product(acc, frag_a, desc_a, desc_b):
                return mma_rs(acc, frag_a, desc_b, 0)

        return product

    lines = [
        "def kernel(tmap_a, tmap_b, registers, out):",
        "    smem = (memory.shared_address(cuda.shared.array(0, np.uint8)) + 1023) // 1024 * 1024",
        "    thread_idx = cuda.threadIdx.x",
        "    own = smem + REGISTERS + u32(thread_idx) * 16",
        "    if thread_idx == 0:",
        "        mbarrier.init(smem, 1)",
        "        barrier.fence_mbarrier_init()",
        "    cuda.syncthreads()",
        "    if thread_idx == 0:",
        "        mbarrier.arrive_expect_tx(smem, BYTES)",
        "        tma.load_2d(smem + A, tmap_a, smem, 0, 0)",
        "        tma.load_2d(smem + B, tmap_b, smem, 0, 0)",
        "    for j in range(4):",
        "        memory.store_shared_u32(own + 4 * u32(j), registers[thread_idx, j])",
        "    frag_a = memory.load_shared_v4(own)",
        "    mbarrier.wait(smem, 0)",
        "    desc_a = low_word(smem + A)",
        "    desc_b = low_word(smem + B)",
        "    row = memory.global_address(out) + u64(thread_idx) * (4 * ACC)",
        "    acc = fragment.zero(ACC)",
    ]
    for i in range(len(choices)):
        lines += [
            "    wgmma.fence()",
            f"    acc = product{i}(acc, frag_a, desc_a, desc_b)",
            "    wgmma.commit()",
            "    acc = wgmma.wait(acc, 0)",
            f"    store_fragment(acc, row + {i * 128 * 4 * ACC})",
        ]
    namespace = {
        **{"cuda": cuda, "np": np, "u32": u32, "u64": u64, "low_word": low_word, "store_fragment": store_fragment},
        **{"memory": memory, "mbarrier": mbarrier, "barrier": barrier, "tma": tma, "wgmma": wgmma, "fragment": fragment},
        **{"BYTES": BYTES, "ACC": ACC, "A": A, "B": B, "REGISTERS": REGISTERS},
        **{f"product{i}": product_of(choice) for i, choice in enumerate(choices)},
    }
    assert not leave_out or lines.count("    " + leave_out) == 1
    exec("\n".join(line for line in lines if line != "    " + leave_out), namespace)
    return namespace["kernel"]


def operands(rng, n, a_dtype, b_dtype, largest):
    """Codes of A [64, 128] and B [n, 128] (small integers), A's registers, and the values of both as float64."""
    a = rng.integers(-largest, largest + 1, (64, K)).astype(np.float32)
    b = rng.integers(-largest, largest + 1, (n, K)).astype(np.float32)
    a_codes, b_codes = encode(a, a_dtype), encode(b, b_dtype)
    return a_codes, b_codes, registers_of(a_codes), a.astype(np.float64), b.astype(np.float64)


def encode(values, dtype):
    """Values as codes, uint8."""
    import ml_dtypes

    return values.astype(getattr(ml_dtypes, dtype)).view(np.uint8)


def registers_of(a_codes):
    """uint32 [128, 4]: what each thread holds of A's first 32 columns."""
    return np.ascontiguousarray(lanes.wgmma_a_fp8().gather(a_codes[:, :32])).view(np.uint32)


def tile_of(out, n):
    """The tile [64, n] of accumulators [128, n / 2]."""
    return lanes.wgmma_accumulator(n).scatter(out)
