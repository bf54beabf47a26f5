"""``dgnumba gemm``: the right product in the file, a true report, and one plain line for whatever is refused."""

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import dgnumba
from dgnumba.cli import gpu
from dgnumba.cli.files import load
from dgnumba.testing import assert_bits_equal, exact_problem

M, N, K = 33, 130, 300


@pytest.fixture(autouse=True)
def on_a_machine_without_a_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "missing", lambda: "none is here")


@pytest.fixture
def inputs(tmp_path, rng):
    x, w = rng.standard_normal((M, K)), rng.standard_normal((N, K)).astype(np.float32)
    np.save(tmp_path / "a.npy", x.astype(np.float16))
    save_file({"w": w.astype(ml_dtypes.bfloat16), "other": w[:2]}, tmp_path / "b.safetensors")
    return tmp_path / "a.npy", f"{tmp_path}/b.safetensors:w"


def expected(inputs, dtype):
    a, b = (load(str(x)) for x in inputs)
    d = np.empty((M, N), dtype)
    return dgnumba.fp8_gemm_nt(dgnumba.per_token_cast_to_fp8(a), dgnumba.per_block_cast_to_fp8(b), d, on="host")


def test_float_files_are_quantized_multiplied_and_checked(run, inputs, tmp_path):
    code, out, err = run("gemm", *inputs, "-o", tmp_path / "d.npy")
    assert (code, err) == (0, "")
    assert_bits_equal(np.load(tmp_path / "d.npy"), expected(inputs, np.float32))
    assert f"right: all {M * N} elements within their error bound" in out
    assert "unquantized files" in out


def test_bfloat16_goes_to_a_safetensors_file(run, inputs, tmp_path):
    code, _, _ = run("gemm", *inputs, "-o", f"{tmp_path}/d.safetensors:y", "--dtype", "bfloat16")
    assert code == 0
    assert_bits_equal(load_file(tmp_path / "d.safetensors")["y"], expected(inputs, ml_dtypes.bfloat16))


def test_float16_goes_to_either_file(run, inputs, tmp_path):
    for name in ("d.npy", "d.safetensors:d"):
        code, out, _ = run("gemm", *inputs, "-o", tmp_path / name, "--dtype", "float16")
        assert code == 0 and "right: all" in out
        assert_bits_equal(load(f"{tmp_path}/{name}"), expected(inputs, np.float16))


def test_an_input_may_be_written_over(run, tmp_path, rng):
    """It is read again for the report: a file that is mapped must not be cut short under it."""
    for name, rows in (("a", 700), ("w", 33)):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((rows, 512)).astype(np.float32))
    plain = run("gemm", tmp_path / "a.npy", tmp_path / "w.npy", "-o", tmp_path / "d.npy")
    over = run("gemm", tmp_path / "a.npy", tmp_path / "w.npy", "-o", tmp_path / "a.npy")
    assert over[0] == 0 and over[1].splitlines()[-2:] == plain[1].splitlines()[-2:]
    assert_bits_equal(np.load(tmp_path / "a.npy"), np.load(tmp_path / "d.npy"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "d.npy", "w.npy"]


def test_the_emulator_makes_the_same_product(run, tmp_path, rng):
    case = exact_problem(rng, 16, 16, 256)
    arguments = files_of(tmp_path, case)
    code, out, err = run("gemm", *arguments, "--on", "emulator", "-o", tmp_path / "d.npy")
    assert (code, err) == (0, "")
    want = np.empty((16, 16), np.float32)
    dgnumba.fp8_gemm_nt(case.a, case.b, want, on="host")
    assert_bits_equal(np.load(tmp_path / "d.npy"), want)


@pytest.mark.parametrize("options", [(), ("--format", "int4_g128")], ids=["fp8", "int4"])
def test_what_takes_the_emulator_minutes_is_asked_for_twice(run, tmp_path, rng, monkeypatch, options):
    np.save(tmp_path / "a.npy", rng.standard_normal((20, 128), np.float32))
    arguments = ("gemm", tmp_path / "a.npy", tmp_path / "a.npy", "--on", "emulator", *options)
    monkeypatch.setattr("dgnumba.cli.patience.MULTIPLY", 20 * 20 * 128 - 1)
    code, out, err = run(*arguments)
    assert code == 2 and "FLOP/s" not in out
    assert "A, B: 20 x 20 x 128 would take the emulator minutes; the host gives the same numbers, or add --large" in err
    assert run(*arguments, "--large")[0] == 0
    monkeypatch.setattr("dgnumba.cli.patience.MULTIPLY", 20 * 20 * 128)
    assert run(*arguments)[0] == 0 and run(*arguments[:3], *options)[0] == 0


def files_of(folder, case):
    """The arguments for operands that are FP8 already, as a checkpoint holds them."""
    save_file({"a": case.a.data, "sfa": case.a.scale, "w": case.b.data, "w_scale_inv": case.b.scale}, folder / "m.safetensors")
    m = f"{folder}/m.safetensors"
    return [f"{m}:a", f"{m}:w", "--sfa", f"{m}:sfa", "--sfb", f"{m}:w_scale_inv"]


def test_fp8_files_come_with_their_scales(run, tmp_path, rng):
    case = exact_problem(rng, M, N, K)
    code, out, _ = run("gemm", *files_of(tmp_path, case), "-o", tmp_path / "d.npy")
    assert code == 0
    want = np.empty((M, N), np.float32)
    assert_bits_equal(np.load(tmp_path / "d.npy"), dgnumba.fp8_gemm_nt(case.a, case.b, want, on="host"))
    assert "float8_e4m3fn" in out
    assert "unquantized" not in out


@pytest.mark.parametrize("packed", [False, True], ids=["float32", "packed UE8M0"])
def test_e5m2_and_packed_scales_are_taken_as_they_are(run, tmp_path, rng, packed):
    case = exact_problem(rng, M, N, K)
    a = case.a.data.astype(np.float32).astype(ml_dtypes.float8_e5m2)
    sfa = np.ldexp(1.0, rng.integers(-2, 3, (M, 3))).astype(np.float32)
    scales = dgnumba.get_mn_major_tma_aligned_packed_ue8m0_tensor(sfa) if packed else sfa
    save_file({"a": a, "sfa": np.ascontiguousarray(scales), "w": case.b.data, "sfb": case.b.scale}, tmp_path / "m.safetensors")
    m = f"{tmp_path}/m.safetensors"
    code, out, err = run("gemm", f"{m}:a", f"{m}:w", "--sfa", f"{m}:sfa", "--sfb", f"{m}:sfb", "-o", tmp_path / "d.npy")
    assert (code, err) == (0, "") and "right: all" in out
    want = dgnumba.fp8_gemm_nt((a, sfa), case.b, np.empty((M, N), np.float32))
    assert_bits_equal(np.load(tmp_path / "d.npy"), want)


def test_a_wrong_product_is_reported_and_exits_1(run, inputs, monkeypatch):
    right = dgnumba.fp8_gemm_nt

    def wrong(a, b, d, **options):
        right(a, b, d, **options)
        d[-1, -1] *= 2
        return d

    monkeypatch.setattr(dgnumba, "fp8_gemm_nt", wrong)
    code, out, _ = run("gemm", *inputs)
    assert code == 1
    assert f"WRONG: 1 of {M * N} elements are outside their error bound, first at [32, 129]" in out


def test_no_check_reports_no_verdict(run, inputs):
    code, out, _ = run("gemm", *inputs, "--no-check")
    assert code == 0
    assert "right" not in out


@pytest.mark.parametrize("extents", [(0, 5, 128), (5, 0, 128), (5, 7, 0)])
def test_empty_files_give_an_empty_or_zero_product(run, tmp_path, extents):
    m, n, k = extents
    np.save(tmp_path / "a.npy", np.ones((m, k), np.float32))
    np.save(tmp_path / "b.npy", np.ones((n, k), np.float32))
    code, _, err = run("gemm", tmp_path / "a.npy", tmp_path / "b.npy", "-o", tmp_path / "d.npy")
    assert (code, err) == (0, "")
    assert np.array_equal(np.load(tmp_path / "d.npy"), np.zeros((m, n), np.float32))


def refusals(folder):
    np.save(folder / "t.npy", np.ones((K, N), np.float32))
    np.save(folder / "v.npy", np.ones(K, np.float32))
    np.save(folder / "u.npy", np.ones((M, K), np.uint8))
    a, b = f"{folder}/a.npy", f"{folder}/b.safetensors:w"
    return {
        "no such file": ([f"{folder}/none.npy", b], "No such file"),
        "transposed": ([a, f"{folder}/t.npy"], "B: expected [N, 300] (K as in A), got [300, 130]; B is [N, K]: transposed?"),
        "a vector": ([a, f"{folder}/v.npy"], "B: expected a matrix, got [300]"),
        "bytes without scales": ([f"{folder}/u.npy", b], "sfa: expected --sfa FILE"),
        "scales of a float": ([a, b, "--sfa", a], "sfa: expected none"),
        "scales of a wrong shape": ([f"{folder}/u.npy", b, "--sfa", f"{folder}/t.npy"], "scale: expected float32 [33, 3]"),
        "bfloat16 in npy": ([a, b, "-o", f"{folder}/d.npy", "--dtype", "bfloat16"], "cannot hold bfloat16"),
        "no such folder": ([a, b, "-o", f"{folder}/none/d.npy"], "output: expected a file in a folder that is there, got "),
        "activation alone": ([a, b, "--activation", "int8"], "activation: expected --format beside it"),
        "no GPU": ([a, b, "--on", "cuda"], "on: expected host or emulator here, got cuda: none is here"),
    }


KINDS = ["no such file", "transposed", "a vector", "bytes without scales", "scales of a float", "scales of a wrong shape", "no such folder"]


@pytest.mark.parametrize("kind", [*KINDS, "bfloat16 in npy", "activation alone", "no GPU"])
def test_a_refusal_is_one_plain_line_and_exit_code_2(run, inputs, tmp_path, kind):
    arguments, words = refusals(tmp_path)[kind]
    code, out, err = run("gemm", *arguments)
    assert code == 2
    assert "FLOP/s" not in out  # refused before the product
    assert err.count("\n") == 1
    assert err.startswith("dgnumba: ")
    assert words in err
    assert not (tmp_path / "d.npy").exists()


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_number_that_is_not_finite_is_named_with_its_place(run, tmp_path, rng, side):
    """Not the scale that it spoils, which the user never gave."""
    x = {"A": rng.standard_normal((130, 300), np.float32), "B": rng.standard_normal((130, 300), np.float32)}
    x[side][129, 258] = np.nan
    for name, array in x.items():
        np.save(tmp_path / f"{name}.npy", array)
    code, _, err = run("gemm", tmp_path / "A.npy", tmp_path / "B.npy")
    assert code == 2 and f"{side}: expected finite numbers of float32, got nan at [129, 258]" in err


@pytest.mark.parametrize("options", [(), ("--format", "int4_g128")], ids=["fp8", "int4"])
def test_a_float64_that_no_float32_holds_is_named_with_its_place(run, tmp_path, rng, options):
    x = rng.standard_normal((130, 300))
    np.save(tmp_path / "b.npy", x)
    x[129, 258] = 1e200
    np.save(tmp_path / "a.npy", x)
    code, _, err = run("gemm", tmp_path / "a.npy", tmp_path / "b.npy", *options)
    assert code == 2 and "A: expected finite numbers of float32, got 1e+200 at [129, 258]" in err


def test_a_file_of_integers_is_refused_by_its_type(run, inputs, tmp_path):
    np.save(tmp_path / "i.npy", np.ones((4, 128), np.int64))
    code, _, err = run("gemm", tmp_path / "i.npy", tmp_path / "i.npy")
    assert code == 2 and "A: expected float8_e4m3fn (or its bytes as uint8) or float8_e5m2, or float16" in err and "got int64" in err


def test_an_empty_file_is_refused(run, tmp_path):
    (tmp_path / "zero.npy").write_bytes(b"")
    code, _, err = run("gemm", tmp_path / "zero.npy", tmp_path / "zero.npy")
    assert code == 2 and "expected an array of numbers, whole" in err
