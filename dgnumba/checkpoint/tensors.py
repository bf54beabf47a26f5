"""Tensors in .safetensors files, read a part at a time: what is not asked for is never in memory.

The format: 8 bytes with the length of a header, the header in JSON (name -> dtype, shape, place),
then the tensors without a gap. DIFFERS from the `safetensors` package, which has no FP8 for NumPy
and reads or maps whole tensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import DTypeError, ProblemError

SUFFIX = ".safetensors"
INDEX = ".safetensors.index.json"
HEADER_LIMIT = 100_000_000
"""Bytes; as the safetensors package has it."""

TYPES: dict[str, tuple[int, str]] = {
    "BOOL": (8, "bool"), "U8": (8, "uint8"), "I8": (8, "int8"), "U16": (16, "uint16"), "I16": (16, "int16"), "U32": (32, "uint32"),
    "I32": (32, "int32"), "U64": (64, "uint64"), "I64": (64, "int64"), "F16": (16, "float16"), "BF16": (16, "bfloat16"), "F32": (32, "float32"),
    "F64": (64, "float64"), "C64": (64, "complex64"), "F8_E4M3": (8, "float8_e4m3fn"), "F8_E5M2": (8, "float8_e5m2"),
    "F8_E8M0": (8, "float8_e8m0fnu"), "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"), "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"), "F4": (4, ""), "F6_E2M3": (6, ""),
    "F6_E3M2": (6, ""),
}  # fmt: skip
"""The format's name of a type: bits of an element, and NumPy's or ml_dtypes' name (none: can only be copied)."""

TAGS = {name: tag for tag, (_, name) in TYPES.items() if name}
"""The other way round."""

COPY_BYTES = 1 << 24
"""At a time, of what is copied as it is."""


@dataclass(frozen=True)
class TensorInfo:
    """What the header says of a tensor: where it is, and what it is made of."""

    name: str
    tag: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int

    @property
    def dtype(self) -> str:
        """NumPy's or ml_dtypes' name of the element type; empty for one that can only be copied."""
        return TYPES[self.tag][1]

    def __str__(self) -> str:
        return f"{self.dtype or self.tag} {list(self.shape)}"


def numpy_type(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name of NumPy's or ml_dtypes'."""
    return np.dtype(getattr(ml_dtypes, name, name))


class TensorSource(Mapping[str, TensorInfo]):
    """The tensors of one .safetensors file, or of the shards that an index or a folder names; a mapping from name to `TensorInfo`.

    Raises:
        ProblemError: a file that is no safetensors file, is cut short, or contradicts itself.
    """

    def __init__(self, where: str | Path) -> None:
        self.path = Path(where)
        self.metadata: dict[str, str] = {}
        self._infos: dict[str, TensorInfo] = {}
        self._stack = ExitStack()
        self._files: dict[Path, Any] = {}
        try:
            for path, names in _files(self.path):
                self._open(path, names)
        except BaseException:
            self._stack.close()
            raise

    def _open(self, path: Path, names: set[str] | None) -> None:
        file = self._stack.enter_context(path.open("rb", buffering=0))
        metadata, infos = read_header(file, path)
        missing = (names or set()) - set(infos)
        if missing:
            raise ProblemError(f"{path}: expected {sorted(missing)[0]}, which the index says is here, got {len(infos)} tensors without it")
        for name, info in infos.items():
            if name in self._infos:
                raise ProblemError(f"{path}: expected every tensor once, got {name} in {self._infos[name].path.name} too")
            self._infos[name] = info
        self.metadata.update(metadata)
        self._files[path] = file

    def __getitem__(self, name: str) -> TensorInfo:
        try:
            return self._infos[name]
        except KeyError:
            raise ProblemError(f"{self.path}: expected a tensor {name}, got none of this name") from None

    def get(self, name: str, default: Any = None) -> Any:
        """What the header says of a tensor, or `default` where there is none of this name."""
        return self._infos.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __enter__(self) -> TensorSource:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(info.nbytes for info in self._infos.values())

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return list(self._files)

    def read(self, name: str) -> Any:
        """A whole tensor, in memory of its own."""
        info = self[name]
        return self.read_part(name, 0, 0, info.shape[0]) if info.shape else self.read_part(name, 0, 0, 1, shape=(1,)).reshape(())

    def read_part(self, name: str, axis: int, first: int, stop: int, *, shape: Sequence[int] | None = None) -> Any:
        """Entries ``first:stop`` along `axis`, in memory of its own.

        Args:
            name: of the tensor. axis: which is cut. first, stop: where.
            shape: the tensor's, seen otherwise with the same elements.
        """
        info = self[name]
        if not info.dtype:
            raise DTypeError(f"{name}: expected a type that NumPy can hold, got {info.tag}")
        dtype, shape = numpy_type(info.dtype), tuple(shape or info.shape)
        out = np.empty((*shape[:axis], stop - first, *shape[axis + 1 :]), dtype)
        raw = memoryview(out.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        for outer, start, run in runs(shape, dtype.itemsize, axis, first, stop):
            self._fill(info, start, raw[outer * run : (outer + 1) * run])
        return out

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a tensor, a piece at a time."""
        info = self[name]
        for start in range(0, info.nbytes, COPY_BYTES):
            piece = bytearray(min(COPY_BYTES, info.nbytes - start))
            self._fill(info, start, memoryview(piece))
            yield bytes(piece)

    def _fill(self, info: TensorInfo, start: int, into: memoryview) -> None:
        file = self._files[info.path]
        file.seek(info.offset + start)
        while into:
            got = file.readinto(into)
            if not got:
                raise ProblemError(
                    f"{info.path}: expected {info.nbytes} bytes of {info.name}, got the end of the file: changed while it was read?"
                )
            into = into[got:]


def runs(shape: Sequence[int], itemsize: int, axis: int, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Where entries ``first:stop`` of `axis` lie in a C-contiguous tensor: (number, first byte, bytes) of each run of neighbours."""
    inner = math.prod(shape[axis + 1 :]) * itemsize
    for outer in range(math.prod(shape[:axis])):
        yield outer, (outer * shape[axis] + first) * inner, (stop - first) * inner


def read_header(file: Any, path: Path) -> tuple[dict[str, str], dict[str, TensorInfo]]:
    """(metadata, tensors) of an open file; everything that could be wrong with a header is looked at here."""
    size = path.stat().st_size
    head = file.read(8)
    length = int.from_bytes(head, "little") if len(head) == 8 else -1
    if not 2 <= length <= min(size - 8, HEADER_LIMIT):
        raise ProblemError(f"{path}: expected a safetensors file, got {size} bytes that begin with no header length; cut short?")
    try:
        header = json.loads(file.read(length), object_pairs_hook=_without_repeats)
    except ValueError as error:
        raise ProblemError(f"{path}: expected a safetensors file, got a header that is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise ProblemError(f"{path}: expected a safetensors file, got a header that is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ProblemError(f"{path}: expected metadata of strings, got {metadata!r}")
    infos = {name: _info(name, entry, path, 8 + length) for name, entry in header.items()}
    end = 8 + length
    for info in sorted(infos.values(), key=lambda i: (i.offset, i.nbytes)):
        if info.offset != end:
            raise ProblemError(f"{path}: expected {info.name} at byte {end}, right after the tensor before, got {info.offset}")
        end += info.nbytes
    if end != size:
        raise ProblemError(f"{path}: expected {end} bytes as the header says, got {size}" + ("; cut short?" if size < end else ""))
    return metadata, infos


def _info(name: str, entry: Any, path: Path, base: int) -> TensorInfo:
    try:
        tag, shape, (begin, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise ProblemError(f"{path}: expected dtype, shape and data_offsets of {name}, got {entry!r}") from None
    if tag not in TYPES:
        raise DTypeError(f"{path}: expected a dtype of {', '.join(TYPES)} for {name}, got {tag}")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in (*shape, begin, stop)):
        raise ProblemError(f"{path}: expected extents and offsets of 0 or more for {name}, got shape {shape}, offsets {begin}, {stop}")
    bits = math.prod(shape) * TYPES[tag][0]
    if bits % 8 or stop - begin != bits // 8:
        raise ProblemError(f"{path}: expected {bits / 8:g} bytes for {name} ({tag} {shape}), got {stop - begin}")
    return TensorInfo(name, tag, tuple(shape), path, base + begin, stop - begin)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)} is there twice")
    return found


def _files(path: Path) -> Iterator[tuple[Path, set[str] | None]]:
    """Each file to open, and which tensors an index promises there."""
    if path.is_dir():
        index = sorted(path.glob(f"*{INDEX}"))
        single = sorted(path.glob(f"*{SUFFIX}"))
        if len(index) != 1 and len(single) != 1:
            raise ProblemError(f"{path}: expected one *{INDEX} or one *{SUFFIX}, got {len(index)} and {len(single)}")
        path = (index or single)[0]
    if not path.name.endswith(INDEX):
        yield path, None
        return
    try:
        where = json.loads(path.read_bytes())["weight_map"]
        shards: dict[str, set[str]] = {}
        for name, file in where.items():
            shards.setdefault(file, set()).add(name)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProblemError(f"{path}: expected an index with a weight_map, got something else ({error!r})") from error
    for file in sorted(shards):
        if Path(file).name != file:
            raise ProblemError(f"{path}: expected names of files beside it, got {file}")
        yield path.parent / file, shards[file]
