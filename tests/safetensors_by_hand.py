"""Checkpoint files written by hand, byte by byte, so that what reads them is not tested against itself."""

import json
import struct

import ml_dtypes
import numpy as np

TAG = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int32": "I32", "int64": "I64", "uint8": "U8", "int8": "I8",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "bool": "BOOL",
}  # fmt: skip


def file_bytes(tensors, metadata=None):
    """A .safetensors file of NumPy arrays, in the order given."""
    header, blobs, end = ({"__metadata__": metadata} if metadata else {}), [], 0
    for name, x in tensors.items():
        x = np.asarray(x)
        header[name] = {"dtype": TAG[x.dtype.name], "shape": list(x.shape), "data_offsets": [end, end + x.nbytes]}
        blobs.append(np.ascontiguousarray(x).tobytes())
        end += x.nbytes
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def parse(path):
    """{name: array} and metadata of a file, by the format's description and nothing else."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    names = {tag: name for name, tag in TAG.items()}
    out = {}
    for name, entry in header.items():
        first, stop = entry["data_offsets"]
        dtype = np.dtype(getattr(ml_dtypes, names[entry["dtype"]], names[entry["dtype"]]))
        out[name] = np.frombuffer(raw[8 + length + first : 8 + length + stop], dtype).reshape(entry["shape"])
    return out, metadata


def same_bits(x, y):
    """Whether two arrays have one type, one shape and the same bits."""
    return x.dtype == y.dtype and x.shape == y.shape and np.ascontiguousarray(x).tobytes() == np.ascontiguousarray(y).tobytes()
