# Answers to the exercise of 09_break_it.py, which `tools/notebooks.py run` tries: the right ones must be taken, the wrong ones refused.


# %% right
diagnosis = {0: 0, 1: 1, 2: 6, 3: 8}


# %% wrong: two are mixed up
diagnosis = {0: 1, 1: 0, 2: 6, 3: 8}


# %% wrong: one is left open
diagnosis = {0: 0, 1: 1, 2: 6}
