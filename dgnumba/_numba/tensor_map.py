"""Tensor maps as grid-constant kernel parameters: no upload a call, and no address to take in the kernel.

A tensor map is passed by value as 128 bytes of parameter space. Which parameter it is, is a fact of its Numba type
(`TensorMapType(3)` is argument 3), so that an operation that is given one can name the parameter's address in its PTX, from inside any
inlined helper. The name is not known until the kernel is compiled: a token stands for it until `compile_ptx` puts it in.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import models, register_model

TOKEN = "__TENSOR_MAP_{index}__"


class TensorMapType(types.Type):
    """The tensor map that is argument `index` of the kernel."""

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(name=f"TensorMap({index})")


@register_model(TensorMapType)
class _TensorMapModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: TensorMapType) -> None:
        super().__init__(dmm, fe_type, ir.ArrayType(ir.IntType(64), 16))


def address(builder: ir.IRBuilder, ty: TensorMapType) -> Any:
    """The generic 64-bit address of the parameter."""
    text = f"{{ .reg .b64 t; mov.b64 t, {TOKEN.format(index=ty.index)}; cvta.param.u64 $0, t; }}"
    return builder.call(ir.InlineAsm(ir.FunctionType(ir.IntType(64), []), text, "=l", side_effect=False), [])
