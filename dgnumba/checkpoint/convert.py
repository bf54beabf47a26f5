"""A checkpoint in another format: tensor by tensor, so that it may be larger than memory; there when it is whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..errors import ProblemError, guess
from .layer import Layer, LayerFormat, Scheme
from .layers import FORMATS, check_overrides, config_metadata, config_of, find_layers
from .recipes import FLOATS, Options, check_options, given_options, keeps, recipe
from .settings import METADATA_KEY, settings_of
from .steps import Copy, Dequantize, Recode, Requantize, Step, TensorReport, Weight
from .tensors import SUFFIX, TensorInfo, TensorSource
from .writer import TensorWriter

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, and the name of what is being worked on."""

NOT_QUANTIZED = ("*embed*", "*lm_head*", "*norm*", "*router*", "*.gate.weight", "*wte*", "*wpe*")
"""Weights that are left as they are unless asked for: they are small, or rounding them costs much."""


@dataclass(frozen=True)
class Conversion:
    """What was done.

    Attributes:
        path: the file that was written.
        reports: of each layer; what was copied unasked has none.
        nbytes_before, nbytes_after: of all tensors.
        config: what the ``quantization_config`` of a config.json has to say, with the matrices that
            were left as they are; None where layers differ.
    """

    path: Path
    reports: tuple[TensorReport, ...]
    nbytes_before: int
    nbytes_after: int
    config: dict[str, Any] | None


def convert(
    source: str | Path,
    out: str | Path,
    to: str,
    *,
    group: int | None = None,
    gptq_version: int | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Write the quantized layers of a checkpoint in another format, the rest as it is.

    Between int4 formats, between the two of MXFP4 and of NVFP4, values stay the same to the bit.
    Otherwise a layer is dequantized and quantized anew.

    Args:
        source: a .safetensors file, a .safetensors.index.json, or a folder with one.
        out: the file to write, one however many the source has; replaced only when all is done.
        to: one of `FORMATS`, or float32, bfloat16, float16.
        group, gptq_version: of the source, where its config does not say or is wrong.
        options: how layers are quantized anew.
        progress: see `Progress`.

    Raises:
        ProblemError: no quantized layer; a layer that `to` cannot hold; a broken source.
    """
    form = None if to.lower() in FLOATS else _target(to, (*FORMATS, *FLOATS))
    to, options = to.lower(), options or Options()
    check_options(options, to)
    with TensorSource(source) as tensors:
        settings = settings_of(tensors.path, tensors.metadata).with_overrides(group, gptq_version)
        layers = find_layers(tensors, settings)
        if not layers:
            raise ProblemError(
                f"{source}: expected quantized layers ({', '.join(FORMATS)}), got none among {len(tensors)} tensors; floats are for dgnumba quantize"
            )
        check_overrides(list(layers.values()), group, gptq_version)
        work = _Work()
        for layer in layers.values():
            with _named(layer.name):
                work.add_layer(layer, tensors, form, to, options)
        work.check_used(options, to)
        owned = {tensor for layer in layers.values() for tensor in layer.tensors}
        work.steps += [Copy(info) for name, info in tensors.items() if name not in owned]
        return work.run(tensors, Path(out), form, progress)


def quantize_checkpoint(
    source: str | Path,
    out: str | Path,
    to: str,
    *,
    include: Sequence[str] = ("*.weight",),
    exclude: Sequence[str] = NOT_QUANTIZED,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Quantize the weights of a checkpoint, the rest as it is.

    Weights are matrices of float16, bfloat16 or float32 whose names fit one of `include` and none of
    `exclude` (patterns as in a shell). One that `to` cannot hold, by its extents, is kept as it is
    and reported with the reason.

    Args:
        source, out, to, options, progress: as `convert`; `to` one of `FORMATS`.
        include, exclude: patterns of tensors' names.

    Raises:
        ProblemError: no weight to quantize; one that is not finite; a broken source.
    """
    form = _target(to, FORMATS)
    to, options = form.name, options or Options()
    check_options(options, to)
    with TensorSource(source) as tensors:
        chosen = [info for name, info in tensors.items() if _is_weight(info) and _fits(name, include) and not _fits(name, exclude)]
        if not chosen:
            hint = "; quantized layers are for dgnumba convert" if find_layers(tensors) else ""
            raise ProblemError(
                f"{source}: expected float matrices named like {', '.join(include)}, got none among {len(tensors)} tensors{hint}"
            )
        work = _Work()
        for info in chosen:
            work.add_weight(info, form, options)
        if not work.schemes:
            raise ProblemError(f"{source}: expected weights that {to} can hold, got {len(chosen)} that it cannot, for instance: {work.why}")
        names = {info.name for info in chosen}
        work.steps += [Copy(info) for name, info in tensors.items() if name not in names]
        return work.run(tensors, Path(out), form, progress)


class _Work:
    """The steps of a conversion, and the schemes that their layers get."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.schemes: list[Scheme] = []
        self.whole: list[bool] = []
        """Of each layer, whether a scale is that of a whole row."""
        self.is_symmetric = True
        self.why = ""
        """Why a weight was kept, of the last."""

    def add_layer(self, layer: Layer, source: TensorSource, form: LayerFormat | None, to: str, options: Options) -> None:
        weight = Weight.of_layer(layer, source)
        if form is None:
            self.steps.append(Dequantize(weight, to))
            return
        stored = form.as_stored(layer.scheme)
        if stored is not None and keeps(options, layer.scheme, layer.shape[-1]):
            form.check_written(layer.shape, stored)
            self.steps.append(Recode(layer, form, stored))
            self.is_symmetric &= not layer.scheme.has_zero_point
        else:
            if options.group is None and layer.scheme.dtype in ("int4", "uint4"):
                options = replace(options, group=layer.scheme.granularity[1])
            made = recipe(form, layer.shape, layer.scheme.scale_dtype, options)
            self.steps.append(Requantize(weight, form, made, options.measure))
            stored = made.scheme
            self.is_symmetric &= made.is_symmetric
        self._count(stored, layer.shape)

    def add_weight(self, info: TensorInfo, form: LayerFormat, options: Options) -> None:
        try:
            made = recipe(form, info.shape, info.dtype, options)
            step = Requantize(Weight.of_tensor(info.name.removesuffix(".weight"), info), form, made, options.measure)
        except ProblemError as error:
            self.steps.append(Copy(info, str(error)))
            self.why = str(error)
            return
        self.steps.append(step)
        self.is_symmetric &= made.is_symmetric
        self._count(made.scheme, info.shape)

    def _count(self, scheme: Scheme, shape: tuple[int, ...]) -> None:
        self.schemes.append(scheme)
        self.whole.append(scheme.granularity[1] == shape[-1])

    def config(self, form: LayerFormat) -> dict[str, Any] | None:
        """What a config.json has to say of the file that is written; None where layers differ in it."""
        found = config_of(form, self.schemes)
        if found is None and all(self.whole):
            found = config_of(form, [replace(scheme, granularity=(1, -1)) for scheme in self.schemes])
        if found is None:
            return None
        if "sym" in found:
            found["sym"] = self.is_symmetric
        left = [step.info.name.removesuffix(".weight") for step in self.steps if isinstance(step, Copy) and _is_linear(step.info)]
        return found | (form.ignored(left) if left else {})

    def check_used(self, options: Options, to: str) -> None:
        """Refuse options of new layers where no layer is quantized anew."""
        of_new = [name for name in given_options(options) if name in ("search", "rule", "use_ue8m0")]
        if of_new and not any(isinstance(step, Requantize) for step in self.steps):
            raise ProblemError(
                f"{', '.join(of_new)}: expected none, as every layer keeps its values in {to} and none is quantized anew; "
                "another group (--group) or zero points would"
            )

    def run(self, source: TensorSource, out: Path, form: LayerFormat | None, progress: Progress | None) -> Conversion:
        _check_out(source, out)
        metadata = {key: text for key, text in source.metadata.items() if key != METADATA_KEY and not key.startswith("gptq_")}
        config = None if form is None else self.config(form)
        specs = [spec for step in self.steps for spec in step.specs]
        total, done, reports = sum(step.nbytes for step in self.steps), 0, []
        with TensorWriter(out, specs, {"format": "pt", **metadata, **config_metadata(config)}) as writer:
            for step in self.steps:
                name = step.specs[0].name

                def advance(n: int, name: str = name) -> None:
                    nonlocal done
                    done += n
                    if progress is not None:
                        progress(done, total, name)

                report = step.run(source, writer, advance)
                reports += [report] if report is not None else []
        return Conversion(out, tuple(reports), source.nbytes, total, config)


def _target(to: str, known: Iterable[str]) -> LayerFormat:
    if to.lower() not in FORMATS:
        raise ProblemError(f"to: expected one of {', '.join(known)}, got {to}{guess(to, known)}")
    return FORMATS[to.lower()]


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say of a refusal which layer it is about."""
    try:
        yield
    except ProblemError as error:
        raise ProblemError(str(error) if str(error).startswith(name) else f"{name}: {error}") from error


def _is_weight(info: TensorInfo) -> bool:
    return info.dtype in FLOATS and len(info.shape) == 2


def _is_linear(info: TensorInfo) -> bool:
    return _is_weight(info) and info.name.endswith(".weight")


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_out(source: TensorSource, out: Path) -> None:
    if out.suffix != SUFFIX:
        raise ProblemError(f"out: expected a file {SUFFIX}, got {out}")
    if out.exists() and any(out.samefile(path) for path in source.paths):
        raise ProblemError(f"out: expected another file than the source, got {out}")
