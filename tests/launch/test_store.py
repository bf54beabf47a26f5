"""`dgnumba.store`: whole files or none, the limit, and folders that cannot be written."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dgnumba import store
from dgnumba.store import Store

A, B, C = ("0" * 63 + digit for digit in "abc")


def age(folder, **seconds):
    """Let entries look as if they had been used so many seconds after the epoch."""
    for key, second in seconds.items():
        os.utime(folder / "entries" / ("0" * 63 + key), (second, second))


def test_what_is_put_is_got(tmp_path):
    kept = Store(tmp_path / "deep" / "folder", 1000)
    assert kept.get(A) is None
    kept.put(A, b"one")
    kept.put(A, b"two")
    assert (kept.get(A), kept.get(B), kept.sizes()) == (b"two", None, {A: 3})
    assert Store(tmp_path / "deep" / "folder", 1000).get(A) == b"two"


def test_beyond_the_limit_what_was_used_longest_ago_goes(tmp_path):
    kept = Store(tmp_path, 100)
    for key in (A, B):
        kept.put(key, bytes(40))
    age(tmp_path, a=1000, b=2000)
    assert kept.get(A) == bytes(40)  # used now
    kept.put(C, bytes(40))
    assert kept.sizes() == {A: 40, C: 40}


def test_what_was_just_written_stays_even_if_it_is_too_large(tmp_path):
    kept = Store(tmp_path, 100)
    kept.put(A, bytes(60))
    kept.put(B, bytes(200))
    assert kept.sizes() == {B: 200}


def test_no_more_goes_than_has_to(tmp_path):
    kept = Store(tmp_path, 100)
    for key in (A, B):
        kept.put(key, bytes(30))
    age(tmp_path, a=1000, b=2000)
    kept.put(C, bytes(40))
    assert kept.sizes() == {A: 30, B: 30, C: 40}
    kept.put(C, bytes(41))
    assert kept.sizes() == {B: 30, C: 41}


def test_files_that_are_no_entries_are_left_alone(tmp_path):
    kept = Store(tmp_path, 10)
    (tmp_path / "entries" / "README").write_text("not a key")
    (tmp_path / "tuned.json").write_text("{}")
    kept.put(A, bytes(20))
    assert kept.sizes() == {A: 20}
    assert kept.clear() == 1
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["README", "tuned.json"]


@pytest.mark.parametrize("key", ["", "../../" + "a" * 58, "A" * 64, "0" * 63, A + "\n"])
def test_a_key_is_64_hexadecimal_digits(tmp_path, key):
    with pytest.raises(ValueError, match="key: expected 64 hexadecimal digits"):
        Store(tmp_path, 100).put(key, b"")


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    kept = Store(tmp_path, 100)
    kept.put(A, b"old")

    def full(*names):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            kept.put(A, b"new")
    assert kept.get(A) == b"old"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_reader_never_sees_half_an_entry(tmp_path):
    """Two writers put one key over and over, and trim each other's; whoever reads gets all of one, or nothing."""
    whole = {bytes([n]) * 200_000 for n in (1, 2)}
    stop, seen = threading.Event(), []

    def write(data):
        kept = Store(tmp_path, 300_000)
        while not stop.is_set():
            kept.put(A, data)
            kept.put(B, data)

    def read():
        kept = Store(tmp_path, 300_000)
        for _ in range(300):
            seen.extend(x for x in (kept.get(A), kept.get(B)) if x is not None)

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write, data) for data in whole]
        pool.submit(read).result()
        stop.set()
        for writer in writers:
            writer.result()
    assert seen and set(seen) <= whole


def test_unfinished_files_go_when_they_can_be_nobodys(tmp_path, monkeypatch):
    kept = Store(tmp_path, 10)
    kept.put(A, b"x")
    old, new = tmp_path / "tmp" / "old", tmp_path / "tmp" / "new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1000, 1000))
    kept.put(B, bytes(20))  # beyond the limit: it tidies up
    assert list((tmp_path / "tmp").iterdir()) == [new]
    monkeypatch.setattr(store, "ABANDONED", -10)
    kept.sizes()
    assert list((tmp_path / "tmp").iterdir()) == []
