"""Arrays in files: what is written is read back, and a broken file is refused in words."""

import os

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from dgnumba.cli.files import expect_folder, load, save, split
from dgnumba.errors import ProblemError

DTYPES = [np.float16, np.float32, np.float64, np.uint8, np.int32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


def matrix(dtype):
    return np.arange(-3, 9).reshape(3, 4).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_that_safetensors_wrote_is_read_with_its_dtype(tmp_path, dtype):
    path = tmp_path / "m.safetensors"
    save_file({"other": np.ones(5, np.float32), "w": matrix(dtype)}, path)
    found = load(f"{path}:w")
    assert found.dtype == np.dtype(dtype)
    assert found.tobytes() == matrix(dtype).tobytes()
    assert found.shape == (3, 4)


@pytest.mark.parametrize("name", ["d.npy", "d.safetensors:out", "d.safetensors"])
def test_what_save_wrote_load_reads(tmp_path, name):
    save(f"{tmp_path}/{name}", matrix(np.float32))
    assert np.array_equal(load(f"{tmp_path}/{name}"), matrix(np.float32))


def test_an_empty_tensor_is_read(tmp_path):
    save(f"{tmp_path}/e.safetensors:e", np.empty((0, 128), np.float32))
    assert load(f"{tmp_path}/e.safetensors:e").shape == (0, 128)


def test_a_tensor_name_may_hold_colons_and_dots():
    path, tensor = split("C:\\models\\m.safetensors:layers.0:weight")
    assert (path.suffix, tensor) == (".safetensors", "layers.0:weight")


def test_a_missing_tensor_names_those_that_are_there(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({f"t{i}": np.ones(1, np.float32) for i in range(9)}, path)
    with pytest.raises(ProblemError, match=r"one of t0, t1, t2, t3, t4, t5 and 3 more; got w"):
        load(f"{path}:w")
    with pytest.raises(ProblemError, match="got none"):
        load(str(path))


@pytest.mark.parametrize("name", ["x.npz", "x", "x.bin:w"])
def test_another_kind_of_file_is_refused(name):
    with pytest.raises(ProblemError, match="expected FILE.npy or FILE.safetensors:TENSOR"):
        split(name)


def test_a_damaged_safetensors_file_is_refused_in_words(tmp_path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(b"12345678 not a header")
    with pytest.raises(ProblemError, match="expected a safetensors file"):
        load(f"{path}:w")


@pytest.mark.parametrize(("content", "why"), [(b"hello", "the file begins with b'hello'"), (b"", "the file begins with b''")])
def test_what_is_no_npy_is_not_called_a_pickle(tmp_path, content, why):
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(ProblemError) as caught:
        load(str(path))
    assert str(caught.value) == f"{path}: expected an array of numbers, whole, as numpy.save writes it ({why})"


def test_a_pickle_in_npy_is_refused(tmp_path):
    np.save(tmp_path / "p.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(ProblemError, match=r"p\.npy"):
        load(str(tmp_path / "p.npy"))


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    expect_folder("report", None)
    expect_folder("report", tmp_path / "new.json")
    for path, message in (
        (tmp_path / "none" / "r.json", "report: expected a file in a folder that is there, got .*; mkdir -p .*none"),
        (tmp_path, "report: expected a file, got the folder"),
    ):
        with pytest.raises(ProblemError, match=message):
            expect_folder("report", path)
    locked = tmp_path / "locked.json"
    locked.write_text("")
    locked.chmod(0o400)
    if os.access(locked, os.W_OK):
        pytest.skip("this user may write to what is read-only")
    with pytest.raises(ProblemError, match="report: expected a file that may be written, got .*locked.json"):
        expect_folder("report", locked)
