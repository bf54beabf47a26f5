"""Compiled kernels as one file, to be shipped: in an image, or to machines that have no compiler.

A gzipped tar of the cache's entries, each under its key. An entry says which key it belongs to and carries a checksum (`cache.pack`), so a
file that is damaged, or that somebody else made, is told from a whole one; nothing is unpacked to a path that the file names.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from . import cache
from .errors import ProblemError
from .store import is_key

_FOLDER = "dgnumba-kernels/"
_BROKEN = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, struct.error, KeyError, TypeError)


def export(path: str | os.PathLike[str]) -> int:
    """Write every kernel of the cache to the file `path`, in the place of what was there; how many they are.

    The file is whole or is not written. A kernel is found again where its key is the same: by the same dgnumba, Python (major and minor),
    Numba and ptxas, whatever the machine.

    Raises:
        ProblemError: the cache's directory cannot be used. OSError: the file cannot be written.
    """
    target, count = Path(path), 0
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            for key, entry in cache.required_store().entries():
                if _is_whole(key, entry):
                    member = tarfile.TarInfo(_FOLDER + key)
                    member.size = len(entry)
                    tar.addfile(member, io.BytesIO(entry))
                    count += 1
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
    return count


def load(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Take the kernels of a file that `export` wrote into the cache: how many were new, and how many it had.

    All of them or none: the file is read and checked as a whole before the first is written, and if one cannot be written those before it go.

    Raises:
        ProblemError: the file is damaged, or none of ours; or the cache's directory cannot be used. OSError: a file cannot be read or written.
    """
    with open(path, "rb") as file:
        entries = dict(_read(file, path))
    store = cache.required_store()
    known = store.sizes().keys() & entries.keys()
    written: list[str] = []
    try:
        for key in entries.keys() - known:
            store.put(key, entries[key])
            written.append(key)
    except OSError:
        store.remove(written)
        raise
    return len(written), len(known)


def _read(file: io.BufferedReader, path: str | os.PathLike[str]) -> Iterator[tuple[str, bytes]]:
    try:
        # all of it first: that checks gzip's own sum, and a tar's end may be missing unseen
        with gzip.open(file) as whole, tarfile.open(fileobj=io.BytesIO(whole.read()), mode="r:") as tar:
            for member in tar:
                key = member.name.removeprefix(_FOLDER)
                found = tar.extractfile(member) if member.isreg() and member.size <= cache.LIMIT else None
                entry = found.read() if found is not None else b""
                if not _is_whole(key, entry) or member.name != _FOLDER + key:
                    raise ProblemError(f"file: expected kernels as `dgnumba cache export` writes them, got {member.name!r} in {path}")
                yield key, entry
    except ProblemError:
        raise
    except _BROKEN as error:
        raise ProblemError(f"file: {path} is no whole file of `dgnumba cache export`: {error}") from error


def _is_whole(key: str, entry: bytes) -> bool:
    try:
        return is_key(key) and cache.unpack(key, entry) is not None
    except _BROKEN:
        return False


__all__ = ["export", "load"]
