"""`dgnumba.archive`: kernels to one file and back; what is not whole, or not ours, is refused as a whole."""

import gzip
import io
import os
import tarfile

import pytest

from dgnumba import archive, cache
from dgnumba.assemble import Cubin
from dgnumba.cache import pack
from dgnumba.errors import ProblemError
from dgnumba.store import Store

A, B, C = ("0" * 63 + digit for digit in "abc")
CUBINS = {key: Cubin(b"\x7fELF" + key.encode() * 20, "k", ("u64",), 40) for key in (A, B, C)}


def fill(*keys):
    for key in keys:
        cache.shared().get(key, lambda key=key: CUBINS[key])


def move_to(monkeypatch, folder):
    monkeypatch.setenv("DGNUMBA_CACHE_DIR", str(folder))


def kept():
    store = cache.shared().store()
    return dict(store.entries())


def archive_of(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def test_kernels_are_found_where_the_file_was_imported(fresh_cache, monkeypatch, tmp_path):
    fill(A, B)
    before = kept()
    assert archive.export(tmp_path / "kernels.tar.gz") == 2
    move_to(monkeypatch, tmp_path / "elsewhere")
    fill(B, C)
    assert archive.load(tmp_path / "kernels.tar.gz") == (1, 1)
    assert kept() == before | {C: pack(C, CUBINS[C])}
    assert cache.KernelCache(tmp_path / "elsewhere").get(A, None) == CUBINS[A]
    assert archive.load(tmp_path / "kernels.tar.gz") == (0, 2)


def test_an_export_is_no_use_of_a_kernel(fresh_cache, tmp_path):
    fill(A)
    os.utime(fresh_cache / "entries" / A, (1000, 1000))
    archive.export(tmp_path / "kernels")
    assert (fresh_cache / "entries" / A).stat().st_mtime == 1000


def test_a_damaged_kernel_is_not_exported(fresh_cache, tmp_path):
    fill(A, B)
    (fresh_cache / "entries" / A).write_bytes(b"half")
    assert archive.export(tmp_path / "kernels") == 1


def whole():
    return {f"dgnumba-kernels/{key}": pack(key, cubin) for key, cubin in CUBINS.items()}


def with_one_wrong_bit(data):
    return data[:-1] + bytes([data[-1] ^ 1])


FOREIGN = {
    "another name": lambda: whole() | {"README": b"hello"},
    "another folder": lambda: whole() | {f"../{A}": pack(A, CUBINS[A])},
    "no folder": lambda: {A: pack(A, CUBINS[A])},
    "another key": lambda: whole() | {f"dgnumba-kernels/{A}": pack(B, CUBINS[B])},
    "a wrong bit": lambda: {name: with_one_wrong_bit(data) if name.endswith(C) else data for name, data in whole().items()},
    "empty": lambda: whole() | {f"dgnumba-kernels/{C}": b""},
    "no kernel": lambda: whole() | {f"dgnumba-kernels/{C}": b"#!/bin/sh"},
}


@pytest.mark.parametrize("members", FOREIGN.values(), ids=FOREIGN)
def test_a_file_with_anything_that_is_not_whole_or_not_ours_is_refused(fresh_cache, tmp_path, members):
    archive_of(tmp_path / "file", members())
    with pytest.raises(ProblemError, match="file: expected kernels as `dgnumba cache export` writes them, got '"):
        archive.load(tmp_path / "file")
    assert kept() == {}


def test_a_link_is_refused(fresh_cache, tmp_path):
    with tarfile.open(tmp_path / "file", "w:gz") as tar:
        member = tarfile.TarInfo(f"dgnumba-kernels/{A}")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    with pytest.raises(ProblemError, match="file: expected kernels"):
        archive.load(tmp_path / "file")


def test_a_file_cut_short_or_changed_anywhere_is_refused(fresh_cache, tmp_path):
    fill(A, B, C)
    archive.export(tmp_path / "file")
    cache.clear()
    data = (tmp_path / "file").read_bytes()
    assert gzip.decompress(data)
    for size in range(0, len(data) - 1, 37):
        (tmp_path / "cut").write_bytes(data[:size])
        with pytest.raises(ProblemError, match="file: "):
            archive.load(tmp_path / "cut")
    (tmp_path / "text").write_text("not an archive")
    with pytest.raises(ProblemError, match=r"file: .*text is no whole file of `dgnumba cache export`"):
        archive.load(tmp_path / "text")
    assert kept() == {}


def test_an_import_that_cannot_be_finished_leaves_nothing(fresh_cache, tmp_path, monkeypatch):
    archive_of(tmp_path / "file", whole())
    fill(B)
    put, count = Store.put, []

    def full(self, key, data):
        count.append(key)
        if len(count) == 2:
            raise OSError(28, "No space left on device")
        put(self, key, data)

    monkeypatch.setattr(Store, "put", full)
    with pytest.raises(OSError, match="No space left"):
        archive.load(tmp_path / "file")
    assert kept().keys() == {B}


def test_an_export_that_cannot_be_finished_leaves_what_was_there(fresh_cache, tmp_path, monkeypatch):
    fill(A)
    (tmp_path / "kernels").write_text("old")
    monkeypatch.setattr(tarfile.TarFile, "addfile", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        archive.export(tmp_path / "kernels")
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["kernels"]
    assert (tmp_path / "kernels").read_text() == "old"


def test_without_a_directory_there_is_nothing_to_ship(tmp_path, monkeypatch, fresh_cache):
    (tmp_path / "file").write_text("")
    move_to(monkeypatch, tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning), pytest.raises(ProblemError, match="cache: .* cannot be used; set DGNUMBA_CACHE_DIR"):
        archive.export(tmp_path / "kernels")
