# %% [markdown]
# # 08 INT4 and the order of nibbles
#
# **Question: a weight in 4 bits is a number from 0 to 15 times a scale. Why then do AWQ, GPTQ and Marlin store the same numbers in three different orders?**
#
# Because somebody has to take them apart again, millions of times, in the innermost loop. Where a nibble lies decides whether that costs one instruction or eight, and whether
# a lane finds its numbers in its own word or must ask its neighbours. This notebook shows the orders, the trick that turns two nibbles into two floats
# at once, and a small kernel that multiplies with INT4 weights on tensor cores.

# %%
import numpy as np
from numba import cuda

import dgnumba
from dgnumba import emu, u32
from dgnumba.layouts import int4
from dgnumba.ptx import fragment, mma, op, thread
from dgnumba.testing import array_module, to_numpy

xp = array_module()

# %% [markdown]
# ## The same 16 numbers, four times
#
# `n` is the row of the weight (an output), `k` the column. High bits stand first.

# %%
for layout, shape in ((int4.COMPRESSED_TENSORS, (2, 16)), (int4.GPTQ_V2, (2, 16)), (int4.AWQ, (16, 2))):
    print(f"{layout.name}, codes [{shape[0]}, {shape[1]}]\n{layout.picture(shape, words=2)}\n")
print(f"marlin, codes [64, 16]\n{int4.MARLIN.picture((64, 16), words=5)}")

# %% [markdown]
# Three ideas are in there. **Which way a word runs**: along K (GPTQ, compressed-tensors), so that one output's numbers are together, or along N (AWQ). **In which order within the
# word**: AWQ and Marlin put element 2i and 2i + 1 sixteen bits apart. **Which lane gets the word**: Marlin's words are in the order of the tensor core's fragments, so that lane 0 of the
# warp loads the first four words and has exactly the numbers that the instruction wants from it.
#
# ## Two nibbles become two floats in one instruction
#
# A float16 from 1024 to 2048 has steps of 1. So the bits `0x6400 | code` *are* the number 1024 + code: no conversion is needed, only an OR. With elements sixteen bits apart, one `lop3`
# (any function of three words) does mask and OR for both halves of a register: `(word & 0x000f000f) | 0x64006400`. Then subtract 1032, and what is left is code - 8.

# %%
magic = np.arange(16, dtype=np.uint16) | 0x6400
print("0x6400 | code as float16:", magic.view(np.float16)[:6], "...")
print("minus 1032:              ", (magic.view(np.float16) - np.float16(1032))[:6], "...")


# %% [markdown]
# Neither instruction is in `dgnumba.ptx` under this name, so we declare them: text for the GPU, body for the emulator.


# %%
@op("lop3.b32 {out}, {word}, 0x000f000f, 0x64006400, 0xea;", pure=True)
def low_nibbles(word: u32) -> u32:
    """lop3.b32 - 1024 + the low nibble of each half of `word`, as two float16.

    PTX:       ISA 9.0, "lop3"; sm_50+
    Scope:     thread
    Args:      word  u32
    Returns:   u32
    Emulates:  exactly
    """
    return (word & 0x000F000F) | 0x64006400


@op("{{ .reg .b32 c; mov.b32 c, 0x64086408; sub.rn.f16x2 {out}, {pair}, c; }}", pure=True)
def minus_1032(pair: u32) -> u32:
    """sub.rn.f16x2 - subtract 1032 from both float16 of `pair`.

    PTX:       ISA 9.0, "sub", ".f16x2"; sm_53+
    Scope:     thread
    Args:      pair  u32
    Returns:   u32
    Emulates:  exactly
    """
    halves = np.array([int(pair) & 0xFFFF, int(pair) >> 16], np.uint16).view(np.float16) - np.float16(1032)
    low, high = halves.view(np.uint16)
    return u32(int(high) << 16 | int(low))


# %% [markdown]
# ## A kernel
#
# `D[16, N] = X[16, K] @ W[N, K].T`, X in float16, W in Marlin's order. Four warps take 64 outputs. For each 16 of K a lane loads **one** word: eight numbers, exactly the four registers
# that two `mma.m16n8k16` want as operand B. No shared memory, no shuffle.

# %%


@cuda.jit
def int4_kernel(x, words, scale, out, k):
    lane, warp = thread.lane_idx(), u32(cuda.threadIdx.x) // 32
    row, pair = lane // 4, lane % 4
    acc0, acc1 = fragment.zero(4), fragment.zero(4)
    for tile in range(k // 16):
        at = u32(tile) * 8 + pair  # in pairs of float16
        a = (u32(x[row, at]), u32(x[row + 8, at]), u32(x[row, at + 4]), u32(x[row + 8, at + 4]))
        word = u32(words[tile, u32(cuda.blockIdx.x) * 128 + lane * 4 + warp])
        b0, b1 = minus_1032(low_nibbles(word)), minus_1032(low_nibbles(word >> 4))
        b2, b3 = minus_1032(low_nibbles(word >> 8)), minus_1032(low_nibbles(word >> 12))
        acc0 = mma.m16n8k16_f16(acc0, a, (b0, b1))
        acc1 = mma.m16n8k16_f16(acc1, a, (b2, b3))
    n = u32(cuda.blockIdx.x) * 64 + warp * 16 + pair * 2
    out[row, n], out[row, n + 1] = acc0[0] * scale[n], acc0[1] * scale[n + 1]
    out[row + 8, n], out[row + 8, n + 1] = acc0[2] * scale[n], acc0[3] * scale[n + 1]
    out[row, n + 8], out[row, n + 9] = acc1[0] * scale[n + 8], acc1[1] * scale[n + 9]
    out[row + 8, n + 8], out[row + 8, n + 9] = acc1[2] * scale[n + 8], acc1[3] * scale[n + 9]


N, K = 128, 128
rng = np.random.default_rng(0)
activations = rng.integers(-8, 9, (16, K)).astype(np.float16)  # whole numbers: the sum has one right answer
codes = rng.integers(0, 16, (N, K)).astype(np.uint8)
scale = (2.0 ** rng.integers(-3, 3, N)).astype(np.float32)

words = int4.MARLIN.pack(codes).view(np.uint32)
out = xp.zeros((16, N), xp.float32)
arguments = (xp.asarray(activations.view(np.uint32)), xp.asarray(words), xp.asarray(scale), out, K)
dgnumba.launch(int4_kernel, N // 64, 128, arguments)
want = activations.astype(np.float64) @ ((codes.astype(np.float64) - 8) * scale[:, None]).T
print("right:", np.array_equal(to_numpy(out), want))

# %% [markdown]
# Are the loads coalesced? The emulator counts the sectors of 32 bytes that each warp touches, against those that its bytes need:

# %%
report = emu.check(int4_kernel, N // 64, 128, (activations.view(np.uint32), words, scale, np.zeros((16, N), np.float32), K))
for access in report.global_memory:
    print(f"{access.excess:4.1f} times the sectors needed: {access.source.strip()[:90]}")

# %% [markdown]
# The words are *not*: warps take every fourth word, so each warp touches four times the sectors that it needs. The warps together use all of them, so L1 repairs most of that; the real kernel loads 16 bytes a
# lane (all four words) and gives each lane four pairs of tiles instead.
#
# ## Exercise
#
# AWQ stores eight outputs of one column of K in an int32, interleaved: nibble i (from the low bits) holds output `(0, 2, 4, 6, 1, 3, 5, 7)[i]`. Complete `unpack_awq(words)`: from `[K, N / 8]` int32
# to codes `[N, K]`, uint8. As given it takes the nibbles in order.


# %%
def unpack_awq(words):
    nibbles = (words.view(np.uint32)[..., None] >> (4 * np.arange(8, dtype=np.uint32))) & 15  # [K, N / 8, 8]
    return nibbles.reshape(len(words), -1).T.astype(np.uint8)


# %%
def check():
    """Whether `unpack_awq` gives back what was packed."""
    draw = np.random.default_rng(5)
    for n, k in ((8, 1), (64, 48)):
        before = draw.integers(0, 16, (n, k)).astype(np.uint8)
        after = np.asarray(unpack_awq(int4.AWQ.pack(before)))
        if after.shape != before.shape:
            print(f"not yet: expected codes {list(before.shape)}, got {list(after.shape)}")
            return False
        if not np.array_equal(after, before):
            row, column = (int(i) for i in np.argwhere(after != before)[0])
            print(f"not yet: output {row}, column {column}: expected {before[row, column]}, got {after[row, column]}")
            return False
    print("right: every nibble is back in its place")
    return True


check()
