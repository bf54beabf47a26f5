"""What the larger instructions mean, in NumPy, for the bodies of the other modules: boxes of TMA, 8x8 matrices, tiles of mma.sync and wgmma."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..dtypes import DTYPES
from ..emu import AsyncOp, Fragment, Move, Region, cta, lanes, thread, uniform, warpgroup
from ..emu.tensor_core import multiply_add, multiply_add_f16
from ..errors import BarrierError, DivergenceError, EmulationError, OutOfBoundsError
from ..integers import u32
from ..layouts.descriptors import SmemDescriptor, TensorMap
from ..layouts.lanes import LaneMap, mma_a, mma_accumulator, mma_b, wgmma_a_bits16, wgmma_a_fp8, wgmma_accumulator
from ..layouts.swizzle import ALIGNMENT, CHUNK, swizzle

K_BYTES = 32  # of one wgmma step
Bytes = np.ndarray


# TMA


def _signed(coordinate: int) -> int:
    """What the hardware reads in the 32 bits of a coordinate: it may come as -1 or as 0xFFFFFFFF."""
    return ((coordinate & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


class Box:
    """The box of `tmap` at `coordinates` (innermost first): its bytes in global memory, and where they lie in shared memory.

    shape      bytes of the box: outer dimensions first, the innermost in bytes
    inside     the part of the box that lies in the tensor, as an index
    in_tensor  that part in global memory, a view
    """

    def __init__(self, tmap: TensorMap, coordinates: Sequence[int], is_store: bool) -> None:
        size = DTYPES[tmap.dtype].itemsize
        first = [_signed(int(c)) for c in coordinates]
        if len(first) != len(tmap.dims):
            raise OutOfBoundsError(
                f"tensor map: expected {len(tmap.dims)} coordinates for its {len(tmap.dims)} dimensions, got {len(first)}"
            )
        if first[0] * size % CHUNK:
            raise OutOfBoundsError(
                f"TMA: expected an innermost coordinate that is a multiple of {CHUNK} bytes ({CHUNK // size} of {tmap.dtype}), got {first[0]}",
                kind="misaligned",
            )
        if is_store and min(first) < 0:  # a load may begin before the tensor
            raise OutOfBoundsError(f"TMA: expected coordinates of 0 or more for a store, got {first}")
        extents, dims, start = list(tmap.box), list(tmap.dims), first
        extents[0], dims[0], start[0] = extents[0] * size, dims[0] * size, start[0] * size
        if is_store:  # whole chunks are written, also where the last one of a row reaches past the tensor (H200, 2026-11-29)
            dims[0] = -(-dims[0] // CHUNK) * CHUNK
        self.nbytes, self.swizzle = tmap.box_bytes, tmap.swizzle
        self.shape = tuple(reversed(extents))
        clipped = [(max(s, 0), min(s + e, d)) for s, e, d in zip(start, extents, dims)]
        clipped = [(low, max(low, high)) for low, high in clipped]
        self.inside = tuple(slice(low - s, high - s) for (low, high), s in reversed(list(zip(clipped, start))))
        tensor = _tensor_bytes(tmap, dims[0], is_store)
        self.in_tensor = tensor[tuple(slice(low, high) for low, high in reversed(clipped))]

    @property
    def is_whole(self) -> bool:
        """Whether all of it lies in the tensor."""
        return all(s == slice(0, extent) for s, extent in zip(self.inside, self.shape))

    @property
    def layout(self) -> tuple[int, int]:
        """How it lies in shared memory: its swizzle, and the bytes of a row."""
        return self.swizzle, self.shape[-1]

    def tell(self, name: str, coordinates: Sequence[int], is_store: bool) -> None:
        """Tell who looks on of the box that operation `name` moves."""
        hears = thread().machine.hearers.move
        if hears is not None:
            hears(Move(name, is_store, tuple(coordinates), self.nbytes, self.in_tensor, thread()))

    def order(self, address: int) -> np.ndarray:
        """For each 16-byte chunk of the box, in order, its place in shared memory from `address` on, in chunks."""
        return _order(address % ALIGNMENT[self.swizzle], self.nbytes, self.swizzle)

    def check_address(self, address: int) -> None:
        """Raise unless TMA takes this shared address."""
        if address % 128:
            raise OutOfBoundsError(
                f"TMA: expected a shared address that is a multiple of 128, got {address:#x}", kind="misaligned", address=address
            )


def _tensor_bytes(tmap: TensorMap, row: int, is_store: bool) -> Bytes:
    """The whole tensor as bytes, `row` of them in the innermost dimension; its memory must belong to an array of the launch."""
    if not isinstance(tmap.array, np.ndarray):
        raise EmulationError(f"tensor map: expected one of a NumPy array, got one of {type(tmap.array).__name__}")
    shape = (*reversed(tmap.dims[1:]), row)
    strides = (*reversed(tmap.strides), 1)
    extent = sum((n - 1) * s for n, s in zip(shape, strides)) + 1
    flat = cta().gmem.bytes_at(tmap.array.__array_interface__["data"][0], extent, 16, is_store)
    return np.lib.stride_tricks.as_strided(flat, shape, strides)


@lru_cache(maxsize=256)
def _order(offset: int, nbytes: int, mode: int) -> np.ndarray:
    plain = offset + np.arange(0, nbytes, CHUNK)
    return (swizzle(plain, mode) - offset) // CHUNK


def tma_load(name: str, dst: int, tmap: TensorMap, bar: int, coordinates: Sequence[int], mask: int | None = None) -> None:
    """Load a box into this CTA, or into every CTA of `mask`, each with its own mbarrier."""
    box, here = Box(tmap, coordinates, is_store=False), cta()
    box.check_address(dst)
    box.tell(name, coordinates, is_store=False)
    for rank in [here.rank] if mask is None else [r for r in range(32) if mask >> r & 1]:
        target = here if rank == here.rank else here.cluster.locate(here.cluster.map(dst, rank))[0]
        region = Region(int(dst), box.nbytes, layout=box.layout)

        def act(smem: Any = target.smem, region: Region = region) -> None:
            data = np.zeros(box.shape, np.uint8)
            data[box.inside] = box.in_tensor
            out = np.empty((box.nbytes // CHUNK, CHUNK), np.uint8)
            out[box.order(region.address)] = data.reshape(-1, CHUNK)
            smem.poke(region, out)

        here.mbarrier(bar if target is here else here.cluster.map(bar, rank)).load(AsyncOp(name, act, writes=[region]), box.nbytes)


def tma_store(name: str, tmap: TensorMap, src: int, coordinates: Sequence[int]) -> None:
    """Store a box from this CTA; the chunks that fall outside the tensor are not even read."""
    box, here = Box(tmap, coordinates, is_store=True), cta()
    box.check_address(src)
    box.tell(name, coordinates, is_store=True)
    source = Region(int(src), box.nbytes, layout=box.layout)
    here.smem.check_bounds(source.address, source.nbytes, CHUNK)

    def act() -> None:
        data = here.smem.peek(source).reshape(-1, CHUNK)[box.order(source.address)].reshape(box.shape)
        box.in_tensor[...] = data[box.inside]

    reads = [source]
    if not box.is_whole:
        needed = np.zeros(box.shape, bool)
        needed[box.inside] = True
        chunks = box.order(source.address)[needed.reshape(-1, CHUNK).any(axis=1)]
        reads = [Region.of(source.address + chunks * CHUNK, box.layout)] if len(chunks) else []
    thread().bulk.issue(AsyncOp(name, act, reads=reads, amount=box.nbytes))


def tma_prefetch(tmap: TensorMap, coordinates: Sequence[int]) -> None:
    """Nothing moves; the box must be one that a load could ask for."""
    Box(tmap, coordinates, is_store=False)


def bulk_source(name: str, src: int, nbytes: int, **more: int) -> Bytes:
    """Contiguous bytes of global memory, a view: what is named, and `more`, must be whole chunks."""
    for what, value in (*more.items(), ("src", src), ("nbytes", nbytes)):
        if value % CHUNK:
            raise OutOfBoundsError(
                f"{name}: expected {what} to be a multiple of {CHUNK}, got {int(value):#x}", kind="misaligned", address=value
            )
    return cta().gmem.bytes_at(int(src), int(nbytes), CHUNK)


def bulk_load(name: str, dst: int, src: int, nbytes: int, bar: int) -> None:
    """Copy contiguous bytes into this CTA."""
    here = cta()
    region = Region(int(dst), int(nbytes))
    source = bulk_source(name, src, nbytes, dst=dst)
    hears = thread().machine.hearers.move
    if hears is not None:
        hears(Move(name, False, (src,), int(nbytes), source, thread()))
    here.mbarrier(bar).load(AsyncOp(name, lambda: here.smem.poke(region, source), writes=[region]), region.nbytes)


def store_async(address: int, data: bytes, bar: int) -> None:
    """Store a few bytes into a CTA of the cluster, which its barrier `bar` counts."""
    cluster = cta().cluster
    (there, local), (owner, _) = cluster.locate(int(address)), cluster.locate(int(bar))
    if there is not owner:
        raise BarrierError(
            f"st.async: expected a barrier of the CTA that is stored to, {there.rank} of the cluster, got one of CTA {owner.rank}",
            address=int(bar),
        )
    region = Region(local, len(data))
    source = np.frombuffer(data, np.uint8)
    there.mbarrier(bar).load(AsyncOp("st.async", lambda: there.smem.poke(region, source), writes=[region]), region.nbytes)


# 8x8 matrices


def stmatrix(addresses: Sequence[int], *registers: Sequence[int], is_transposed: bool = False) -> None:
    """Lane 8i + r gives the address of row r of matrix i (of it transposed); lane L holds two elements of row L/4 of each."""
    if len(addresses) != 32:
        raise DivergenceError(f"stmatrix: expected a warp of 32 lanes, got {len(addresses)}")
    rows = np.array(registers, np.uint32).reshape(-1, 4).view(np.uint8)
    if is_transposed:
        rows = np.ascontiguousarray(rows.view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1)).reshape(-1, 8).view(np.uint8)
    cta().smem.store_rows(addresses[: len(rows)], rows)


def ldmatrix(addresses: Sequence[int], count: int, is_transposed: bool = False) -> list[tuple[u32, ...]]:
    """Lane 8i + r gives the address of row r of matrix i; lane L gets two elements of row L/4 of each (of each transposed)."""
    if len(addresses) != 32:
        raise DivergenceError(f"ldmatrix: expected a warp of 32 lanes, got {len(addresses)}")
    rows = cta().smem.load_rows(addresses[: 8 * count])
    if is_transposed:
        rows = np.ascontiguousarray(rows.view(np.uint16).reshape(count, 8, 8).transpose(0, 2, 1)).view(np.uint8)
    words = rows.view(np.uint32).reshape(count, 32)  # word L of a matrix is what lane L holds
    return [tuple(u32(w) for w in column) for column in words.T.tolist()]


# wgmma


@lru_cache(maxsize=1024)
def _operand_chunks(address: int, rows: int, stride: int, mode: int) -> np.ndarray:
    row = np.arange(rows)[:, None]
    plain = address + row // 8 * stride + row % 8 * mode + np.arange(0, K_BYTES, CHUNK)
    chunks: np.ndarray = swizzle(plain, mode)
    return chunks


def _operand(name: str, low_word: int, layout: SmemDescriptor, rows: int) -> Region:
    """The bytes of a K-major operand: `rows` rows of 32."""
    address, stride, mode = SmemDescriptor.decode(layout.high << 32 | int(low_word))
    tile = address - address % mode
    if tile % ALIGNMENT[mode]:
        raise OutOfBoundsError(
            f"{name}: a tile with swizzle {mode} begins at a multiple of {ALIGNMENT[mode]}, got {tile:#x}", kind="misaligned", address=tile
        )
    return Region.of(_operand_chunks(address, rows, stride, mode), (mode, stride // 8))


def _decode(codes: Bytes, dtype: str) -> np.ndarray:
    row = DTYPES[dtype]
    return codes.view(row.numpy).astype(np.float32)


def _smallest(dtype: str) -> int:
    return 1 - DTYPES[dtype].bias


def wgmma(
    name: str, acc: Sequence[Any], a: Sequence[Any], a_layout: SmemDescriptor | None, b: Sequence[int], b_layout: SmemDescriptor,
    accumulate: Sequence[int], dtypes: tuple[str, str], rows: int = 64, in_f16: bool = False,
) -> list[Fragment]:  # fmt: skip
    """One step: 64 x N += 64 x 32 bytes @ 32 bytes x N. `a` holds descriptors if `a_layout` is given, else registers.

    `in_f16`: accumulators are float16, two neighbours of a row in a register.
    """
    smem, columns = cta().smem, (4 if in_f16 else 2) * len(acc[0])
    kind: Any = np.float32 if DTYPES[dtypes[0]].is_float and not in_f16 else np.uint32
    element: Any = np.float16 if in_f16 else kind
    held = [f.for_wgmma(t) if isinstance(f, Fragment) else np.array(f, kind) for f, t in zip(acc, lanes())]
    b_region = _operand("desc_b", uniform(b, "desc_b"), b_layout, columns)
    a_region = None if a_layout is None else _operand("desc_a", uniform(a, "desc_a"), a_layout, rows)
    is_fresh = not uniform(accumulate, "accumulate")
    out = np.full((128, len(acc[0])), np.nan if kind is np.float32 else 0x7FFF7FFF if in_f16 else 0x7FC00000, kind)
    lane_map = wgmma_accumulator(columns)

    def act() -> None:
        a_bytes = smem.peek(a_region).reshape(rows, K_BYTES) if a_region else _registers_a(a, DTYPES[dtypes[0]].itemsize)
        b_bytes = smem.peek(b_region).reshape(columns, K_BYTES)
        start = None if is_fresh else lane_map.scatter(np.stack(held).view(element))[:rows]
        product = _step(start, a_bytes, b_bytes, dtypes, in_f16)
        tile = np.full((64, columns), np.nan, element) if rows < 64 else np.empty((64, columns), element)
        tile[:rows] = product  # rows of A that hold no data give garbage: here NaN
        out[...] = np.ascontiguousarray(lane_map.gather(tile)).view(kind)

    op = AsyncOp(name, act, reads=[r for r in (a_region, b_region) if r], amount=64 * columns * K_BYTES)
    warpgroup().mma.issue(op)
    return [Fragment(row, op) for row in out]


def _step(start: np.ndarray | None, a: Bytes, b: Bytes, dtypes: tuple[str, str], in_f16: bool = False) -> np.ndarray:
    """A step of the tensor core on bytes [rows, 32] and [columns, 32]: FP8 as `emu.tensor_core` models it, int8 exactly and wrapped,
    16 bits as the exact sum (float64 holds products of 22 bits, and their sum but for its last bits), rounded once.
    """
    if dtypes[0] == "int8":
        total = a.view(np.int8).astype(np.int64) @ b.view(np.int8).astype(np.int64).T
        wrapped: np.ndarray = ((total if start is None else total + start) & 0xFFFFFFFF).astype(np.uint32)
        return wrapped
    x, y = _decode(a, dtypes[0]), _decode(b, dtypes[1])
    if DTYPES[dtypes[0]].itemsize == 1:
        return (multiply_add_f16 if in_f16 else multiply_add)(start, x, y, _smallest(dtypes[0]), _smallest(dtypes[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        exact = x.astype(np.float64) @ y.astype(np.float64).T
        rounded: np.ndarray = (exact if start is None else exact + start).astype(np.float32)
    return rounded


def _registers_a(registers: Sequence[Sequence[int]], size: int) -> Bytes:
    held = np.array(registers, np.uint32)
    if size == 2:
        return np.ascontiguousarray(wgmma_a_bits16().scatter(held.view(np.uint16))).view(np.uint8)  # [128, 8] elements
    tile: Bytes = wgmma_a_fp8().scatter(held.view(np.uint8))  # [128, 16]
    return tile


# mma.sync


def _mma_operand(registers: Sequence[Sequence[int]], dtype: str, lane_map: LaneMap, count: int) -> np.ndarray:
    """What a warp holds of one operand, decoded: float64, or int64 for integers."""
    row = DTYPES[dtype]
    words = np.array([list(r) for r in registers], np.uint32).reshape(32, count)
    codes = words.view(np.uint16 if row.bits == 16 else np.uint8)
    if row.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=2).reshape(32, -1)
    return lane_map.scatter(row.decode(codes)).astype(np.float64 if row.is_float else np.int64)


def mma_sync(dtype: str, acc: Sequence[Any], a: Sequence[Any], b: Sequence[Any], m_tiles: int = 1, n_tiles: int = 1) -> list[Any]:
    """One step of a warp: `m_tiles` x `n_tiles` of 16 x 8, each += 16 x 32 bytes of A times 8 x 32 bytes of B."""
    if len(acc) != 32:
        raise DivergenceError(f"mma.sync: expected a warp of 32 lanes, got {len(acc)}")
    bits, is_float = DTYPES[dtype].bits, DTYPES[dtype].is_float
    held = np.array([list(f) for f in acc], np.float32 if is_float else np.uint32).reshape(32, m_tiles * n_tiles, 4)
    a_tiles = [_mma_operand([r[4 * i : 4 * i + 4] for r in a], dtype, mma_a(bits), 4) for i in range(m_tiles)]
    b_tiles = [_mma_operand([r[2 * j : 2 * j + 2] for r in b], dtype, mma_b(bits), 2) for j in range(n_tiles)]
    lane_map, out = mma_accumulator(), np.empty_like(held)
    products = np.concatenate(a_tiles) @ np.concatenate(b_tiles).T
    for tile in range(m_tiles * n_tiles):
        i, j = divmod(tile, n_tiles)
        start = lane_map.scatter(held[:, tile])
        total = products[16 * i : 16 * i + 16, 8 * j : 8 * j + 8] + start
        out[:, tile] = lane_map.gather(total.astype(np.float32) if is_float else (total & 0xFFFFFFFF).astype(np.uint32))
    flat = out.reshape(32, -1)
    return [Fragment(row) for row in flat]
