# Answers to the exercise of 10_your_own.py, which `tools/notebooks.py run` tries: the right ones must be taken, the wrong ones refused.


# %% right
@op("bfe.u32 {out}, {a}, {position}, {length};", pure=True, name="answers.right")
def bfe(a: u32, position: u32, length: u32) -> u32:
    at, bits = int(position) & 255, int(length) & 255
    return u32((int(a) >> at) & ((1 << bits) - 1))


# %% wrong: all bits of position and length count
@op("bfe.u32 {out}, {a}, {position}, {length};", pure=True, name="answers.all_bits")
def bfe(a: u32, position: u32, length: u32) -> u32:
    return u32((int(a) >> int(position)) & ((1 << int(length)) - 1))


# %% wrong: five bits count
@op("bfe.u32 {out}, {a}, {position}, {length};", pure=True, name="answers.five_bits")
def bfe(a: u32, position: u32, length: u32) -> u32:
    return u32((int(a) >> (int(position) & 31)) & ((1 << (int(length) & 31)) - 1))


# %% wrong: the field is not moved down
@op("bfe.u32 {out}, {a}, {position}, {length};", pure=True, name="answers.in_place")
def bfe(a: u32, position: u32, length: u32) -> u32:
    at, bits = int(position) & 255, int(length) & 255
    return u32(int(a) & (((1 << bits) - 1) << at) & 0xFFFFFFFF)
