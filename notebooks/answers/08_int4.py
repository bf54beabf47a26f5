# Answers to the exercise of 08_int4.py, which `tools/notebooks.py run` tries: the right ones must be taken, the wrong ones refused.


# %% right
def unpack_awq(words):
    where = np.argsort((0, 2, 4, 6, 1, 3, 5, 7)).astype(np.uint32)  # output i is in nibble where[i]
    nibbles = (words.view(np.uint32)[..., None] >> (4 * where)) & 15
    return nibbles.reshape(len(words), -1).T.astype(np.uint8)


# %% right
def unpack_awq(words):
    codes = np.zeros((words.shape[1] * 8, words.shape[0]), np.uint8)
    for nibble, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        codes[output::8] = ((words.view(np.uint32) >> np.uint32(4 * nibble)) & 15).T
    return codes


# %% wrong: the order instead of its inverse
def unpack_awq(words):
    order = np.array((0, 2, 4, 6, 1, 3, 5, 7), np.uint32)
    nibbles = (words.view(np.uint32)[..., None] >> (4 * order)) & 15
    return nibbles.reshape(len(words), -1).T.astype(np.uint8)


# %% wrong: high bits first
def unpack_awq(words):
    where = 7 - np.argsort((0, 2, 4, 6, 1, 3, 5, 7)).astype(np.uint32)
    nibbles = (words.view(np.uint32)[..., None] >> (4 * where)) & 15
    return nibbles.reshape(len(words), -1).T.astype(np.uint8)


# %% wrong: not turned
def unpack_awq(words):
    where = np.argsort((0, 2, 4, 6, 1, 3, 5, 7)).astype(np.uint32)
    nibbles = (words.view(np.uint32)[..., None] >> (4 * where)) & 15
    return nibbles.reshape(len(words), -1).astype(np.uint8)
