"""Elements against torch's own casts on the CPU."""

import numpy as np
import pytest
from quant.oracles.oracle import oracle, points

from dgnumba.dtypes import DTYPES

torch = oracle("torch")


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "bfloat16", "float16"])
def test_encode(name):
    row = DTYPES[name]
    x = points(row, 200_000)
    kind = torch.uint8 if row.bits == 8 else torch.int16
    theirs = torch.from_numpy(x).to(getattr(torch, name)).view(kind).numpy().view(f"u{row.itemsize}")
    assert np.array_equal(row.encode(x), theirs)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_decode(name):
    codes = np.arange(256, dtype=np.uint8)
    theirs = torch.from_numpy(codes).view(getattr(torch, name)).float().numpy()
    assert np.array_equal(DTYPES[name].decode(codes), theirs, equal_nan=True)


def test_ue8m0_values():
    codes = np.arange(256, dtype=np.uint8)
    theirs = torch.from_numpy(codes).view(torch.float8_e8m0fnu).float().numpy()
    assert np.array_equal(DTYPES["float8_e8m0fnu"].decode(codes), theirs, equal_nan=True)
