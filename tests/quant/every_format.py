"""The formats that the tests of this room walk: every one by name, every rule, scale and element type, odd blocks."""

from dgnumba.quant import (
    FORMATS,
    Format,
    int4_format,
    mx_format,
    per_block_cast_to_fp8,
    per_token_cast_to_fp4,
    per_token_cast_to_fp8,
    uint4_format,
)
from dgnumba.quant.scale import UE8M0_RULES

EVERY_FORMAT = [
    *FORMATS.values(),
    *(int4_format(64, rule, scale) for rule in ("amax/7.5", "extremum/-8") for scale in ("float32", "float16")),
    int4_format(32, "amax/7", "bfloat16"),
    uint4_format(32, "float16"),
    uint4_format(-1, "bfloat16"),
    *(mx_format(dtype, rule) for dtype in ("float8_e4m3fn", "float4_e2m1fn", "float8_e5m2") for rule in UE8M0_RULES[1:]),
    Format("fnuz", "float8_e4m3fnuz", (3, 7)),
    Format("fnuz_bf16", "float8_e5m2fnuz", (5, 64), "bfloat16"),
    Format("fp6_fp16", "float6_e2m3fn", (2, 0), "float16"),
    Format("fp8_two_levels", "float8_e4m3fn", (4, 8), "float8_e4m3fn"),
    Format("int8_columns", "int8", (0, 1)),
]


def name_of(form):
    return f"{form.name}-{form.scale_dtype}-{form.rule}"


DEEPGEMM = {
    "per_token_fp8": per_token_cast_to_fp8,
    "per_token_fp8_ue8m0": lambda x: per_token_cast_to_fp8(x, True, 32),
    "per_block_fp8": per_block_cast_to_fp8,
    "per_token_fp4": per_token_cast_to_fp4,
    "per_token_fp4_ue8m0": lambda x: per_token_cast_to_fp4(x, True, 16, True),
}
