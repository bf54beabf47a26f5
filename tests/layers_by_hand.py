"""A quantized layer of every checkpoint format, and its values in float64, each made one element at a time from the format's description."""

import ml_dtypes
import numpy as np

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def words(nibbles):
    """int32 of eight nibbles each, the first lowest; ``[rows, 8 n]`` to ``[rows, n]``."""
    out = np.zeros((nibbles.shape[0], nibbles.shape[1] // 8), np.uint32)
    for row, column in np.ndindex(nibbles.shape):
        out[row, column // 8] |= np.uint32(int(nibbles[row, column]) << 4 * (column % 8))
    return out.view(np.int32)


def pairs(nibbles):
    return (nibbles[:, ::2] | nibbles[:, 1::2] << 4).astype(np.uint8)


def integer_layer(rng, n, k, group, g_idx=None, scale="float16"):
    """(codes 0 to 15, zeros 0 to 15, scales, values) of ``[n, k]``."""
    count = -(-k // group)
    codes, zeros = rng.integers(0, 16, (n, k)), rng.integers(0, 16, (n, count))
    scales = (rng.random((n, count)) + 0.5).astype(np.dtype(getattr(ml_dtypes, scale, scale)))
    index = np.arange(k) // group if g_idx is None else g_idx
    values = np.empty((n, k))
    for row, column in np.ndindex(n, k):
        values[row, column] = (int(codes[row, column]) - int(zeros[row, index[column]])) * float(scales[row, index[column]])
    return codes, zeros, scales, values


def awq(rng, name="l", n=16, k=192, group=128):
    codes, zeros, scales, values = integer_layer(rng, n, k, group)
    order = np.concatenate([8 * i + np.array(AWQ_ORDER) for i in range(n // 8)])
    tensors = {f"{name}.qweight": words(codes.T[:, order]), f"{name}.qzeros": words(zeros.T[:, order]), f"{name}.scales": scales.T}
    return tensors, values


def gptq(rng, name="l", n=16, k=192, group=128, version=1, act_order=False, with_g_idx=True):
    g_idx = rng.permutation(np.arange(k) // group).astype(np.int32) if act_order else np.arange(k, dtype=np.int32) // group
    codes, zeros, scales, values = integer_layer(rng, n, k, group, g_idx)
    stored = (zeros - 1) % 16 if version == 1 else zeros
    tensors = {f"{name}.qweight": words(codes).T, f"{name}.qzeros": words(stored.T), f"{name}.scales": scales.T}
    return {**tensors, **({f"{name}.g_idx": g_idx} if with_g_idx else {})}, values


def compressed_tensors(rng, name="l", n=12, k=192, group=128, zero_points=True, act_order=False):
    g_idx = rng.permutation(np.arange(k) // group).astype(np.int32) if act_order else None
    codes, zeros, scales, values = integer_layer(rng, n, k, group, g_idx, "bfloat16")
    if not zero_points:
        values = (codes - 8) * np.repeat(scales.astype(np.float64), group, axis=1)[:, :k]
    filled = np.zeros((-(-n // 8) * 8, zeros.shape[1]), zeros.dtype)
    filled[:n] = zeros
    tensors = {f"{name}.weight_packed": words(codes), f"{name}.weight_scale": scales, f"{name}.weight_shape": np.array([n, k])}
    tensors |= {f"{name}.weight_zero_point": words(filled.T).T} if zero_points else {}
    return {**tensors, **({f"{name}.weight_g_idx": g_idx} if act_order else {})}, values


def fp8_block(rng, name="l", n=300, k=192, scale="float32"):
    codes = rng.integers(0, 256, (n, k), dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    scales = np.ldexp(1.0, rng.integers(-8, 8, (-(-n // 128), -(-k // 128)))).astype(np.dtype(getattr(ml_dtypes, scale, scale)))
    weight = codes.view(ml_dtypes.float8_e4m3fn)
    values = np.empty((n, k))
    for row, column in np.ndindex(n, k):
        values[row, column] = float(weight[row, column]) * float(scales[row // 128, column // 128])
    return {f"{name}.weight": weight, f"{name}.weight_scale_inv": scales}, values


def fp4_layer(rng, n, k, group, scale):
    nibbles = rng.integers(0, 16, (n, k), dtype=np.uint8)
    values = np.array(E2M1)[nibbles] * np.repeat(scale.astype(np.float64), group, axis=1)
    return nibbles, values


def mxfp4(rng, name="l", n=10, k=96):
    exponents = rng.integers(100, 140, (n, k // 32), dtype=np.uint8)
    nibbles, values = fp4_layer(rng, n, k, 32, np.ldexp(1.0, exponents.astype(int) - 127))
    return {f"{name}.weight_packed": pairs(nibbles), f"{name}.weight_scale": exponents}, values


def mxfp4_stack(rng, name="l", e=3, n=10, k=96):
    tensors, values = mxfp4(rng, "x", e * n, k)
    blocks, scales = tensors["x.weight_packed"].reshape(e, n, k // 32, 16), tensors["x.weight_scale"].reshape(e, n, k // 32)
    return {f"{name}_blocks": blocks, f"{name}_scales": scales}, values.reshape(e, n, k)


def nvfp4(rng, name="l", n=10, k=96, modelopt=False):
    scales = (rng.random((n, k // 16)) * 400 + 1).astype(ml_dtypes.float8_e4m3fn)
    whole = np.float32(rng.random() * 1e-3 + 1e-4)
    if modelopt:
        nibbles, values = fp4_layer(rng, n, k, 16, scales.astype(np.float64) * float(whole))
        return {f"{name}.weight": pairs(nibbles), f"{name}.weight_scale": scales, f"{name}.weight_scale_2": whole}, values
    stored = np.float32([1 / whole])
    nibbles, values = fp4_layer(rng, n, k, 16, scales.astype(np.float64) * (1 / float(stored[0])))
    return {f"{name}.weight_packed": pairs(nibbles), f"{name}.weight_scale": scales, f"{name}.weight_global_scale": stored}, values


MAKE = {
    "fp8-block": fp8_block,
    "awq": awq,
    "gptq": gptq,
    "gptq-v2": lambda rng, **k: gptq(rng, version=2, **k),
    "compressed-tensors": compressed_tensors,
    "mxfp4": mxfp4,
    "mxfp4-stack": mxfp4_stack,
    "nvfp4": nvfp4,
    "nvfp4-modelopt": lambda rng, **k: nvfp4(rng, modelopt=True, **k),
}
"""Format -> function of a generator: (tensors, values)."""

IN_WHOLE_GROUPS = {
    **MAKE,
    "awq": lambda rng, **k: awq(rng, **{"group": 64, **k}),
    "gptq": lambda rng, **k: gptq(rng, **{"group": 64, **k}),
    "gptq-v2": lambda rng, **k: gptq(rng, **{"version": 2, "group": 64, **k}),
    "compressed-tensors": lambda rng, **k: compressed_tensors(rng, **{"group": 64, **k}),
}
"""The same without a short last group, which the loaders of AWQ and compressed-tensors do not take."""
