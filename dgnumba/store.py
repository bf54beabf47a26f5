"""A folder of small files by key, shared by any number of processes: each is whole or not there, and the folder has a limit.

    folder/entries/<key>    the bytes of one key
    folder/tmp/...          what is being written: moved into `entries` at once when it is whole

Two processes that write one key at the same time both succeed, and one of the two is kept. Nothing is locked, and nobody waits.

DIFFERS from `cuda.core.utils.FileStreamProgramCache`, which does the same: that takes 0.4 s to import, and there is no need of `cuda.core` here.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ABANDONED = 3600
"""Seconds after which an unfinished file belongs to no running process."""

_KEY = re.compile(r"[0-9a-f]{64}")


def is_key(key: str) -> bool:
    """Whether this is what a key looks like."""
    return _KEY.fullmatch(key) is not None


class Store:
    """Bytes by key (64 hexadecimal digits) in `folder`; beyond `limit` bytes what was read or written longest ago goes.

    Raises:
        OSError: the folder is not there and cannot be made.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._entries, self._tmp = folder / "entries", folder / "tmp"
        self._entries.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> bytes | None:
        """The bytes of `key`, or None. Raises `OSError` where the folder cannot be read."""
        path = self._entries / key
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        with contextlib.suppress(OSError):  # a folder that came with an image cannot be written, and loses nothing
            os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep `data`, in the place of what there was. Raises `OSError` where the folder cannot be written."""
        if not is_key(key):
            raise ValueError(f"key: expected 64 hexadecimal digits, got {key!r}")
        self._tmp.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._tmp)
        try:
            with open(handle, "wb") as file:
                file.write(data)
            self._move(name, self._entries / key)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        self._trim(key)

    @staticmethod
    def _move(name: str, target: Path) -> None:
        try:
            os.replace(name, target)
        except PermissionError:
            # Windows replaces no file that somebody has open: they are reading what another process wrote for this key
            if os.name != "nt" or not target.exists():
                raise
            os.unlink(name)

    def entries(self) -> Iterator[tuple[str, bytes]]:
        """Keys and their bytes, in order; this is no use of them."""
        for key in sorted(self.sizes()):
            with contextlib.suppress(FileNotFoundError):  # another process may trim
                yield key, (self._entries / key).read_bytes()

    def remove(self, keys: Iterable[str]) -> None:
        """Remove these."""
        for key in keys:
            _removed(str(self._entries / key))

    def sizes(self) -> dict[str, int]:
        """Key -> bytes; and remove what processes left that died while they wrote."""
        self._remove_abandoned()
        return {entry.name: entry.stat().st_size for entry in self._scan()}

    def clear(self) -> int:
        """Remove everything; how many keys there were."""
        self._remove_abandoned()
        return sum(_removed(entry.path) for entry in self._scan())

    def _scan(self) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self._entries) as found:
            yield from (entry for entry in found if is_key(entry.name))

    def _trim(self, latest: str) -> None:
        """Remove what was used longest ago, beyond the limit; never `latest`."""
        used = []
        for entry in self._scan():
            with contextlib.suppress(FileNotFoundError):  # another process trims too
                facts = entry.stat()
                used.append((facts.st_mtime_ns, facts.st_size, entry))
        excess = sum(size for _, size, _ in used) - self.limit
        if excess > 0:
            self._remove_abandoned()
        for _, size, entry in sorted(used, key=lambda each: each[0]):
            if excess <= 0:
                break
            if entry.name != latest:
                _removed(entry.path)
                excess -= size

    def _remove_abandoned(self) -> None:
        with contextlib.suppress(OSError), os.scandir(self._tmp) as found:
            for entry in found:
                with contextlib.suppress(OSError):
                    if entry.stat().st_mtime < time.time() - ABANDONED:
                        os.unlink(entry.path)


def _removed(path: str) -> bool:
    """Remove a file; whether it is gone by us."""
    try:
        os.unlink(path)
    except OSError:  # another process was faster; or, on Windows, reads it
        return False
    return True
