# Answers to the exercise of 06_pipeline.py, which `tools/notebooks.py run` tries: the right ones must be taken, the wrong ones refused.


# %% right
def empty_arrivals(consumer_warps, cluster):
    return consumer_warps * cluster


# %% wrong: every thread arrives
def empty_arrivals(consumer_warps, cluster):
    return 32 * consumer_warps * cluster


# %% wrong: the other CTA is forgotten
def empty_arrivals(consumer_warps, cluster):
    return consumer_warps


# %% wrong: one arrival too few lets the producer overwrite what is being read
def empty_arrivals(consumer_warps, cluster):
    return max(1, consumer_warps * cluster - 1)
