# Answers to the exercise of 02_swizzles.py, which `tools/notebooks.py run` tries: the right ones must be taken, the wrong ones refused.


# %% right
def place(row, chunk):
    return row * 64 + ((chunk ^ (row // 2 % 4)) << 4)


# %% right
def place(row, chunk):
    return row * 64 + (chunk + row // 2) % 4 * 16


# %% wrong: the phase of the 128-byte swizzle, which leaves neighbours two by two in the same banks
def place(row, chunk):
    return row * 64 + ((chunk ^ (row % 4)) << 4)


# %% wrong: leaves the row
def place(row, chunk):
    return (row * 64 + chunk * 16) ^ ((row % 8) << 4)


# %% wrong: all of a row in one place
def place(row, chunk):
    return row * 64
