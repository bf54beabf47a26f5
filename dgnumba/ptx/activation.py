"""Activation functions, on float32."""

import numpy as np

from ._declare import f32, op


@op(
    "{{ .reg .f32 t, e; mul.rn.f32 t, {x}, 0fBFB8AA3B; ex2.approx.ftz.f32 e, t; add.rn.f32 e, e, 0f3F800000; div.rn.f32 {out}, {x}, e; }}",
    pure=True,
)
def silu(x: f32) -> f32:
    """ex2.approx.ftz.f32, div.rn.f32 - x / (1 + exp(-x)).

    PTX:       ISA 9.0, "ex2", "div"
    Scope:     thread
    Args:      x  float32
    Returns:   float32
    Emulates:  with 2^t rounded to nearest; the device's may lie 2^-22 of itself off
    """
    with np.errstate(over="ignore", under="ignore"):
        power = np.float32(np.exp2(np.float64(f32(x) * np.float32(-1.4426950408889634))))
        return f32(x) / (power + np.float32(1))
