# Answers to the exercise of 07_fp8_gemm.py, which `tools/notebooks.py run` tries: the right ones must be taken, the wrong ones refused.


# %% right
def in_flight(kb, k_blocks):
    return min(STAGES - 1, k_blocks - kb - 1)


# %% wrong: the stage that is being read is not on its way any more
def in_flight(kb, k_blocks):
    return min(STAGES, k_blocks - kb)


# %% wrong: forgets that K ends
def in_flight(kb, k_blocks):
    return STAGES - 1


# %% wrong: as if a stage were refilled before its products
def in_flight(kb, k_blocks):
    return min(STAGES - 2, k_blocks - kb - 1)
