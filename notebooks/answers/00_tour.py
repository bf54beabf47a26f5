# Answers to the exercise of 00_tour.py, which `tools/notebooks.py run` tries: the right ones must be taken, the wrong ones refused.


# %% right
def my_gemm(a, b):
    x = a.data.astype(np.float64) * np.repeat(a.scale, 128, axis=1)[:, : a.data.shape[1]]
    scale = np.repeat(np.repeat(b.scale, 128, axis=0), 128, axis=1)
    return x @ (b.data.astype(np.float64) * scale[: b.data.shape[0], : b.data.shape[1]]).T


# %% right
def my_gemm(a, b):
    return a.dequantize("float64") @ b.dequantize("float64").T


# %% wrong: B's scales are forgotten
def my_gemm(a, b):
    return (a.data.astype(np.float64) * np.repeat(a.scale, 128, axis=1)) @ b.data.astype(np.float64).T


# %% wrong: one scale for a whole row of A
def my_gemm(a, b):
    return (a.data.astype(np.float64) * a.scale[:, :1]) @ b.dequantize("float64").T


# %% wrong: B's scales belong to another block of K
def my_gemm(a, b):
    scale = np.repeat(np.repeat(np.roll(b.scale, 1, axis=1), 128, axis=0), 128, axis=1)
    return a.dequantize("float64") @ (b.data.astype(np.float64) * scale[: b.data.shape[0], : b.data.shape[1]]).T
