# Answers to the exercise of 05_wgmma.py, which `tools/notebooks.py run` tries: the right ones must be taken, the wrong ones refused.


# %% right
def holder(row, column):
    thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
    return thread, column // 8 * 4 + row % 16 // 8 * 2 + column % 2


# %% wrong: the two rows of a thread are taken for neighbours
def holder(row, column):
    thread = row // 16 * 32 + row % 16 // 2 * 4 + column % 8 // 2
    return thread, column // 8 * 4 + row % 2 * 2 + column % 2


# %% wrong: the registers of the lower row come after all of the upper row's
def holder(row, column):
    thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
    return thread, column // 8 * 2 + column % 2 + row % 16 // 8 * 4


# %% wrong: a lane holds four columns side by side
def holder(row, column):
    thread = row // 16 * 32 + row % 8 * 4 + column % 16 // 4
    return thread, column // 16 * 4 + row % 16 // 8 * 2 + column % 2
