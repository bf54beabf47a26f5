"""What holds for every product of this process, FP8 or INT4, until it is set anew: named as DeepGEMM names it.

    set_num_sms           multiprocessors that kernels are planned for and launched on: others are left to other work
    set_pdl               kernels may begin while the one before them in the stream still ends (programmatic dependent launch), and may or may not
                          ask for their first weights then
    set_batch_invariant   only plans that give a row of D the same bits whatever the other rows and their number
    set_exact_weights     only plans that round no weight of 4 bits
    set_float32_sums      only plans whose sums are float32, or int32

A call reads the settings once, when it begins. Threads share them.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, NamedTuple

from .device import Device
from .errors import ProblemError


class Settings(NamedTuple):
    """What a call reads: as `set_num_sms` (None: all), `set_pdl` (two of them) and the other settings left it, in their order."""

    num_sms: int | None = None
    pdl: bool = False
    constant_weights: bool = False
    batch_invariant: bool = False
    exact_weights: bool = False
    float32_sums: bool = False

    def limited(self, device: Device) -> Device:
        """The device with no more multiprocessors than may be used."""
        if self.num_sms is None or self.num_sms >= device.num_sms:
            return device
        return replace(device, num_sms=self.num_sms)


_lock = threading.Lock()
_settings = Settings()


def current() -> Settings:
    """The settings as they are now."""
    return _settings


def _change(**changes: Any) -> None:
    global _settings
    with _lock:
        _settings = _settings._replace(**changes)


def set_num_sms(num_sms: int | None) -> None:
    """Use at most so many multiprocessors of a GPU, from the next call on; None: all. A GPU that has fewer gives all it has.

    The kernels for very few rows (`sm90_fp8_gemv_1d2d`, its `_rs`, `sm90_int4_gemv`) are planned for so many, but not held to them: they have a CTA a
    tile, a few microseconds long, which the hardware deals out to any.

    Raises `ProblemError` for less than 1.
    """
    if num_sms is not None and (isinstance(num_sms, bool) or not isinstance(num_sms, int) or num_sms < 1):
        raise ProblemError(f"num_sms: expected an integer of 1 or more, or None for all, got {num_sms!r}")
    _change(num_sms=num_sms)


def get_num_sms() -> int:
    """Multiprocessors that the current GPU's kernels use; without a GPU, of the one that is planned for offline."""
    return _settings.limited(Device.current()).num_sms


def set_pdl(enabled: bool, *, constant_weights: bool = False) -> None:
    """Launch GEMM kernels, from the next call on, so that they may begin while the kernel before them in the stream still ends.

    They wait for its results before they read memory; kernels that do not wait of themselves (those for every GPU from sm_80 on) are launched as
    ever, and so is what comes from elsewhere.

    The kernels for few tokens, FP8 and INT4, let the kernel behind them begin once they have asked for their last weights (others, as their
    CTAs end). They are other binaries than those without, which `warmup` compiles where this is set before. A kernel of yours that is launched to
    begin early behind one of these must wait too (`griddepcontrol.wait`).

    Args:
        enabled: whether they may.
        constant_weights: a promise of yours: when a product is called, or a graph that holds it is launched, the host has waited for what wrote
            B and its scales, and nothing writes them until the product has ended. The FP8 kernels for few tokens then ask for the first of them
            before they wait for the kernel before them: such loads need not see what that one writes, and are not repeated; where they come through a
            ring, it is as deep as fits, also of a plan that was named. Where a call copies
            B or unpacks its scales first, its kernel waits as ever, and so do all other kernels, INT4's among them. These are other binaries
            again. The promise holds until `set_pdl` is called without it; for calls that were prepared under it, and graphs, it stays.

    Raises `ProblemError` for what is no bool, and for the promise where `enabled` is False.
    """
    enabled, constant_weights = _switch("enabled", enabled), _switch("constant_weights", constant_weights)
    if constant_weights and not enabled:
        raise ProblemError(
            "constant_weights: expected False where enabled is False: nothing then begins before the kernel before has ended"
        )
    _change(pdl=enabled, constant_weights=constant_weights)


def get_pdl() -> bool:
    """Whether `set_pdl` is on."""
    return _settings.pdl


def get_constant_weights() -> bool:
    """Whether `set_pdl` was told that nobody writes the weights."""
    return _settings.constant_weights


def set_batch_invariant(enabled: bool) -> None:
    """Plan, from the next call on, so that the bits of a row of D depend on its row of A and on B alone, and not on M.

    A plan is chosen by M, so that another M may take another kernel or tile. All that sum K block after block of 128, whatever their tile,
    give the same bits; those that split K over CTAs, of all tiles or of those of a last round, do not, and are left out: few rows then take longer
    where K is long. A plan that the caller names is refused if it splits K. On the host every call is batch-invariant.
    """
    _change(batch_invariant=_switch("enabled", enabled))


def get_batch_invariant() -> bool:
    """Whether `set_batch_invariant` is on."""
    return _settings.batch_invariant


def set_exact_weights(enabled: bool) -> None:
    """Plan, from the next call on, so that no weight of 4 bits is rounded: scales meet sums, as they always do beside 8-bit activations.

    Else a product of bfloat16 or float16 activations may multiply the weights by their scales first, where that is faster (`Int4Plan.fold`):
    for many tokens. Each is then rounded to the activations' type, 2^-8 of itself at most, or 2^-11, and a scale that is of another type before
    it; `int4_error_bound` has it. Weights whose scales are powers of two, as MXFP4's, lose nothing, nor do NVFP4's.
    A plan that the caller names is refused if it folds. On the host, and where batch invariance is on, no weight is ever rounded.
    """
    _change(exact_weights=_switch("enabled", enabled))


def get_exact_weights() -> bool:
    """Whether `set_exact_weights` is on."""
    return _settings.exact_weights


def set_float32_sums(enabled: bool) -> None:
    """Plan, from the next call on, so that all sums are float32, or int32, as they always are but for one kind of product.

    Else a product of float8_e4m3fn activations with a scale for each row and int4 weights without zero points, whose result is bfloat16, may sum in
    float16, where that is faster (`Int4Plan.f16_sums`): for many tokens. In groups of 128 columns or more each sum of 128 is rounded four
    times, each sum of eight such ones eight times: together about half of what bfloat16 then rounds, in the mean. Of smaller groups each adds
    a rounding. `int4_error_bound` has it. A plan that the caller names is refused if it sums so. On the host, and where batch invariance is on,
    no sum is float16.
    """
    _change(float32_sums=_switch("enabled", enabled))


def get_float32_sums() -> bool:
    """Whether `set_float32_sums` is on."""
    return _settings.float32_sums


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ProblemError(f"{name}: expected True or False, got {value!r}")
    return value
