"""Which group a column of K belongs to: the plain rule, and GPTQ's ``g_idx``.

::

    group 4, K = 10          k        0 1 2 3   4 5 6 7   8 9
    in order                 g_idx    0 0 0 0   1 1 1 1   2 2        g_idx[k] = k // 4; the last group is short
    act order                g_idx    2 0 0 1   1 0 2 1   0 1        columns were quantized by falling importance

A kernel either looks the group up for each k, or works on columns sorted by group (`by_group`),
weights and activations alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import DTypeError, ProblemError
from ...xp import as_array, device_of, namespace


def count(k: int, group: int) -> int:
    """Groups of `k` columns; the last may be short, and `group` -1 is one for all.

    >>> count(192, 128), count(192, -1)
    (2, 1)
    """
    if group != -1 and group < 1:
        raise ProblemError(f"group: expected 1 or more, or -1 for all of K, got {group}")
    return min(1, k) if group == -1 else -(-k // group)


def in_order(k: int, group: int) -> Any:
    """The plain ``g_idx``: int32 ``[k]``.

    >>> in_order(5, 2).tolist()
    [0, 0, 1, 1, 2]
    """
    count(k, group)
    return np.arange(k, dtype=np.int32) // np.int32(max(k, 1) if group == -1 else group)


def is_in_order(g_idx: Any, group: int) -> bool:
    """Whether ``g_idx[k] == k // group`` everywhere, so that it says nothing new."""
    g_idx = as_array(g_idx, "g_idx").array
    xp = namespace(g_idx)
    with device_of(g_idx):
        return bool((g_idx == xp.asarray(in_order(int(g_idx.size), group))).all())


def checked(g_idx: Any, k: int, groups: int) -> Any:
    """`g_idx` as int32 ``[k]``, every entry a group.

    Raises:
        DTypeError: no integers. ProblemError: another length, or an entry outside 0 to `groups` - 1.
    """
    view = as_array(g_idx, "g_idx")
    array = view.array
    if array.dtype.kind not in "iu":
        raise DTypeError(f"g_idx: expected int32, got {view.dtype_name}")
    if array.shape != (k,):
        raise ProblemError(f"g_idx: expected [{k}] (one for each of K), got {list(array.shape)}")
    if array.size and not (0 <= int(array.min()) and int(array.max()) < groups):
        raise ProblemError(f"g_idx: expected groups from 0 to {groups - 1}, got {int(array.min())} to {int(array.max())}")
    return array.astype(np.int32, copy=False)


def by_group(g_idx: Any) -> Any:
    """The order that brings each group's columns together, keeping their own: ``weight[:, order]``, ``x[:, order]``.

    >>> by_group(np.int32([1, 0, 1, 0])).tolist()
    [1, 3, 0, 2]
    """
    g_idx = as_array(g_idx, "g_idx").array
    xp = namespace(g_idx)
    with device_of(g_idx):
        # NOTE: CuPy's argsort is stable only by accident; the position breaks ties here.
        key = g_idx.astype(xp.int64) * max(int(g_idx.size), 1) + xp.arange(g_idx.size)
        return xp.argsort(key)


def inverse(order: Any) -> Any:
    """Undo `order`: what brings ``x[:, order]`` back to x."""
    order = as_array(order, "order").array
    xp = namespace(order)
    with device_of(order):
        back = xp.empty_like(order)
        back[order] = xp.arange(order.size, dtype=order.dtype)
        return back
