"""A file is whole or absent."""

from __future__ import annotations

import os

import pytest
from leyden.files import write_atomic


def test_a_file_is_written_with_its_folder_as_text_or_bytes(tmp_path):
    assert write_atomic(tmp_path / "a" / "b.txt", "größer").read_bytes() == "größer".encode()
    assert write_atomic(tmp_path / "a" / "b.txt", b"\x00").read_bytes() == b"\x00"


def test_what_cannot_be_finished_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = write_atomic(tmp_path / "file", "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_may_be_read_by_whom_the_user_lets(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("")
    assert write_atomic(tmp_path / "file", "x").stat().st_mode == plain.stat().st_mode
