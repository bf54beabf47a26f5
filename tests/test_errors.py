"""The exception tree is the one that its docstring draws, and what exceptions carry is in their text."""

import re

import pytest

from dgnumba import errors
from dgnumba.errors import CompileError, DTypeError, LaunchError, PlanError, ProblemError, UnsupportedError


def drawn():
    """Parent of each exception, read off the picture."""
    parents, path = {}, []
    for line in errors.__doc__.splitlines():
        if match := re.match(r"^    ([│├└─ ]*)(\w+Error)\b", line):
            depth = len(match[1]) // 4
            path = [*path[:depth], match[2]]
            parents[match[2]] = path[-2] if depth else "Exception"
    return parents


def test_tree_is_as_drawn():
    public = {name: cls for name, cls in vars(errors).items() if isinstance(cls, type) and name[0] != "_"}
    public = {name: cls for name, cls in public.items() if issubclass(cls, Exception)}
    assert set(drawn()) == set(public)
    for name, parent in drawn().items():
        ancestors = [cls.__name__ for cls in public[name].__mro__ if cls.__name__[0] != "_"]
        assert ancestors[1] == parent


def test_callers_may_catch_the_builtin_kinds():
    assert issubclass(ProblemError, ValueError) and not issubclass(ProblemError, TypeError)
    assert issubclass(DTypeError, ValueError) and issubclass(DTypeError, TypeError)


@pytest.mark.parametrize("kind", [UnsupportedError, PlanError])
def test_reasons_are_listed(kind):
    error = kind("no kernel takes this", {"sm90_fp8_gemm_1d2d": "needs sm_90"})
    assert str(error) == "no kernel takes this\n  sm90_fp8_gemm_1d2d: needs sm_90"
    assert error.reasons == {"sm90_fp8_gemm_1d2d": "needs sm_90"}
    assert str(kind("none")) == "none"


def test_log_and_code_are_carried():
    assert str(CompileError("ptxas failed", "line 3: bad")) == "ptxas failed\nline 3: bad"
    assert LaunchError("too much shared memory", "CUDA_ERROR_INVALID_VALUE").code == "CUDA_ERROR_INVALID_VALUE"
