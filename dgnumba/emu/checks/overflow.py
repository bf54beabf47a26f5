"""Integer overflow in index arithmetic: an address, an index or a coordinate that is not what it would be had nothing wrapped."""

from __future__ import annotations

from typing import Any

from greenlet import getcurrent

from ...errors import EmulationError, IndexOverflowError
from ...integers import u64
from ...wrapping import exact_of
from ..observe import Access, Move, Note, Observer, Transfer
from ..region import WINDOW
from ..source import Site
from ..threads import Thread


class Overflow(Observer):
    """Hears, from `wrapping`, of numbers that wrapped when they are turned into plain integers, and of the accesses that follow."""

    def __init__(self) -> None:
        self._used: list[tuple[Any, bool]] = []

    def origin(self, operator: str) -> Site | None:
        """Where in the kernel a number wraps for the first time."""
        current = getcurrent()
        if not isinstance(current, Thread):
            return None
        sites = current.machine.sites
        return sites[sites.here(f"integer {operator}")]

    def used(self, number: Any, is_index: bool) -> None:
        """`number`, which has wrapped, is asked for as a plain integer, or indexes an array."""
        self._used.append((number, is_index))

    def note(self, note: Note) -> None:
        """Another operation begins: what was asked for before is none of its addresses."""
        if note.kind == "op":
            self._used.clear()

    def access(self, access: Access) -> None:
        """An access, by an address or an index that may have wrapped."""
        self._check(access.address, access.space == "shared")

    def transfer(self, transfer: Transfer) -> None:
        """An asynchronous access, by an address that may have wrapped."""
        self._check(transfer.region.address, True)

    def move(self, move: Move) -> None:
        """A box: its coordinates are 32 bits with a sign."""
        for coordinate in move.coordinates:
            exact = exact_of(coordinate)
            value = int.__index__(coordinate)
            if exact is not None and (isinstance(coordinate, u64) or exact != value - (value >> 31 << 32)):
                raise _error(coordinate, "coordinate")

    def _check(self, address: int, is_shared: bool) -> None:
        used, self._used = self._used, []
        for number, is_index in used:
            if is_index or _plain(number) % (WINDOW if is_shared else 1 << 64) == address:
                raise _error(number, "index" if is_index else "address", address)

    def explained(self, error: EmulationError) -> EmulationError:
        """`error`, or that its address or index wrapped, if that is why."""
        for number, is_index in self._used:
            if (
                is_index
                and error.kind == "bounds"
                or error.address is not None
                and _plain(number) in (error.address, error.address + WINDOW)
            ):
                why = _error(number, "index" if is_index else "address", error.address)
                why.problem += f"; so {error.problem}"
                why.where, why.threads, why.block = error.where, error.threads, error.block
                why.op, why.file, why.line, why.source = error.op, error.file, error.line, error.source
                return why
        return error


def _plain(number: Any) -> int:
    value: int = int.__index__(number)
    return value


def _error(number: Any, what: str, address: int | None = None) -> IndexOverflowError:
    origin = f" in an {number.origin}" if number.origin is not None else ""
    return IndexOverflowError(
        f"integer overflow: the {what} {_plain(number)} ({_plain(number):#x}) comes from {number.bits}-bit arithmetic that wrapped{origin}; "
        f"without bounds it would be {number.exact}",
        address=address,
    )
