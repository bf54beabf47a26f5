"""A .safetensors file written a part at a time, and there only when it is whole.

While it is written the file has no name (Linux), or a hidden one beside its place; it gets its
own name when every byte of every tensor is written and on the disk. An interrupted run leaves
nothing under that name, and an older file of that name as it was.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import ProblemError
from .tensors import TAGS, TYPES, runs


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written: `tag` is the format's name of its type."""

    name: str
    tag: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, dtype: str, shape: Sequence[int]) -> TensorSpec:
        """Of a type by NumPy's or ml_dtypes' name."""
        return cls(name, TAGS[dtype], tuple(int(n) for n in shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * TYPES[self.tag][0] // 8


class TensorWriter:
    """Write the tensors of `specs` to `path`, in any order and in parts; for ``with``.

    Args:
        path: where the file will be; replaced if there is one.
        specs: every tensor, before the first is written: the header comes first.
        metadata: strings for the header.

    Raises:
        ProblemError: a name twice; on leaving, a tensor of which a part was not written.
        OSError: no room, no permission.
    """

    def __init__(self, path: str | Path, specs: Sequence[TensorSpec], metadata: Mapping[str, str] | None = None) -> None:
        self.path = Path(path)
        # Larger elements first, as the safetensors package: every tensor is then aligned to its elements.
        ordered = sorted(specs, key=lambda s: (-TYPES[s.tag][0], s.name))
        header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        self._places: dict[str, tuple[TensorSpec, int]] = {}
        end = 0
        for spec in ordered:
            if spec.name in self._places:
                raise ProblemError(f"{self.path}: expected every tensor once, got {spec.name} twice")
            self._places[spec.name] = (spec, end)
            header[spec.name] = {"dtype": spec.tag, "shape": list(spec.shape), "data_offsets": [end, end + spec.nbytes]}
            end += spec.nbytes
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        self._head = len(text).to_bytes(8, "little") + text
        self.nbytes = len(self._head) + end
        self._missing = {spec.name: spec.nbytes for spec in ordered}
        self._file: _Unfinished | None = None

    def __enter__(self) -> TensorWriter:
        self._file = _Unfinished(self.path, self.nbytes)
        try:
            self._file.write(0, self._head)
        except BaseException:
            self._file.discard()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        file, self._file = self._file, None
        assert file is not None
        try:
            if kind is None:
                left = [name for name, n in self._missing.items() if n]
                if left:
                    raise ProblemError(
                        f"{self.path}: expected all of {left[0]}, got all but {self._missing[left[0]]} bytes; nothing is kept"
                    )
                file.publish()
        finally:
            file.discard()

    def write(self, name: str, array: Any, *, axis: int = 0, first: int = 0, shape: Sequence[int] | None = None) -> None:
        """Write a NumPy array as entries from `first` on along `axis` of a tensor; every entry once.

        Args:
            name: of the tensor. array: of its type (or its bits as unsigned integers).
            axis, first: where it goes. shape: the tensor's, seen otherwise with the same elements.
        """
        spec, base = self._places[name]
        shape = tuple(shape or spec.shape) or (1,)
        array = np.ascontiguousarray(array)
        stop = first + (array.shape[axis] if array.ndim else 1)
        expected = (*shape[:axis], stop - first, *shape[axis + 1 :])
        if (array.shape or (1,)) != expected or array.dtype.itemsize * 8 != TYPES[spec.tag][0] or stop > shape[axis]:
            raise ProblemError(f"{name}: expected {spec.tag} {list(expected)} of {list(shape)}, got {array.dtype} {list(array.shape)}")
        data = memoryview(array.view(np.uint8).reshape(-1)) if array.size else memoryview(b"")
        for outer, start, run in runs(shape, array.dtype.itemsize, axis, first, stop):
            self.write_bytes(name, start, data[outer * run : (outer + 1) * run])

    def write_bytes(self, name: str, start: int, data: Any) -> None:
        """Write bytes of a tensor from its byte `start` on; every byte once."""
        spec, base = self._places[name]
        if start < 0 or start + len(data) > spec.nbytes or len(data) > self._missing[name]:
            raise ProblemError(f"{name}: expected {self._missing[name]} bytes more, got {len(data)} at {start}")
        assert self._file is not None, "a TensorWriter is for with"
        self._file.write(len(self._head) + base + start, data)
        self._missing[name] -= len(data)


class _Unfinished:
    """A file without its name: `publish` gives it, `discard` takes what is left away."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self.path = path
        self.hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        self.is_named = False
        self._fd = self._open()
        try:
            # Asked for at once: a full disk is met now and not after an hour's work.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._fd, 0, nbytes)
            else:
                os.truncate(self._fd, nbytes)
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError):
                raise OSError(error.errno, f"{error.strerror} ({nbytes} bytes)", str(path)) from None
            raise

    def _open(self) -> int:
        if self._can_be_named_late():
            return os.open(self.path.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0)
        try:
            fd = os.open(self.hidden, flags, 0o666)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        self.is_named = True
        return fd

    def _can_be_named_late(self) -> bool:
        """Whether a file without a name can be made here and get one: not so on every file system. Tried with an empty one."""
        if not hasattr(os, "O_TMPFILE"):
            return False
        try:
            fd = os.open(self.path.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
        except OSError:
            return False
        try:
            self._link(fd)
            self.hidden.unlink()
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def _link(self, fd: int) -> None:
        # NOTE: only with a directory does Python call linkat, which follows the link in /proc.
        os.link(f"/proc/self/fd/{fd}", self.hidden, src_dir_fd=fd, follow_symlinks=True)

    def write(self, at: int, data: Any) -> None:
        os.lseek(self._fd, at, os.SEEK_SET)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def publish(self) -> None:
        os.fsync(self._fd)
        if not self.is_named:
            self._link(self._fd)
            self.is_named = True
        os.replace(self.hidden, self.path)
        self.is_named = False

    def discard(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self.is_named:
            with contextlib.suppress(FileNotFoundError):
                self.hidden.unlink()
            self.is_named = False
