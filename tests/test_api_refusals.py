"""Bad input to fp8_gemm_nt: an error that names the argument, what was expected and what came, and nothing written."""

import numpy as np
import pytest
from api_cases import BAD, BF16, full, on, ones

from dgnumba import api
from dgnumba.errors import DTypeError, ProblemError
from dgnumba.testing import assert_bits_equal


@on
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_nothing_written(on, name):
    changes, error, message = BAD[name]
    a, b = ones(4, 6, 256)
    call = {"a": a, "b": b, "d": full((4, 6)), "c": None, "on": on, **changes}
    before = call["d"].copy()
    with pytest.raises(error, match=message) as caught:
        api.fp8_gemm_nt(**call)
    assert_bits_equal(call["d"], before)
    if issubclass(error, ProblemError):
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, TypeError) == issubclass(error, DTypeError)


@on
def test_overlap_is_refused(on):
    a, b = ones(4, 6, 256)
    memory = a[0].view(np.uint8)
    d = memory.reshape(-1)[:48].view(BF16).reshape(4, 6)
    with pytest.raises(ProblemError, match="d: expected memory of its own, got memory that overlaps a"):
        api.fp8_gemm_nt((a[0], a[1]), b, d, on=on)
    assert (memory == 0x38).all()


@on
def test_F10_scales_are_checked_by_default_and_zero_is_legal(on):
    (a, sfa), b = ones(4, 6, 256)
    sfa[1, 0] = 0
    assert api.fp8_gemm_nt((a, sfa), b, full((4, 6), np.float32), on=on)[:2].tolist() == [[256] * 6, [128] * 6]
    sfa[1, 0] = np.inf
    with pytest.raises(ProblemError, match=r"sfa: .* got inf at \[1, 0\]"):
        api.fp8_gemm_nt((a, sfa), b, on=on)
    with np.errstate(all="raise"):
        d = api.fp8_gemm_nt((a, sfa), b, full((4, 6), np.float32), on=on, check=False)
    assert (d[0] == 256).all() and np.isinf(d[1]).all(), "unchecked, it spoils its own rows only"
