"""Compiled kernels, kept in memory and on disk, so that the second process does not compile.

On disk lies a `store.Store`: a file for each kernel, written beside and moved into place at once, so
that any number of processes may share a directory and none sees half a file. Each entry says which key
it belongs to and carries a checksum, and one that is cut short, damaged or misplaced counts as absent
and is written again. A directory that cannot be used costs one warning; then kernels are kept in memory
only.

A key holds everything that the code was made from: what the kernel is (`fingerprint`, or a plan),
its argument types, the architecture, the sources of this package, and the versions of the tools.

The directory is ``DGNUMBA_CACHE_DIR``; else ``dgnumba`` in ``XDG_CACHE_HOME`` or ``~/.cache``
(``LOCALAPPDATA`` on Windows).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .assemble import Cubin, assembler, installed
from .errors import ProblemError
from .fingerprint import fingerprint
from .store import Store

LIMIT = 2**30
"""Bytes that the directory may hold; beyond it the kernels that were read longest ago go."""

_SCHEMA = 1
_MAGIC = b"dgnumba\x01"
_IMPORTED = time.time()
_TOOLS = ("numba", "numba-cuda", "llvmlite", "numpy", "nvidia-nvvm", "nvidia-cuda-nvcc-cu12")
_NOT_OF_THE_CODE = {"NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER"}


def directory() -> Path | None:
    """Where kernels are kept; None where the user has no home to keep them in."""
    chosen = os.environ.get("DGNUMBA_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    root = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "dgnumba"
    except RuntimeError:
        return None


def key_of(what: Any, argtypes: tuple[Any, ...], *, arch: str, threads: int | None = None, min_ctas: int = 1) -> str | None:
    """The key of a compiled kernel; None for one that must stay in memory.

    Args:
        what: the kernel itself, or what stands for it and for all that it is made of: for a kernel
            of this package the name and the plan.
        argtypes: its argument types, as Numba types or as anything whose text says all of it.
        arch: the machine it is assembled for.
        threads: threads a CTA, where the kernel is compiled for a number of them.
        min_ctas: CTAs that a multiprocessor is to have registers for.
    """
    made_of = fingerprint(what)
    where = environment()
    if made_of is None or where is None:
        return None
    parts = [str(_SCHEMA), made_of, *map(repr, argtypes), arch, f"{threads} {min_ctas}", *where]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def environment() -> tuple[str, ...] | None:
    """What every kernel depends on: this package's sources, the tools, and Numba's settings."""
    sources = _sources()
    if sources is None:
        return None
    names = sorted(n for n in os.environ if n.startswith("NUMBA_") and n not in _NOT_OF_THE_CODE)
    settings = tuple(f"{name}={os.environ[name]}" for name in names)
    return (sources, *_tools(), assembler(), *settings)


@functools.cache
def _sources() -> str | None:
    """A digest of this package's sources; None if one was changed after the package was imported."""
    root = os.path.dirname(os.path.abspath(__file__))
    digest = hashlib.sha256()
    for path in sorted(_modules(root)):
        with open(path, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_mtime > _IMPORTED:
                # The code that runs is older than the file: its kernels must not pass for the file's.
                return None
            data = file.read()
        digest.update(f"{path[len(root) + 1 :].replace(os.sep, '/')} {len(data)} ".encode() + data)
    return digest.hexdigest()


def _modules(folder: str) -> Iterator[str]:
    """Paths of the sources in a folder and those below. NOTE: by `scandir`: `Path.rglob` takes three times as long, in each process's first call."""
    with os.scandir(folder) as found:
        for entry in found:
            if entry.name.endswith(".py"):
                yield entry.path
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _modules(entry.path)


@functools.cache
def _tools() -> tuple[str, ...]:
    versions = [f"python {sys.version_info[0]}.{sys.version_info[1]}"]
    for name in _TOOLS:
        version = installed(name)
        if version is not None:
            versions.append(f"{name} {version}")
    if not any(v.startswith("nvidia-") for v in versions):
        versions.append(f"CUDA_HOME {os.environ.get('CUDA_HOME', '')}")  # NVVM of a toolkit
    return tuple(versions)


def pack(key: str, cubin: Cubin) -> bytes:
    """An entry's bytes: magic, SHA-256 of the rest, length of a JSON head, the head, the code."""
    fields = {f.name: getattr(cubin, f.name) for f in dataclasses.fields(cubin)}
    code: bytes = fields.pop("code")
    head = json.dumps({"key": key, **fields}).encode()
    body = struct.pack("<I", len(head)) + head + code
    return _MAGIC + hashlib.sha256(body).digest() + body


def unpack(key: str, entry: bytes) -> Cubin | None:
    """The kernel of an entry; None for one that is damaged, or that belongs to another key."""
    start = len(_MAGIC) + 32
    body = entry[start:]
    if not entry.startswith(_MAGIC) or hashlib.sha256(body).digest() != entry[len(_MAGIC) : start]:
        return None
    (length,) = struct.unpack_from("<I", body)
    head = json.loads(body[4 : 4 + length])
    if head.pop("key") != key:
        return None
    lists = {name: tuple(value) for name, value in head.items() if isinstance(value, list)}
    return Cubin(code=body[4 + length :], **{**head, **lists})


class KernelCache:
    """Compiled kernels by key, in memory and in a directory (None: in memory only).

    ``cache.get(key, build)`` is the kernel of `key`, built by `build()` if it is nowhere yet. Threads
    that ask for one key at the same time get one build; processes may each build, and the results
    are the same. A key of None is built every time: callers keep what they got.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._memory: dict[str, Cubin] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._is_usable = folder is not None

    def get(self, key: str | None, build: Callable[[], Cubin]) -> Cubin:
        """The kernel of `key`, from memory, else from the disk, else built and kept."""
        if key is None:
            return build()
        found = self._memory.get(key)
        if found is not None:
            return found
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            found = self._memory.get(key) or self._read(key)
            if found is None:
                found = build()
                self._write(key, found)
            self._memory[key] = found
        return found

    def info(self) -> dict[str, Any]:
        """Where the kernels lie, how many there are, and their size in bytes."""
        store = self.store()
        sizes = store.sizes().values() if store is not None else ()
        return {
            "directory": str(self.folder) if self.folder else None,
            "usable": store is not None,
            "kernels": len(sizes),
            "bytes": sum(sizes),
            "in_memory": len(self._memory),
        }

    def clear(self) -> int:
        """Remove every kernel from memory and from the directory; how many the directory had."""
        self._memory.clear()
        store = self.store()
        return store.clear() if store is not None else 0

    def store(self) -> Store | None:
        """The store on disk, opened once; None where there is none to be had."""
        with self._lock:
            if self._store is None and self._is_usable:
                assert self.folder is not None
                try:
                    self._store = Store(self.folder, LIMIT)
                except OSError as error:
                    self._give_up(error)
            return self._store

    def _give_up(self, error: Exception) -> None:
        self._store, self._is_usable = None, False
        _warn_once(f"{self.folder}: {error}; compiled kernels are kept in memory only")

    def _read(self, key: str) -> Cubin | None:
        store = self.store()
        if store is None:
            return None
        try:
            entry = store.get(key)
        except OSError as error:
            self._give_up(error)
            return None
        return unpack(key, entry) if entry else None

    def _write(self, key: str, cubin: Cubin) -> None:
        if self._store is None:
            return
        try:
            self._store.put(key, pack(key, cubin))
        except OSError as error:
            # What is there can still be read: a directory that came with an image, for example.
            _warn_once(f"{self.folder}: {error}; newly compiled kernels are kept in memory only")


_warned = False
_shared: dict[Path | None, KernelCache] = {}


def _warn_once(message: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        cure = "set DGNUMBA_CACHE_DIR to a directory that can be written"
        warnings.warn(f"kernel cache: {message}; {cure}", RuntimeWarning, stacklevel=2)


def shared() -> KernelCache:
    """The cache of this process in the directory that the environment names now."""
    folder = directory()
    found = _shared.get(folder)
    return found if found is not None else _shared.setdefault(folder, KernelCache(folder))


def required_store() -> Store:
    """The store on disk, for whoever can do nothing without. Raises `ProblemError` where there is none to be had."""
    store = shared().store()
    if store is None:
        raise ProblemError(
            f"cache: {directory() or 'no directory'} cannot be used; set DGNUMBA_CACHE_DIR to a directory that can be written"
        )
    return store


def info() -> dict[str, Any]:
    """What `dgnumba cache info` prints; see `KernelCache.info`."""
    return shared().info()


def clear() -> int:
    """Empty the cache, as `dgnumba cache clear` does; how many kernels the directory had."""
    return shared().clear()


def _forget() -> None:
    """In a forked child: a thread that is not here may have held a lock."""
    for folder in list(_shared):
        old, new = _shared[folder], KernelCache(folder)
        new._memory.update(old._memory)
        _shared[folder] = new


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
