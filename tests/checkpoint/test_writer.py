"""Writing .safetensors: the file is there when it is whole, and not before; an interrupted run leaves nothing."""

import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors_by_hand import parse, same_bits

from dgnumba.checkpoint import TensorSpec, TensorWriter
from dgnumba.errors import ProblemError

SPECS = [TensorSpec("x", "F32", (4, 6)), TensorSpec("y", "U8", (3,))]
X, Y = np.arange(24, dtype=np.float32).reshape(4, 6), np.uint8([1, 2, 3])


@pytest.fixture(params=["without a name", "hidden"])
def naming(request, monkeypatch):
    """Both ways that an unfinished file is kept out of sight."""
    if request.param == "hidden":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    elif not hasattr(os, "O_TMPFILE"):
        pytest.skip("no O_TMPFILE")
    return request.param


def test_parts_in_any_order_make_the_whole(tmp_path, naming):
    path = tmp_path / "out.safetensors"
    with TensorWriter(path, SPECS, {"a": "b"}) as writer:
        writer.write("x", X[:, 4:], axis=1, first=4)
        writer.write("y", Y)
        assert not path.exists()
        assert os.listdir(tmp_path) == [] or naming == "hidden"
        writer.write("x", X[:, :4], axis=1)
    tensors, metadata = parse(path)
    assert same_bits(X, tensors["x"]) and same_bits(Y, tensors["y"]) and metadata == {"a": "b"}
    assert os.listdir(tmp_path) == ["out.safetensors"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask():
    now = os.umask(0)
    os.umask(now)
    return now


def test_the_header_and_every_tensor_are_aligned_to_their_elements(tmp_path):
    path = tmp_path / "out.safetensors"
    specs = [TensorSpec("b", "U8", (3,)), TensorSpec("d", "F64", (1,)), TensorSpec("h", "F16", (1,)), TensorSpec("f", "F32", (1,))]
    with TensorWriter(path, specs) as writer:
        for spec in specs:
            writer.write_bytes(spec.name, 0, bytes(spec.nbytes))
    raw = path.read_bytes()
    assert int.from_bytes(raw[:8], "little") % 8 == 0
    import json

    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert {name: entry["data_offsets"] for name, entry in header.items()} == {"d": [0, 8], "f": [8, 12], "h": [12, 14], "b": [14, 17]}


@given(st.permutations(range(6)), st.integers(0, 1))
def test_slabs_along_both_axes(order, axis):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.safetensors"
        x = np.arange(36, dtype=np.int32).reshape(6, 6)
        with TensorWriter(path, [TensorSpec("x", "I32", (2, 3, 6))]) as writer:
            for i in order:
                writer.write("x", np.take(x, [i], axis), axis=axis, first=i, shape=(6, 6))
        assert np.array_equal(x.reshape(2, 3, 6), parse(path)[0]["x"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, MemoryError])
def test_an_interrupted_run_leaves_no_file_and_an_old_one_as_it_was(error, tmp_path, naming):
    path = tmp_path / "out.safetensors"
    for before in (None, b"precious"):
        if before is not None:
            path.write_bytes(before)
        with pytest.raises(error), TensorWriter(path, SPECS) as writer:
            writer.write("x", X)
            raise error
        assert os.listdir(tmp_path) == ([] if before is None else ["out.safetensors"])
        assert before is None or path.read_bytes() == before


def test_a_part_that_is_missing_leaves_no_file(tmp_path, naming):
    with pytest.raises(ProblemError, match="expected all of x, got all but 24 bytes; nothing is kept"):
        with TensorWriter(tmp_path / "out.safetensors", SPECS) as writer:
            writer.write("y", Y)
            writer.write("x", X[:3])
    assert os.listdir(tmp_path) == []


CHILD = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever is started in the background ignores it
import sys, time, numpy as np
from dgnumba.cli.convert import unfinished_ends_clean
from dgnumba.checkpoint import TensorSpec, TensorWriter
with unfinished_ends_clean(), TensorWriter(sys.argv[1], [TensorSpec("x", "F32", (4,))]) as writer:
    writer.write("x", np.zeros(2, np.float32))
    print("half", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_ended_leaves_no_file(number, tmp_path):
    if not hasattr(os, "O_TMPFILE") and number == signal.SIGKILL:
        pytest.skip("nothing can clean up after SIGKILL but a file without a name")
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, tmp_path / "out.safetensors"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout.readline() == b"half\n"
        child.send_signal(number)
        deadline = time.monotonic() + 30
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert child.poll() not in (None, 0)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_met_at_the_start(tmp_path, monkeypatch):
    def full(fd, offset, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match=r"No space left on device \(\d+ bytes\): .*out.safetensors") as caught:
        with TensorWriter(tmp_path / "out.safetensors", SPECS):
            pytest.fail("it began")
    assert caught.value.filename == str(tmp_path / "out.safetensors")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        with TensorWriter(tmp_path / "no" / "out.safetensors", SPECS):
            pytest.fail("it began")
    assert caught.value.filename == str(tmp_path / "no" / "out.safetensors")


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda w: w.write("x", X.astype(np.float64)), r"x: expected F32 \[4, 6\] of \[4, 6\], got float64"),
        (lambda w: w.write("x", X[:, :5]), r"x: expected F32 \[4, 6\] of \[4, 6\], got float32 \[4, 5\]"),
        (lambda w: w.write("x", X, first=1), r"x: expected F32"),
        (lambda w: (w.write("x", X), w.write("x", X[:1])), "x: expected 0 bytes more, got 24 at 0"),
        (lambda w: w.write_bytes("y", 2, b"ab"), "y: expected 3 bytes more, got 2 at 2"),
        (lambda w: w.write_bytes("y", -1, b"a"), "y: expected 3 bytes more, got 1 at -1"),
    ],
)
def test_what_does_not_fit_is_refused(call, message, tmp_path):
    with pytest.raises(ProblemError, match=message), TensorWriter(tmp_path / "out.safetensors", SPECS) as writer:
        call(writer)
    assert os.listdir(tmp_path) == []


def test_a_name_twice_is_refused(tmp_path):
    with pytest.raises(ProblemError, match="expected every tensor once, got x twice"):
        TensorWriter(tmp_path / "out.safetensors", [SPECS[0], SPECS[0]])


def test_no_tensors_and_empty_tensors(tmp_path):
    with TensorWriter(tmp_path / "a.safetensors", []):
        pass
    with TensorWriter(tmp_path / "b.safetensors", [TensorSpec("x", "F32", (0, 5))]):
        pass
    assert parse(tmp_path / "a.safetensors") == ({}, {})
    assert parse(tmp_path / "b.safetensors")[0]["x"].shape == (0, 5)
