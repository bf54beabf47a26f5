"""`dgnumba.cache`: many processes, broken files, unusable directories, and keys."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from dgnumba import cache, store
from dgnumba.assemble import Cubin
from dgnumba.cache import KernelCache, key_of, pack, unpack

KEY = "0" * 64
CUBIN = Cubin(b"\x7fELF" + bytes(range(256)) * 40, "k", ("u64", "b8[128]"), 168, 0, 0, 0, 1024,
              ("a warning",), "the log é")  # fmt: skip


class Builder:
    """Builds `CUBIN`, and counts how often."""

    def __init__(self, seconds=0.0):
        self.count, self.seconds = 0, seconds

    def __call__(self):
        self.count += 1
        time.sleep(self.seconds)
        return CUBIN


def get(folder, builder=None, key=KEY):
    """What a new process does: its memory is empty. Returns the builds that it took."""
    builder = builder or Builder()
    assert KernelCache(folder).get(key, builder) == CUBIN
    return builder.count


def entry(folder):
    (found,) = (folder / "entries").iterdir()
    return found


def leftovers(folder):
    return list((folder / "tmp").iterdir())


# -- entries


def test_an_entry_gives_back_the_kernel():
    assert unpack(KEY, pack(KEY, CUBIN)) == CUBIN


def test_an_entry_cut_short_anywhere_is_none():
    whole = pack(KEY, CUBIN)
    for size in [*range(0, 60), len(whole) // 2, len(whole) - 1]:
        assert unpack(KEY, whole[:size]) is None
    assert unpack(KEY, whole + b"\0") is None


def test_an_entry_with_one_wrong_bit_is_none():
    whole = pack(KEY, CUBIN)
    for place in range(0, len(whole), 97):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        assert unpack(KEY, bytes(damaged)) is None


def test_an_entry_of_another_key_is_none():
    assert unpack("1" * 64, pack(KEY, CUBIN)) is None


# -- one process


def test_a_kernel_is_built_once_for_all_processes(tmp_path):
    assert [get(tmp_path), get(tmp_path), get(tmp_path)] == [1, 0, 0]
    assert leftovers(tmp_path) == []


def test_in_one_process_the_disk_is_read_once(tmp_path):
    kernels, builder = KernelCache(tmp_path), Builder()
    first = kernels.get(KEY, builder)
    entry(tmp_path).unlink()
    assert kernels.get(KEY, builder) is first
    assert builder.count == 1


def test_other_keys_are_other_kernels(tmp_path):
    assert [get(tmp_path), get(tmp_path, key="1" * 64), get(tmp_path)] == [1, 1, 0]


def test_a_kernel_without_a_key_is_built_every_time(tmp_path):
    kernels, builder = KernelCache(tmp_path), Builder()
    assert [kernels.get(None, builder), kernels.get(None, builder)] == [CUBIN, CUBIN]
    assert builder.count == 2


def test_F35_threads_that_ask_together_get_one_build(tmp_path):
    kernels, builder = KernelCache(tmp_path), Builder(0.1)
    start = threading.Barrier(4)

    def ask(_):
        start.wait()
        return kernels.get(KEY, builder)

    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(ask, range(4)))
    assert builder.count == 1
    assert all(cubin is got[0] for cubin in got)


def test_a_build_that_fails_is_tried_again(tmp_path):
    kernels = KernelCache(tmp_path)

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        kernels.get(KEY, fail)
    assert kernels.get(KEY, Builder()) == CUBIN


# -- F30: many processes


IN_ANOTHER_PROCESS = """
import hashlib, sys, time
from pathlib import Path
from dgnumba.assemble import Cubin
from dgnumba.cache import KernelCache
def build():
    time.sleep(0.5)
    return Cubin(bytes(range(256)) * 4000, "k")
print(hashlib.sha256(KernelCache(Path(sys.argv[1])).get("0" * 64, build).code).hexdigest())
"""


def test_F30_eight_processes_start_cold_on_one_directory(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, str(tmp_path / "new")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, env=env, **pipes) for _ in range(8)]
    said = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0] * 8, said
    assert {error for _, error in said} == {""}
    assert len({digest for digest, _ in said}) == 1
    assert len(said[0][0].strip()) == 64
    assert leftovers(tmp_path / "new") == []
    assert KernelCache(tmp_path / "new").info()["kernels"] == 1


KILLED = """
import os, sys
from pathlib import Path
from dgnumba.assemble import Cubin
from dgnumba.cache import KernelCache
os.replace = lambda *names: os._exit(9)
KernelCache(Path(sys.argv[1])).get("0" * 64, lambda: Cubin(b"half", "k"))
"""


def test_F30_a_process_killed_while_it_writes_leaves_no_entry(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=env).returncode == 9
    (left,) = leftovers(tmp_path)
    assert get(tmp_path) == 1
    assert get(tmp_path) == 0
    # What is left of the dead process goes once it can be nobody's any more.
    long_ago = time.time() - 7200
    os.utime(left, (long_ago, long_ago))
    KernelCache(tmp_path).info()
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: bytes(len(data)),
        lambda data: data[:-1] + b"!",
        lambda data: pack("1" * 64, CUBIN),
    ],
    ids=["empty", "half", "zeros", "one byte", "another key's"],
)
def test_F30_a_broken_file_is_ignored_and_written_again(tmp_path, damage):
    get(tmp_path)
    path = entry(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert get(tmp_path) == 1
    assert path.read_bytes() == whole
    assert get(tmp_path) == 0


# -- F31: no directory


def unusable(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "cache"


def test_F31_a_directory_that_cannot_be_made_costs_one_warning(tmp_path, fresh_cache):
    folder = unusable(tmp_path)
    kernels, builder = KernelCache(folder), Builder()
    with pytest.warns(RuntimeWarning, match="in memory only; set DGNUMBA_CACHE_DIR") as caught:
        for key in (KEY, KEY, "1" * 64):
            assert kernels.get(key, builder) == CUBIN
        KernelCache(folder).get(KEY, builder)
    assert len(caught) == 1
    assert builder.count == 3
    assert kernels.info()["usable"] is False
    assert kernels.clear() == 0


def test_F31_what_a_read_only_directory_holds_is_used(tmp_path, fresh_cache, monkeypatch):
    get(tmp_path)

    def refuse(*args, **options):
        raise OSError(30, "read-only")

    for name in ("utime", "unlink", "replace", "mkdir"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(store.tempfile, "mkstemp", refuse)
    with pytest.warns(RuntimeWarning, match="read-only; newly compiled kernels") as caught:
        kernels, builder = KernelCache(tmp_path), Builder()
        for key in ("1" * 64, "2" * 64, KEY):
            kernels.get(key, builder)
    assert len(caught) == 1
    assert builder.count == 2


def test_F31_no_home_means_memory_only_and_no_complaint(monkeypatch, fresh_cache):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    for name in ("DGNUMBA_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pathlib.Path.home", homeless)
    assert cache.directory() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.shared().get(KEY, Builder()) == CUBIN
    assert cache.info()["directory"] is None


# -- where, what, and how many


def test_the_directory_is_the_users_choice_then_the_systems(monkeypatch, tmp_path):
    monkeypatch.setenv("DGNUMBA_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.directory() == tmp_path / "mine"
    monkeypatch.setenv("DGNUMBA_CACHE_DIR", "")
    assert cache.directory() == tmp_path / "xdg" / "dgnumba"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.directory() == tmp_path / ".cache" / "dgnumba"


def test_info_counts_and_clear_empties(fresh_cache):
    assert cache.info() == {
        "directory": str(fresh_cache), "usable": True, "kernels": 0, "bytes": 0, "in_memory": 0,
    }  # fmt: skip
    for key in ("1" * 64, "2" * 64):
        cache.shared().get(key, Builder())
    found = cache.info()
    assert (found["kernels"], found["in_memory"]) == (2, 2)
    assert found["bytes"] == len(pack("1" * 64, CUBIN)) + len(pack("2" * 64, CUBIN))
    assert cache.clear() == 2
    assert (cache.info()["kernels"], cache.info()["in_memory"]) == (0, 0)
    assert get(fresh_cache) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_F35_a_forked_child_uses_the_cache_while_a_thread_of_the_parent_builds(fresh_cache):
    building, done = threading.Event(), threading.Event()

    def build():
        building.set()
        done.wait(10)
        return CUBIN

    thread = threading.Thread(target=cache.shared().get, args=(KEY, build))
    thread.start()
    building.wait(10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(10)  # a lock that nobody will ever release ends the child
        ok = cache.shared().get(KEY, Builder()) == CUBIN
        os._exit(0 if ok else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    done.set()
    thread.join()
    assert status == 0


# -- keys


def kernel(a):
    a[0] = 1


def other(a):
    a[0] = 2


BASE = dict(what=kernel, argtypes=("float32",), arch="sm_90a", threads=128)


@pytest.mark.parametrize(
    "change",
    [
        dict(what=other),
        dict(what=("kernel", 128)),
        dict(argtypes=("float64",)),
        dict(argtypes=("float32", "float32")),
        dict(argtypes=()),
        dict(arch="sm_80"),
        dict(threads=256),
        dict(threads=None),
    ],
)
def test_everything_that_is_asked_for_is_in_the_key(fresh_cache, change):
    assert key_of(**{**BASE, **change}) not in (key_of(**BASE), None)


def test_a_key_is_the_same_twice(fresh_cache):
    assert key_of(**BASE) == key_of(**BASE)
    assert key_of(what=("a", 128), argtypes=(), arch="x") == key_of(what=("a", 128), argtypes=(), arch="x")


@pytest.mark.parametrize(
    "name, value",
    [
        ("_sources", lambda: "changed"),
        ("_tools", lambda: ("numba 1.0",)),
        ("assembler", lambda: "ptxas 99"),
        ("_SCHEMA", 99),
    ],
)
def test_sources_and_tools_are_in_the_key(fresh_cache, monkeypatch, name, value):
    before = key_of(**BASE)
    monkeypatch.setattr(cache, name, value)
    assert key_of(**BASE) not in (before, None)


def test_numbas_settings_are_in_the_key_but_not_its_threads(fresh_cache, monkeypatch):
    before = key_of(**BASE)
    monkeypatch.setenv("NUMBA_NUM_THREADS", "3")
    assert key_of(**BASE) == before
    monkeypatch.setenv("NUMBA_OPT", "0")
    assert key_of(**BASE) != before


def test_the_digest_of_the_sources_is_of_every_file(monkeypatch, tmp_path):
    package = tmp_path / "package"
    (package / "room").mkdir(parents=True)
    for path in (package / "cache.py", package / "room" / "a.py"):
        path.write_text("1")
    monkeypatch.setattr(cache, "__file__", str(package / "cache.py"))

    def digest():
        return cache._sources.__wrapped__()

    monkeypatch.setattr(cache, "_IMPORTED", time.time() + 10)
    seen = {digest()}
    (package / "room" / "a.py").write_text("2")
    seen.add(digest())
    (package / "room" / "a.py").rename(package / "room" / "b.py")
    seen.add(digest())
    (package / "room" / "c.py").write_text("")
    seen.add(digest())
    assert len(seen) == 4
    assert digest() in seen


def test_sources_changed_after_the_import_keep_kernels_off_the_disk(monkeypatch):
    """The process runs the old code: what it compiles must not pass for the new."""
    monkeypatch.setattr(cache, "_IMPORTED", 0.0)
    assert cache._sources.__wrapped__() is None
    monkeypatch.setattr(cache, "_sources", lambda: None)
    assert key_of(**BASE) is None


def test_what_cannot_be_described_has_no_key(fresh_cache):
    assert key_of(what=object(), argtypes=(), arch="sm_90a") is None
