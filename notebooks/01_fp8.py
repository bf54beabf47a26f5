# %% [markdown]
# # 01 FP8 and block scales
#
# **Question: how can 8 bits carry a weight matrix, when one row of it may hold 0.001 and 30?**
#
# There are 256 codes. This notebook shows all of them, what one large element does to its neighbours, why a scale for every 128 elements repairs it,
# and what the tensor core's own adder loses on top.

# %%
import matplotlib.pyplot as plt
import numpy as np

import dgnumba
from dgnumba.dtypes import DTYPES

e4m3, e5m2 = DTYPES["float8_e4m3fn"], DTYPES["float8_e5m2"]

# %% [markdown]
# ## All the numbers there are
#
# `e4m3`: 4 bits of exponent, 3 of mantissa, up to 448, no infinity. `e5m2`: one bit of precision is given for range (57344). The picture shows the
# positive values of each: they crowd towards zero, and between two powers of two there are 8, or 4.

# %%
fig, axes = plt.subplots(2, 1, figsize=(9, 2.4), sharex=True)
for axis, row in zip(axes, (e4m3, e5m2)):
    values = row.decode(np.arange(128, dtype=np.uint8)).astype(np.float64)
    values = values[np.isfinite(values) & (values > 0)]
    axis.eventplot(values, lineoffsets=0.5, linelengths=1, linewidths=0.6)
    axis.set(xscale="log", xlim=(1e-5, 1e5), ylim=(0, 1), yticks=[], ylabel=row.ptx)
    print(f"{row.name}: {len(values)} positive values from {values.min():.3g} to {values.max():g}")
axes[-1].set_xlabel("value")
fig.tight_layout()

# %% [markdown]
# ## Relative error does not depend on size, until it does
#
# To nearest, a normal e4m3 number is off by at most 1/16 of itself (6 %). Below 2^-6 the numbers are evenly spaced, and the relative error grows up to
# 100 %: what is much smaller than the block's largest element becomes zero.

# %%
x = np.geomspace(1e-4, 448, 2000).astype(np.float32)
rounded = e4m3.decode(e4m3.encode(x)).astype(np.float64)
plt.figure(figsize=(9, 2.4))
plt.loglog(x, np.maximum(np.abs(rounded - x) / x, 1e-5), ".", markersize=2)
plt.axhline(1 / 16, color="C1", linewidth=1)
plt.xlabel("value")
plt.ylabel("relative error")
plt.tight_layout()

# %% [markdown]
# ## One scale for all, or one for every 128
#
# Activations of language models have *outliers*: a few channels are a hundred times larger than the rest. With one scale for the tensor they push everybody else
# into the coarse end; with one scale per 1 x 128 they spoil their own block only.

# %%
rng = np.random.default_rng(0)
activations = rng.standard_normal((64, 1024)).astype(np.float32) * 0.1
activations[:, 700] *= 3000  # one loud channel

per_tensor = dgnumba.quantize(activations, dgnumba.quant.Format("per tensor", "float8_e4m3fn", (0, 0)))
per_block = dgnumba.per_token_cast_to_fp8(activations)
for name, q in (("one scale", per_tensor), ("one per 1x128", per_block)):
    lost = (q.dequantize() == 0) & (activations != 0)
    error = np.abs(q.dequantize() - activations)
    print(f"{name:14s} {lost.mean():6.1%} of the elements became zero; mean error {error.mean():.5f}; {q.scale.size} scales")

# %% [markdown]
# The package measures each block's error beside its proven bound:

# %%
print(dgnumba.quant.report(activations, per_block).total)

# %% [markdown]
# ## What the tensor core loses on top
#
# The FP8 tensor core does not add in float32. It aligns the 32 products of a step, and what was there before, to the largest, and cuts each
# to 13 bits of fraction. Cut, not rounded: with positive numbers the error has one sign and grows with K. So block-scaled kernels take the sum out every 128 of K,
# scale it, and add it in float32: *promotion*. `emu.tensor_core` holds the model, which agrees with an H200 in every bit of 86.7 million elements
# (`bench/results/tensor_core_h200.json`); here it adds without and with promotion.

# %%
from dgnumba.emu import tensor_core

for k in (128, 512, 2048):
    ones = np.abs(rng.standard_normal((64, k))).astype(np.float32)
    a, b = dgnumba.per_token_cast_to_fp8(ones), dgnumba.per_block_cast_to_fp8(ones[:8])
    left, right = e4m3.decode(a.codes), e4m3.decode(b.codes)
    exact = left.astype(np.float64) @ right.astype(np.float64).T
    straight = promoted = np.zeros((64, 8), np.float32)
    for first in range(0, k, 128):
        block = np.zeros((64, 8), np.float32)
        for step in range(first, first + 128, 32):
            columns = slice(step, step + 32)
            straight = tensor_core.multiply_add(straight, left[:, columns], right[:, columns], -6, -6)
            block = tensor_core.multiply_add(block, left[:, columns], right[:, columns], -6, -6)
        promoted = promoted + block
    off = [float(((value - exact) / exact).mean()) for value in (straight, promoted)]
    print(f"K = {k:5d}: mean relative error {off[0]:+.3%} straight, {off[1]:+.3%} promoted every 128")

# %% [markdown]
# ## Exercise
#
# Write `scale_of(block)`: the float32 scale of one block of floats, so that `block / scale` uses all of e4m3. Three traps: the largest element must become
# 448 (not overflow it, not waste half of the range), a block of zeros must not give a scale that divides by zero, and negative elements count too.


# %%
def scale_of(block):
    return np.float32(block.max() / 448)


# %%
def check():
    """Whether `scale_of` uses the whole range of e4m3, on blocks that are easy to get wrong."""
    draw = np.random.default_rng(2)
    blocks = {
        "random numbers": draw.standard_normal(128).astype(np.float32),
        "negative numbers": -np.abs(draw.standard_normal(128)).astype(np.float32),
        "tiny numbers": np.float32(1e-20) * draw.standard_normal(128).astype(np.float32),
        "zeros": np.zeros(128, np.float32),
    }
    for name, block in blocks.items():
        scale = np.float32(scale_of(block))
        if not (np.isfinite(scale) and scale > 0):
            print(f"not yet: {name} give the scale {scale}: expected a finite one, above 0")
            return False
        largest = float(np.abs(block.astype(np.float64) / scale).max())
        if block.any() and not 447 < largest <= 448 * (1 + 2**-20):
            print(f"not yet: {name} become {largest:.4g} at most: expected 448")
            return False
    print("right: every block reaches 448, and zeros are safe")
    return True


check()
