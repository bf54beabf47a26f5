"""Arrays in files: ``x.npy``, and ``model.safetensors:tensor`` through `checkpoint`, which knows FP8."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint import TensorSource, TensorSpec, TensorWriter
from ..errors import ProblemError

_SUFFIX = ".safetensors"
_NPY = b"\x93NUMPY"


def load(where: str) -> Any:
    """The array of ``file.npy`` (mapped, not read) or ``file.safetensors:tensor``.

    The tensor's name may be left out where the file holds only one.
    """
    path, tensor = split(where)
    if path.suffix == _SUFFIX:
        with TensorSource(path) as source:
            return source.read(_chosen(path, tensor, list(source)))
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        with path.open("rb") as file:
            begin = file.read(len(_NPY))
        why = error if begin == _NPY else f"the file begins with {begin!r}"  # of other files NumPy says that they are pickles
        raise ProblemError(f"{path}: expected an array of numbers, whole, as numpy.save writes it ({why})") from error


def save(where: str, array: Any) -> None:
    """Write an array, as `load` reads it. An old file is replaced, not overwritten: who has it mapped, as `load` has, goes on reading the old one."""
    path, tensor = split(where)
    if path.suffix == _SUFFIX:
        spec = TensorSpec.of(tensor or "d", array.dtype.name, array.shape)
        with TensorWriter(path, [spec]) as writer:
            writer.write(spec.name, array)
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            np.save(file, array, allow_pickle=False)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def expect_picture(name: str, path: Path | None) -> None:
    """Refuse, before the work is done, a picture that cannot be written."""
    expect_folder(name, path)
    if path is not None and path.suffix not in (".png", ".svg", ".pdf"):
        raise ProblemError(f"{name}: expected a name that ends in .png, .svg or .pdf, got {path}")


def refuse_beyond(dtype: Any, name: str, x: Any, where: str, first: tuple[int, int] = (0, 0)) -> None:
    """Refuse numbers that are not finite, or not in a float type; `x` begins at `first` of the array in the file."""
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(np.asarray(x).astype(dtype).astype(np.float32))
    if bad.any():
        r, c = (int(i) for i in np.argwhere(bad)[0])
        place = [first[0] + r, first[1] + c]
        raise ProblemError(f"{name}: expected finite numbers of {np.dtype(dtype)}, got {float(x[r, c]):g} at {place} of {where}")


def expect_folder(name: str, path: Path | None) -> None:
    """Refuse, before the work is done, a file that cannot be written: a folder, one whose folder is missing, one that is read-only."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise ProblemError(f"{name}: expected a file in a folder that is there, got {path}; mkdir -p {path.parent}")
    if path.is_dir():
        raise ProblemError(f"{name}: expected a file, got the folder {path}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ProblemError(f"{name}: expected a file that may be written, got {path}")


def split(where: str) -> tuple[Path, str | None]:
    """File and tensor.

    >>> split("model.safetensors:layers.0.weight")[1]
    'layers.0.weight'
    """
    file, colon, tensor = where.partition(f"{_SUFFIX}:")
    path = Path(file + _SUFFIX if colon else file)
    if path.suffix not in (".npy", _SUFFIX):
        raise ProblemError(f"{where}: expected FILE.npy or FILE.safetensors:TENSOR")
    return path, tensor or None


def _chosen(path: Path, tensor: str | None, names: list[str]) -> str:
    if tensor is None and len(names) == 1:
        return names[0]
    if tensor in names:
        return str(tensor)
    few = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    raise ProblemError(f"{path}: expected :TENSOR, one of {few}; got {tensor or 'none'}")
