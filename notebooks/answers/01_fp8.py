# Answers to the exercise of 01_fp8.py, which `tools/notebooks.py run` tries: the right ones must be taken, the wrong ones refused.


# %% right
def scale_of(block):
    largest = np.abs(block).max()
    return np.float32(largest / 448) if largest > 0 else np.float32(1)


# %% wrong: zeros give a scale of zero
def scale_of(block):
    return np.float32(np.abs(block).max() / 448)


# %% wrong: a power of two above wastes up to half of the range
def scale_of(block):
    largest = np.abs(block).max()
    return np.float32(2.0 ** np.ceil(np.log2(largest / 448))) if largest > 0 else np.float32(1)


# %% wrong: the least magnitude that is allowed is too large for tiny numbers
def scale_of(block):
    return np.float32(max(np.abs(block).max(), 1e-4) / 448)


# %% wrong: overflows, 448 is the largest number and not 512
def scale_of(block):
    largest = np.abs(block).max()
    return np.float32(largest / 512) if largest > 0 else np.float32(1)
