# mypy: ignore-errors
"""What `chunk.Chunk` does, compiled for the host by Numba; imported only by `compiled`.

NOTE: no `fastmath`: contracted to `fma`, a product and a sum would be rounded once instead of twice, and
the codes would differ from NumPy's.
"""

import numpy as np
from numba import njit

I32, U32, F32 = np.int32, np.uint32, np.float32


def _compile(function):
    """On disk where a folder for it can be written, as beside this file; otherwise for this process."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return njit(nogil=True)(function)


@_compile
def amax(words, gm, gk, out):
    """Of each block the largest float32 bits below the sign, so NaN above all, as int32; `out` comes zero."""
    rows, columns = words.shape
    for r in range(rows):
        row, into = words[r], out[r // gm]
        if gk == 1:
            for c in range(columns):
                word = I32(row[c] & I32(0x7FFFFFFF))
                into[c] = word if word > into[c] else into[c]
            continue
        for j in range(into.size):
            part, largest = row[j * gk : min(j * gk + gk, columns)], into[j]
            for c in range(part.size):
                word = I32(part[c] & I32(0x7FFFFFFF))
                largest = word if word > largest else largest
            into[j] = largest


@_compile
def extrema(x, gm, gk, low, high):
    """Of each block the least and the largest value and zero; `low` and `high` come zero."""
    rows, columns = x.shape
    for r in range(rows):
        lows, highs = low[r // gm], high[r // gm]
        for j in range(lows.size):
            least, most, has_nan = lows[j], highs[j], False
            for value in x[r, j * gk : min(j * gk + gk, columns)]:
                least = value if value < least else least
                most = value if value > most else most
                has_nan |= value != value
            if has_nan or lows[j] != lows[j]:
                least = most = F32(np.nan)
            lows[j], highs[j] = least, most


@njit(nogil=True, inline="always")
def _float_code(y, mantissa, lowest, max_code, nan_code, inf_code, sign_shift, has_minus_zero):
    word = F32(y).view(I32)
    magnitude = I32(word & I32(0x7FFFFFFF))
    exponent = max(I32(magnitude >> I32(23)), lowest)
    # Times 2^(mantissa - exponent) the spacing of the target is 1.
    steps = np.rint(magnitude.view(F32) * I32(I32(I32(254) + mantissa - exponent) << I32(23)).view(F32))
    code = I32(I32(I32(exponent - lowest) << mantissa) + I32(steps))
    code = min(code, max_code)
    code = inf_code if magnitude == I32(0x7F800000) else code
    sign = I32(I32(I32(word >> I32(31)) & I32(1)) << sign_shift)
    code = I32(code | sign) if (has_minus_zero or code != I32(0)) else I32(0)
    return nan_code if magnitude > I32(0x7F800000) else code


@njit(nogil=True, inline="always")
def _spread(blocks, gk, into):
    """A value a block as one a column, so that the loop over a row is one loop."""
    for j in range(blocks.size):
        into[j * gk : j * gk + gk] = blocks[j]


@_compile
def float_codes(x, gm, gk, inverse, mantissa, lowest, max_code, nan_code, inf_code, sign_shift, has_minus_zero, out):
    """Codes of ``x * inverse``, of a float type of 8 bits or fewer."""
    rows, columns = x.shape
    factor = np.empty(columns, F32)
    for r in range(rows):
        if r % gm == 0:
            _spread(inverse[r // gm], gk, factor)
        source, target = x[r], out[r]
        for c in range(columns):
            code = _float_code(source[c] * factor[c], mantissa, lowest, max_code, nan_code, inf_code, sign_shift, has_minus_zero)
            target[c] = np.uint8(code)


@_compile
def e2m1_codes_with_ties_to_zero(x, gm, gk, inverse, out):
    """Codes of ``x * inverse`` as DeepGEMM makes them."""
    rows, columns = x.shape
    factor = np.empty(columns, F32)
    for r in range(rows):
        if r % gm == 0:
            _spread(inverse[r // gm], gk, factor)
        source, target = x[r], out[r]
        for c in range(columns):
            y = F32(source[c] * factor[c])
            size = abs(y)
            code = I32(size > F32(0.25)) + I32(size > F32(0.75)) + I32(size > F32(1.25)) + I32(size > F32(1.75))
            code += I32(size > F32(2.5)) + I32(size > F32(3.5)) + I32(size > F32(5.0))
            target[c] = np.uint8(code | (I32((y < F32(0)) & (code > 0)) << I32(3)))


@njit(nogil=True, inline="always")
def _whole(y, zero, least, most):
    whole = min(max(np.rint(y) + zero, least), most)
    return whole if y == y else F32(0)


@_compile
def integer_codes(x, gm, gk, inverse, zero, least, most, mask, out):
    """Codes of ``x * inverse`` plus `zero`, of an integer type of 8 bits or fewer."""
    rows, columns = x.shape
    factor, shift = np.empty(columns, F32), np.empty(columns, F32)
    for r in range(rows):
        if r % gm == 0:
            _spread(inverse[r // gm], gk, factor)
            _spread(zero[r // gm], gk, shift)
        source, target = x[r], out[r]
        for c in range(columns):
            target[c] = np.uint8(I32(_whole(source[c] * factor[c], shift[c], least, most)) & mask)


@njit(nogil=True, inline="always")
def _sum_of_squares(errors, count):
    """In float64, in four lanes, so that the order is the same on every machine; `errors` is 3 longer than `count`."""
    errors[count : count + 3] = F32(0)
    a = b = c = d = 0.0
    for i in range(0, count, 4):
        p, q, r, s = np.float64(errors[i]), np.float64(errors[i + 1]), np.float64(errors[i + 2]), np.float64(errors[i + 3])
        a, b, c, d = a + p * p, b + q * q, c + r * r, d + s * s
    return (a + c) + (b + d)


@_compile
def float_errors(x, gm, gk, scale, mantissa, lowest, largest, out):
    """Of each block the sum of squared errors, were it quantized with `scale`; `out` comes zero."""
    rows, columns = x.shape
    errors = np.empty(columns + 3, F32)
    for r in range(rows):
        scales, into = scale[r // gm], out[r // gm]
        for j in range(scales.size):
            factor, inverse = abs(scales[j]), F32(1) / scales[j]
            part = x[r, j * gk : min(j * gk + gk, columns)]
            for c in range(part.size):
                magnitude = abs(F32(part[c] * inverse))
                exponent = max(I32(F32(magnitude).view(I32) >> I32(23)), lowest)
                up = I32(I32(I32(254) + mantissa - exponent) << I32(23)).view(F32)
                down = I32(I32(exponent - mantissa) << I32(23)).view(F32)
                rounded = min(F32(np.rint(magnitude * up) * down), largest)
                errors[c] = F32(abs(part[c]) - F32(rounded * factor))
            into[j] += _sum_of_squares(errors, part.size)


@_compile
def integer_errors(x, gm, gk, scale, zero, least, most, out):
    """As `float_errors`."""
    rows, columns = x.shape
    errors = np.empty(columns + 3, F32)
    for r in range(rows):
        scales, zeros, into = scale[r // gm], zero[r // gm], out[r // gm]
        for j in range(scales.size):
            factor, inverse, shift = scales[j], F32(1) / scales[j], zeros[j]
            part = x[r, j * gk : min(j * gk + gk, columns)]
            for c in range(part.size):
                errors[c] = F32(part[c] - F32(F32(_whole(F32(part[c] * inverse), shift, least, most) - shift) * factor))
            into[j] += _sum_of_squares(errors, part.size)
