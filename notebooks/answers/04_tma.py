# Answers to the exercise of 04_tma.py, which `tools/notebooks.py run` tries: the right ones must be taken, the wrong ones refused.


# %% right
def keeps(x, column, width):
    return x + column < width


# %% right
def keeps(x, column, width):
    return column < width - x


# %% wrong: one column too many
def keeps(x, column, width):
    return x + column <= width


# %% wrong: only whole boxes count
def keeps(x, column, width):
    return x + 16 <= width


# %% wrong: forgets where the box begins
def keeps(x, column, width):
    return column < width
