"""The shared-memory map of a kernel: named regions, their stages, offsets and alignment, computed once and never typed in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Region:
    """`stages` slots of `nbytes` each, one after another from `offset` (bytes from the aligned base)."""

    name: str
    offset: int
    nbytes: int
    stages: int

    @property
    def end(self) -> int:
        """Bytes from the base to behind the last slot."""
        return self.offset + self.nbytes * self.stages


@dataclass(frozen=True)
class SmemMap:
    """Regions in order. `base_alignment` is what the dynamic block's base must be raised to: CUDA promises 16 bytes only."""

    regions: tuple[Region, ...]
    base_alignment: int = 1024

    @classmethod
    def of(cls, *parts: tuple[str, int, int, int], base_alignment: int = 1024) -> SmemMap:
        """`parts`: (name, bytes of a slot, stages, alignment in bytes), laid out in order."""
        regions, offset = [], 0
        for name, nbytes, stages, alignment in parts:
            offset = (offset + alignment - 1) // alignment * alignment
            regions.append(Region(name, offset, nbytes, stages))
            offset += nbytes * stages
        return cls(tuple(regions), base_alignment)

    def over(self, name: str, nbytes: int, first: str) -> SmemMap:
        """The map with a region that lies where `first` and those behind it do, which are done with when it is used.

        Raises `ValueError` where it would reach past the last region that `first` begins.
        """
        begin = self[first].offset
        if begin + nbytes > self.regions[-1].end:
            raise ValueError(f"{name}: expected at most {self.regions[-1].end - begin} bytes from {first} on, got {nbytes}")
        return SmemMap((*self.regions, Region(name, begin, nbytes, 1)), self.base_alignment)

    def __getitem__(self, name: str) -> Region:
        return next(r for r in self.regions if r.name == name)

    def __iter__(self) -> Iterator[Region]:
        return iter(self.regions)

    @property
    def labels(self) -> dict[int, str]:
        """Offset of each slot of a byte or more -> its name: "a[2]", "full[0]"; where several begin that of the first region."""
        named = [r for r in reversed(self.regions) if r.nbytes]
        return {r.offset + r.nbytes * i: f"{r.name}[{i}]" for r in named for i in range(r.stages)}

    @property
    def launch_bytes(self) -> int:
        """Dynamic shared memory to ask for: the regions, and room to align the base. A base is 1024-aligned in practice, not by promise."""
        return max(r.end for r in self.regions) + self.base_alignment

    def __str__(self) -> str:
        rows = [f"{r.offset:7d}  {r.name:12s} {r.stages:3d} x {r.nbytes} B" for r in self.regions if r.nbytes]
        return "\n".join([*rows, f"{self.launch_bytes:7d}  bytes asked for at launch"])
