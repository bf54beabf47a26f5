# %% [markdown]
# # 00 A tour
#
# **Question: what happens when two matrices of 8-bit floats are multiplied on a Hopper GPU, and can I watch it on my laptop?**
#
# In a quarter of an hour: quantize, multiply, know how far off the result may be, see the plan, step the GPU's own kernel on this CPU, look at
# its timeline, and take one line out of it to see the emulator object. The later notebooks open each part; none of them needs a GPU, and where
# there is a Hopper GPU the same cells run on it.

# %%
import ml_dtypes
import numpy as np

import dgnumba
from dgnumba.testing import array_module, to_numpy

xp = array_module()  # NumPy, or CuPy where there is a Hopper GPU
print("arrays live in", "host memory" if xp is np else "GPU memory")

# %% [markdown]
# ## From floats to 8 bits
#
# An e4m3 number has a sign, 4 bits of exponent and 3 of mantissa: two or three significant digits, and nothing beyond 448. So each stretch of 128
# activations, and each 128 x 128 block of a weight, gets a float32 *scale* that brings its largest element to 448.

# %%
rng = np.random.default_rng(0)
x = xp.asarray(rng.standard_normal((256, 512), np.float32))  # activations [M, K]
w = xp.asarray(rng.standard_normal((384, 512), np.float32))  # a weight [N, K]

a = dgnumba.per_token_cast_to_fp8(x)
b = dgnumba.per_block_cast_to_fp8(w)
print(a)
print(b)
print("largest scaled magnitude:", float(abs(a.dequantize() / a.scale.repeat(128, axis=1)).max()))

# %% [markdown]
# ## The product, and how wrong it may be
#
# `fp8_gemm_nt` computes `D = A @ B.T` in bfloat16. Two different errors are to be told apart: what quantization lost (about 4 % of an element
# here, and unavoidable), and what the *multiplication* lost, for which there is a proven bound for each element.

# %%
d = dgnumba.fp8_gemm_nt(a, b)
exact = dgnumba.gemm_reference(*map(to_numpy, a), *map(to_numpy, b))  # the same quantized operands in float64
bound = dgnumba.error_bound(*map(to_numpy, a), *map(to_numpy, b))
product = to_numpy(d).view(ml_dtypes.bfloat16).astype(np.float64)
error = np.abs(product - exact)
print(
    f"largest error {error.max():.3f}, largest share of its bound {(error / bound).max():.2f}; all within: {bool((error <= bound).all())}"
)
true = to_numpy(x).astype(np.float64) @ to_numpy(w).astype(np.float64).T
print(f"against the unquantized product: {np.abs(product - true).mean() / np.abs(true).mean():.1%} off on average, the price of 8 bits")

# %% [markdown]
# ## The plan
#
# Which kernel runs, with which tile, how many stages of shared memory, and why: `explain` says it, GPU or not.

# %%
print(dgnumba.explain(a, b))

# %% [markdown]
# ## The kernel itself, on this CPU
#
# `on="emulator"` runs the very function that is compiled for the GPU, thread by thread. One tile of 128 x 128 takes a second or two. Its bits are
# those of the GPU, because the emulator adds as the tensor core does; the host path, which is what NumPy arrays get by default, promotes at the same
# places but adds in float32.

# %%
tile_a = dgnumba.per_token_cast_to_fp8(to_numpy(x)[:128])
tile_b = dgnumba.per_block_cast_to_fp8(to_numpy(w)[:128])
stepped = dgnumba.fp8_gemm_nt(tile_a, tile_b, on="emulator")
same = np.asarray(stepped, np.float32) == product[:128, :128].astype(np.float32)
print(f"{same.mean():.2%} of the elements have the same bits as above")

# %% [markdown]
# ## What a broken kernel looks like
#
# The kernel below lets the TMA unit copy a box into shared memory, and forgets to wait for it. A GPU gives the right sum nearly always. The
# emulator says what is wrong, who did it, and on which line.

# %%
from numba import cuda

from dgnumba import u32
from dgnumba.errors import EmulationError
from dgnumba.ptx import barrier, mbarrier, memory, tma


@cuda.jit
def hasty(tmap, out):
    smem = memory.shared_address(cuda.shared.array(0, np.uint8))
    full = smem + 4096
    if cuda.threadIdx.x == 0:
        mbarrier.init(full, 1)
        barrier.fence_mbarrier_init()
        mbarrier.arrive_expect_tx(full, 4096)
        tma.load_2d(smem, tmap, full, 0, 0)
    cuda.syncthreads()
    out[cuda.threadIdx.x] = memory.load_shared_f32(smem + u32(cuda.threadIdx.x) * 128)


table, first = np.ones((32, 32), np.float32), np.zeros(32, np.float32)
try:
    dgnumba.emu.run(hasty, 1, 32, (dgnumba.tensor_map(table, box=(32, 32)), first), smem=4096 + 8, policy="late")
except EmulationError as error:
    print(error)

# %% [markdown]
# ## Exercise
#
# Write the product of two quantized matrices yourself, in NumPy, so that every element is within its bound. What is given below multiplies the
# codes and forgets what a scale is for. `a.data` holds the codes `[M, K]`, `a.scale` one float32 for each `1 x 128`: `[M, K / 128]`; `b.scale` has
# one for each `128 x 128`: `[N / 128, K / 128]`. Accumulate in float32 or better.


# %%
def my_gemm(a, b):
    return a.data.astype(np.float32) @ b.data.astype(np.float32).T


# %%
def check():
    """Whether `my_gemm` is within the error bound of every element, on awkward extents too."""
    draw = np.random.default_rng(1)
    for m, n, k in ((4, 130, 256), (3, 5, 384), (200, 128, 128)):
        left = dgnumba.per_token_cast_to_fp8(draw.standard_normal((m, k), np.float32) * 10)
        right = dgnumba.per_block_cast_to_fp8(draw.standard_normal((n, k), np.float32))
        mine = np.asarray(my_gemm(left, right), np.float64)
        if mine.shape != (m, n):
            print(f"not yet: expected [{m}, {n}], got {list(mine.shape)}")
            return False
        outside = np.abs(mine - dgnumba.gemm_reference(*left, *right)) > dgnumba.error_bound(*left, *right)
        if outside.any():
            row, column = (int(i) for i in np.argwhere(outside)[0])
            print(
                f"not yet: for M, N, K = {m}, {n}, {k} {outside.mean():.0%} of the elements are outside their bound, first [{row}, {column}]"
            )
            return False
    print("right: every element within its bound")
    return True


check()
