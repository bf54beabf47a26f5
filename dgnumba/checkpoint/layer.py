"""How a quantized layer lies in a checkpoint: which tensors, of which shapes, and how a slab of its rows is read and written.

Every format says for a layer of some shape and `Scheme` which `Part`s it stores. Reading checks the
tensors of a file against that, writing makes them; so a format is said once. A part knows along
which axis the weight's rows run, so that both work on slabs of rows and a layer is never whole in
memory::

    AWQ, rows 128:256 of [N, K]       .qweight [K, N/8]    columns 16:32, one index for 8 rows
                                      .qzeros  [G, N/8]    columns 16:32
                                      .scales  [G, N]      columns 128:256
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..errors import ProblemError
from ..quant import QTensor
from .settings import Settings
from .tensors import TensorInfo, TensorSource
from .writer import TensorSpec, TensorWriter

SLAB_ALIGNMENT = 128
"""Rows: whole blocks of 128x128 scales, and whole words of eight."""


@dataclass(frozen=True)
class Scheme:
    """How a layer is quantized, apart from where it lies."""

    dtype: str
    granularity: tuple[int, int]
    scale_dtype: str
    has_zero_point: bool = False
    has_g_idx: bool = False
    has_global_scale: bool = False


@dataclass(frozen=True)
class Part:
    """One tensor of a layer.

    Attributes:
        suffix: of its name, behind the layer's.
        dtype: NumPy's or ml_dtypes' name of its type.
        shape: as stored.
        axis: along which the weight's rows run; None: it is not cut.
        per: rows of the weight for one index along `axis`.
        view: the shape it is cut in, where that is not `shape`: the same elements.
        aliases: other types that it may be stored in.
        may_lack: whether a layer may come without it.
    """

    suffix: str
    dtype: str
    shape: tuple[int, ...]
    axis: int | None = 0
    per: int = 1
    view: tuple[int, ...] | None = None
    aliases: tuple[str, ...] = ()
    may_lack: bool = False

    def range(self, rows: slice) -> tuple[int, int]:
        """Indices along `axis` of these rows of the weight."""
        return rows.start // self.per, -(-rows.stop // self.per)


@dataclass(frozen=True)
class Layer:
    """A quantized layer found in a checkpoint."""

    name: str
    format: LayerFormat
    shape: tuple[int, ...]
    """``[N, K]`` of the weight, or ``[E, N, K]`` of a stack."""
    scheme: Scheme
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """Rows of the weight, of all of a stack."""
        return math.prod(self.shape[:-1])

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of its tensors."""
        return tuple(self.name + part.suffix for part in self.parts)

    def read(self, source: TensorSource, rows: slice | None = None, whole: Mapping[str, Any] | None = None) -> QTensor:
        """Rows of the layer as a QTensor ``[rows, K]``; the stack's axes are joined.

        Args:
            source: where it was found.
            rows: from a multiple of 128; all by default.
            whole: the parts that are not cut, from `read_whole`, so as not to read them for each slab.
        """
        rows = slice(0, self.rows) if rows is None else rows
        held = dict(self.read_whole(source) if whole is None else whole)
        for part in self.parts:
            if part.axis is not None:
                first, stop = part.range(rows)
                held[part.suffix] = source.read_part(self.name + part.suffix, part.axis, first, stop, shape=part.view)
        return self.format.decode(held, self.scheme, (rows.stop - rows.start, self.shape[-1]))

    def read_whole(self, source: TensorSource) -> dict[str, Any]:
        """The parts that are not cut into rows."""
        return {part.suffix: source.read(self.name + part.suffix) for part in self.parts if part.axis is None}

    def slabs(self, elements: int) -> Iterator[slice]:
        """Slices of rows of about so many elements each."""
        return slabs(self.rows, self.shape[-1], elements)


def slabs(rows: int, columns: int, elements: int) -> Iterator[slice]:
    """Slices of rows, from multiples of 128, of about `elements` elements; at least 128 rows, and one slice of none where there are none."""
    step = max(1, elements // max(columns, 1) // SLAB_ALIGNMENT) * SLAB_ALIGNMENT
    for first in range(0, max(rows, 1), step):
        yield slice(first, min(first + step, rows))


def matrix(shape: tuple[int, ...], name: str) -> tuple[int, int]:
    """(N, K) of a shape that a format of matrices holds."""
    if len(shape) != 2:
        raise ProblemError(f"shape: expected a matrix [N, K] for {name}, got {list(shape)}")
    return shape[0], shape[1]


class LayerFormat(ABC):
    """A checkpoint format: finds its layers, and turns their tensors into QTensors and back."""

    name: ClassVar[str]
    marks: ClassVar[tuple[str, ...]]
    """Suffixes that a layer of this format has; the first names it."""
    optional: ClassVar[tuple[str, ...]] = ()

    def find(self, source: TensorSource, settings: Settings) -> Iterator[Layer]:
        """The layers of this format in a checkpoint.

        Raises:
            ProblemError: a layer whose tensors are not what this format stores.
        """
        for tensor in source:
            name = tensor.removesuffix(self.marks[0])
            if name == tensor:
                continue
            infos = {suffix: source[name + suffix] for suffix in (*self.marks, *self.optional) if name + suffix in source}
            if all(mark in infos for mark in self.marks) and self.is_mine(infos):
                yield self._layer(name, infos, source, settings)

    def _layer(self, name: str, infos: Mapping[str, TensorInfo], source: TensorSource, settings: Settings) -> Layer:
        try:
            shape, scheme = self.describe(name, infos, source, settings)
            parts = self.parts(shape, scheme)
        except ProblemError as error:
            raise type(error)(f"{name}: {error}") from error
        kept = []
        for part in parts:
            info = infos.get(part.suffix)
            if info is None and part.may_lack:
                continue
            if info is None:
                raise ProblemError(f"{name}: expected {name}{part.suffix} for {self.name}, got none")
            is_same = info.shape == part.shape or math.prod(info.shape) == math.prod(part.shape) == 1
            if not is_same or info.dtype not in (part.dtype, *part.aliases):
                raise ProblemError(
                    f"{name}{part.suffix}: expected {part.dtype} {list(part.shape)} for {self.name} {list(shape)} with one scale per "
                    f"{scheme.granularity[0]}x{scheme.granularity[1]}, got {info}"
                )
            kept.append(replace(part, dtype=info.dtype, shape=info.shape))
        return Layer(name, self, shape, scheme, tuple(kept))

    @abstractmethod
    def is_mine(self, infos: Mapping[str, TensorInfo]) -> bool:
        """Whether tensors with these suffixes are of this format, and not of one that has the same names."""

    @abstractmethod
    def describe(
        self, name: str, infos: Mapping[str, TensorInfo], source: TensorSource, settings: Settings
    ) -> tuple[tuple[int, ...], Scheme]:
        """Shape and scheme of a layer, from its tensors' shapes and the settings; what they contradict is refused by `parts`."""

    @abstractmethod
    def parts(self, shape: tuple[int, ...], scheme: Scheme) -> tuple[Part, ...]:
        """What is stored of a layer; raises where the format cannot hold it."""

    @abstractmethod
    def as_stored(self, scheme: Scheme) -> Scheme | None:
        """The scheme in which this format holds layers of `scheme` with the same values; None: it cannot."""

    @abstractmethod
    def decode(self, held: Mapping[str, Any], scheme: Scheme, shape: tuple[int, int]) -> QTensor:
        """Rows of a layer from its parts, by suffix."""

    @abstractmethod
    def encode(self, q: QTensor) -> dict[str, Any]:
        """The parts of rows of a layer, by suffix; inverse of `decode`."""

    def config(self, scheme: Scheme) -> dict[str, Any]:
        """What a config.json says of layers like this, under ``quantization_config``."""
        return {}

    def ignored(self, modules: Sequence[str]) -> dict[str, Any]:
        """What the config says beside that, where these modules are left as they are."""
        return {"modules_to_not_convert": list(modules)}

    def check_written(self, shape: tuple[int, ...], scheme: Scheme) -> None:  # noqa: B027  (most formats have nothing to say)
        """Refuse a layer that would be held, but that others' loaders would not take.

        Raises:
            ProblemError: such a one, and why.
        """

    def specs(self, name: str, shape: tuple[int, ...], scheme: Scheme) -> list[TensorSpec]:
        """The tensors of a layer, to announce to a `TensorWriter`."""
        return [TensorSpec.of(name + part.suffix, part.dtype, part.shape) for part in self.parts(shape, scheme)]

    def write(self, writer: TensorWriter, name: str, shape: tuple[int, ...], scheme: Scheme, q: QTensor, rows: slice) -> None:
        """Write rows of a layer; what is not cut is written with the first."""
        made = self.encode(q)
        for part in self.parts(shape, scheme):
            if part.axis is not None:
                writer.write(name + part.suffix, made[part.suffix], axis=part.axis, first=part.range(rows)[0], shape=part.view)
            elif rows.start == 0:
                writer.write(name + part.suffix, self.whole(part, made, shape))

    def whole(self, part: Part, made: Mapping[str, Any], shape: tuple[int, ...]) -> Any:
        """A part that is not cut into rows."""
        return made[part.suffix]

    def __repr__(self) -> str:
        return f"<checkpoint format {self.name}>"
