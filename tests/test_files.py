"""Readers of file formats: what they give back, and how they refuse what is damaged."""

import gzip
import io
import lzma
import tarfile

import numpy as np
import pytest

from fedlap.data.formats import cifar_arrays, idx_array, read_content, read_members
from fedlap.errors import DataError
from mirror import cifar, idx

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
COLOURS = np.random.default_rng(1).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)


def test_an_idx_array_is_read_back():
    np.testing.assert_array_equal(idx_array(idx(IMAGES), "file", 3), IMAGES)
    np.testing.assert_array_equal(idx_array(idx(np.array([3, 1])), "file", 1), [3, 1])


def test_cifar_records_are_read_back_with_channels_last():
    images, labels = cifar_arrays(cifar(COLOURS, [3, 0, 9, 1]), "file")
    np.testing.assert_array_equal(images, COLOURS)
    assert labels.tolist() == [3, 0, 9, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "some-file: not an IDX file .* expected it to start with 00 00 08 03, found nothing"),
        (b"<html>", "some-file: not an IDX file .* found 3c 68 74 6d"),
        (idx(np.array([1])), "expected it to start with 00 00 08 03, found 00 00 08 01"),
        (idx(IMAGES)[:10], "some-file: truncated header; expected 16 bytes, found 10"),
        (
            idx(IMAGES)[:-1],
            r"some-file: truncated; expected 76 bytes for an array of shape \(5, 4, 3\), found 75",
        ),
        (idx(IMAGES) + b"!", "some-file: bytes after the end; expected 76 bytes .*, found 77"),
    ],
)
def test_a_bad_idx_file_is_refused_by_name(content, message):
    with pytest.raises(DataError, match=message):
        idx_array(content, "some-file", 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "some-file: 0 bytes; expected a whole number of records of 3073 bytes, at least one"),
        (cifar(COLOURS, [0] * 4)[:-1], "some-file: 12291 bytes; expected a whole number of records"),
        (cifar(COLOURS, [0, 1, 10, 2]), "some-file, record 2: label is 10; expected 0 to 9"),
    ],
)
def test_a_bad_cifar_file_is_refused_by_name(content, message):
    with pytest.raises(DataError, match=message):
        cifar_arrays(content, "some-file")


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress])
def test_compression_is_recognised_by_the_bytes_not_the_name(tmp_path, compress):
    path = tmp_path / "content.gz"
    path.write_bytes(compress(idx(IMAGES)))
    assert read_content(path) == idx(IMAGES)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_damaged_compressed_data_is_refused_by_name(tmp_path, compress):
    whole = compress(idx(IMAGES))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for number, content in enumerate((whole[:-9], bytes(flipped))):
        path = tmp_path / f"damaged-{number}"
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"damaged-{number}: damaged or truncated compressed data"):
            read_content(path)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match=r"nowhere: cannot be read \(No such file"):
        read_content(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"nowhere: cannot be read \(No such file"):
        read_members(tmp_path / "nowhere", ["a"])


def archive(**members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"folder/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def test_members_of_an_archive_are_read_and_missing_or_damaged_ones_refused(tmp_path):
    noise = np.random.default_rng(0).bytes(50_000)
    path = tmp_path / "archive.tar.gz"
    path.write_bytes(archive(one=b"first", two=noise))
    assert read_members(path, ["folder/two", "folder/one"]) == {"folder/one": b"first", "folder/two": noise}
    with pytest.raises(DataError, match=r"archive.tar.gz: no file folder/three in this archive"):
        read_members(path, ["folder/one", "folder/three"])
    for damaged in (path.read_bytes()[:20_000], b"not an archive"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"archive.tar.gz: damaged or truncated archive"):
            read_members(path, ["folder/two"])
