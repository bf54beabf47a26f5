"""Reading .safetensors: every part of every tensor, and a clear refusal of whatever is broken."""

import json
import math
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors_by_hand import file_bytes, same_bits

from dgnumba.checkpoint import TensorSource, TensorSpec, TensorWriter
from dgnumba.checkpoint.tensors import TYPES, numpy_type
from dgnumba.errors import DTypeError, ProblemError

HELD = sorted(name for _, name in TYPES.values() if name)


@pytest.mark.parametrize("name", HELD)
def test_every_type_comes_back_bit_for_bit(name, tmp_path, rng):
    dtype = numpy_type(name)
    raw = rng.integers(0, 2 if name == "bool" else 256, 24 * dtype.itemsize, dtype=np.uint8)
    x = raw.view(dtype).reshape(2, 3, 4)
    path = tmp_path / "x.safetensors"
    with TensorWriter(path, [TensorSpec.of("x", name, x.shape), TensorSpec.of("scalar", name, ())]) as writer:
        writer.write("x", x)
        writer.write("scalar", x[0, 0, 0])
    with TensorSource(path) as source:
        assert same_bits(x, source.read("x"))
        assert same_bits(np.asarray(x[0, 0, 0]), source.read("scalar"))
        assert source["x"].dtype == name and source.nbytes == 25 * dtype.itemsize


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.data())
def test_any_part_along_any_axis(shape, data):
    x = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    axis = data.draw(st.integers(0, len(shape) - 1))
    first = data.draw(st.integers(0, shape[axis]))
    stop = data.draw(st.integers(first, shape[axis]))
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(file_bytes({"before": np.ones(3, np.uint8), "x": x}))
        with TensorSource(path) as source:
            part = source.read_part("x", axis, first, stop)
            assert same_bits(np.take(x, range(first, stop), axis), part)
            assert part.flags.owndata or part.base is not None and part.flags.writeable
            assert b"".join(source.chunks("x")) == x.tobytes()


def test_the_safetensors_package_reads_what_is_written_here(tmp_path, rng):
    safetensors = pytest.importorskip("safetensors")
    numpy = pytest.importorskip("safetensors.numpy")
    arrays = {
        "a": rng.standard_normal((3, 5), dtype=np.float32), "b": np.arange(7, dtype=np.uint8), "c": np.arange(4).astype(ml_dtypes.bfloat16),
        "d": rng.standard_normal((2, 2)), "e": np.zeros((0, 3), np.float16), "f": np.float32(1.5),
    }  # fmt: skip
    path = tmp_path / "x.safetensors"
    with TensorWriter(path, [TensorSpec.of(k, v.dtype.name, v.shape) for k, v in arrays.items()], {"format": "pt"}) as writer:
        for name, x in arrays.items():
            writer.write(name, x)
    with safetensors.safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert {name: file.get_slice(name).get_dtype() for name in file.keys()} == {  # noqa: SIM118
            "a": "F32", "b": "U8", "c": "BF16", "d": "F64", "e": "F16", "f": "F32"
        }  # fmt: skip
        for name in ("a", "b", "d", "e", "f"):
            assert same_bits(np.asarray(arrays[name]), np.asarray(file.get_tensor(name)))
    theirs = tmp_path / "y.safetensors"
    numpy.save_file({k: np.asarray(v) for k, v in arrays.items()}, theirs)
    with TensorSource(theirs) as source:
        assert [name for name in arrays if not same_bits(np.asarray(arrays[name]), source.read(name))] == []


def test_a_file_cut_anywhere_is_refused(tmp_path):
    raw = file_bytes({"x": np.arange(6, dtype=np.float32)}, {"format": "pt"})
    path = tmp_path / "x.safetensors"
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(ProblemError, match="x.safetensors: expected"):
            TensorSource(path)
    path.write_bytes(raw + b"\0")
    with pytest.raises(ProblemError, match=f"expected {len(raw)} bytes as the header says, got {len(raw) + 1}"):
        TensorSource(path)


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(raw):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        for content in (raw, struct.pack("<Q", max(len(raw) - 8, 2)) + raw):
            path.write_bytes(content)
            with pytest.raises(ProblemError):
                TensorSource(path)


X = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header, error, message",
    [
        ([], ProblemError, "no JSON object"),
        ({"x": {**X, "dtype": "F33"}}, DTypeError, "expected a dtype of BOOL, .* for x, got F33"),
        ({"x": {**X, "shape": [-2]}}, ProblemError, "expected extents and offsets of 0 or more for x"),
        ({"x": {**X, "shape": [2.0]}}, ProblemError, "expected extents and offsets of 0 or more"),
        ({"x": {**X, "shape": [True, 2]}}, ProblemError, "expected extents and offsets of 0 or more"),
        ({"x": {**X, "shape": 2}}, ProblemError, "expected extents and offsets of 0 or more"),
        ({"x": {**X, "shape": [3]}}, ProblemError, r"expected 12 bytes for x \(F32 \[3\]\), got 8"),
        ({"x": {**X, "data_offsets": [8, 0]}}, ProblemError, r"expected 8 bytes for x \(F32 \[2\]\), got -8"),
        ({"x": {**X, "data_offsets": [1, 9]}}, ProblemError, "expected x at byte .*, right after the tensor before"),
        ({"x": {**X, "data_offsets": [0]}}, ProblemError, "expected dtype, shape and data_offsets of x"),
        ({"x": 5}, ProblemError, "expected dtype, shape and data_offsets of x, got 5"),
        ({"x": X, "y": X}, ProblemError, "right after the tensor before"),
        ({"x": X, "__metadata__": {"a": 1}}, ProblemError, "expected metadata of strings"),
        ({"x": {**X, "dtype": "F4", "shape": [15]}}, ProblemError, r"expected 7.5 bytes for x"),
    ],
)
def test_headers_that_contradict_themselves_are_refused(header, error, message, tmp_path):
    text = json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(error, match=message):
        TensorSource(path)


def test_a_name_twice_is_refused(tmp_path):
    text = b'{"x":' + json.dumps(X).encode() + b',"x":' + json.dumps(X).encode() + b"}"
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(ProblemError, match="x is there twice"):
        TensorSource(path)


def test_sub_byte_types_are_copied_but_not_read(tmp_path):
    header = json.dumps({"x": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes([1, 2, 3, 4]))
    with TensorSource(path) as source:
        assert list(source.chunks("x")) == [bytes([1, 2, 3, 4])]
        with pytest.raises(DTypeError, match="x: expected a type that NumPy can hold, got F4"):
            source.read("x")


def test_a_name_that_is_not_there(save):
    with TensorSource(save({"x": np.ones(2, np.float32)})) as source:
        assert "y" not in source and list(source) == ["x"] and source.get("y") is None
        with pytest.raises(ProblemError, match="expected a tensor y, got none of this name"):
            source.read("y")


def test_shards_by_index_and_by_folder(tmp_path, save):
    save({"a": np.float32([1])}, "model-1", {"k": "v"})
    save({"b": np.float32([2])}, "model-2")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    for where in (index, tmp_path):
        with TensorSource(where) as source:
            assert {name: source.read(name).tolist() for name in source} == {"a": [1], "b": [2]}
            assert source.metadata == {"k": "v"} and len(source.paths) == 2


@pytest.mark.parametrize(
    "content, message",
    [
        ({"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}, "expected b, which the index says is here"),
        ({"weight_map": {"a": "../model-1.safetensors"}}, "expected names of files beside it"),
        ({"map": {}}, "expected an index with a weight_map"),
        ({"weight_map": [1]}, "expected an index with a weight_map"),
    ],
)
def test_a_wrong_index_is_refused(content, message, tmp_path, save):
    save({"a": np.float32([1])}, "model-1")
    (tmp_path / "x.safetensors.index.json").write_text(json.dumps(content))
    with pytest.raises(ProblemError, match=message):
        TensorSource(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path, save):
    for name in ("one", "two"):
        save({"a": np.float32([1]), name: np.float32([1])}, name)
    index = tmp_path / "x.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"one": "one.safetensors", "two": "two.safetensors"}}))
    with pytest.raises(ProblemError, match="expected every tensor once, got a in one.safetensors too"):
        TensorSource(index)


def test_a_folder_without_one_is_refused(tmp_path):
    with pytest.raises(ProblemError, match=r"expected one \*.safetensors.index.json or one \*.safetensors, got 0 and 0"):
        TensorSource(tmp_path)
    with pytest.raises(FileNotFoundError):
        TensorSource(tmp_path / "none.safetensors")
