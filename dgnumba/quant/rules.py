"""From the statistic of blocks to their scales and zero points, as a `Format` says.

The statistic is what `chunk` finds: the largest magnitude of each block, or the pair of its least
and its largest value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..xp import namespace
from .formats import Format
from .scale import E8M0, F32, decode_scales, round_scale, scale_from_amax, ue8m0_codes


def scales_of(statistic: Any, form: Format, whole: Any = None) -> tuple[Any, Any]:
    """Scales, as stored but in float32, and zero points (None without) of blocks of this statistic."""
    rule, element = form.rule, form.dtype
    if rule in ("deepgemm", "deepgemm_ue8m0"):
        return scale_from_amax(statistic, element, rule == "deepgemm_ue8m0"), None
    if form.scale_dtype is E8M0:
        return decode_scales(ue8m0_codes(statistic, element, rule), E8M0), None
    xp = namespace(statistic[0] if isinstance(statistic, tuple) else statistic)
    with np.errstate(invalid="ignore", over="ignore"):
        if rule == "minmax":
            low, high = statistic
            raw = (high * np.float32(0.5) - low * np.float32(0.5)) / np.float32(7.5)  # high - low may overflow
        elif rule == "extremum/-8":
            low, high = statistic
            raw = xp.where(-low >= high, low, high) / np.float32(-8)
        else:
            raw = statistic / np.float32(form.largest)
            if whole is not None:
                raw = raw / whole.astype(xp.float32)
        scale = poisoned(round_scale(raw, form.scale_dtype), statistic)
    return scale, zero_points(statistic, scale, form)


def zero_points(statistic: Any, scale: Any, form: Format) -> Any:
    """Where 0 lies among the codes: ``round(-lowest / scale)``, in range, as float32; None without."""
    if not form.has_zero_point:
        return None
    xp, (low, _) = namespace(scale), statistic
    with np.errstate(invalid="ignore"):
        zero = xp.clip(xp.rint(-low * (np.float32(1) / scale)), np.float32(form.dtype.min), np.float32(form.dtype.max))
        return xp.where(zero == zero, zero, np.float32(0))


def total_scale(scale: Any, whole: Any) -> Any:
    """What the data is divided by: the scale, times the global scale rounded once to float32."""
    if whole is None:
        return scale
    return (scale.astype(np.float64) * whole.astype(np.float64)).astype(np.float32)


def poisoned(scale: Any, statistic: Any) -> Any:
    """The scales, NaN where a block held what is not finite."""
    low, high = statistic if isinstance(statistic, tuple) else (0.0, statistic)
    is_finite = (high <= np.float32(F32.max)) & (low >= np.float32(-F32.max))
    return namespace(scale).where(is_finite, scale, np.float32(np.nan))
