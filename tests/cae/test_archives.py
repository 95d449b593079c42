"""An uploaded zip is unpacked whole, or refused whole with a reason."""

from __future__ import annotations

import io
import random
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from picture_makers import picture

from app.cae.archives import extract_zip
from app.cae.datasets import open_dataset
from app.core.errors import DataError


def png(seed: int = 0) -> bytes:
    buffer = io.BytesIO()
    picture(seed).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def packed(tmp_path: Path) -> Callable[..., Path]:
    def pack(*entries: tuple[str | zipfile.ZipInfo, bytes], name: str = "upload.zip") -> Path:
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            for entry, data in entries:
                archive.writestr(entry, data, compress_type=zipfile.ZIP_DEFLATED)
        return tmp_path / name

    return pack


def refused(file: Path, tmp_path: Path, says: str, **limits: float) -> None:
    target = tmp_path / "unpacked" / "set"
    with pytest.raises(DataError, match=says):
        extract_zip(file, target, **limits)  # type: ignore[arg-type]
    assert not target.exists()
    assert not target.parent.exists() or list(target.parent.iterdir()) == [], "nothing half-unpacked is left"
    assert not (tmp_path / "x.png").exists()


def test_a_data_set_comes_out_as_it_went_in(packed: Callable[..., Path], tmp_path: Path) -> None:
    names = ["w/train/good/0.png", "w/train/good/1.PNG", "w/test/good/0.png", "w\\test\\bad\\0.png", "w/ground_truth/bad/0_mask.png"]
    junk = ["__MACOSX/w/train/good/._0.png", "w/.DS_Store", "w/readme.txt", "w/run.sh"]
    file = packed(*((name, png(place)) for place, name in enumerate(names)), *((name, b"junk") for name in junk), ("w/empty/", b""))
    target = extract_zip(file, tmp_path / "unpacked" / "set")
    assert target == tmp_path / "unpacked" / "set"
    found = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    assert found == sorted(name.replace("\\", "/") for name in names)
    dataset = open_dataset(target)
    assert dataset.name == "w"
    assert len(dataset.table) == 4
    with file.open("rb") as stream:
        assert extract_zip(stream, tmp_path / "again").is_dir(), "an upload is a stream, not a path"


@pytest.mark.parametrize(
    "name",
    [
        "../x.png",
        "a/../../x.png",
        "/x.png",
        "//server/x.png",
        "C:\\x.png",
        "c:/x.png",
        "..\\x.png",
        "a/..",
        "a\\..\\..\\x.png",
        "bad\nname.png",
    ],
)
def test_names_that_lead_out_are_refused(packed: Callable[..., Path], tmp_path: Path, name: str) -> None:
    refused(packed(("good.png", png()), (name, png())), tmp_path, "leads out of the archive's folder")


def test_links_and_special_files_are_refused(packed: Callable[..., Path], tmp_path: Path) -> None:
    for kind, says in ((stat.S_IFLNK, "is a symbolic link"), (stat.S_IFIFO, "is a special file"), (stat.S_IFCHR, "is a special file")):
        entry = zipfile.ZipInfo("link.png")
        entry.external_attr = (kind | 0o777) << 16
        refused(packed(("good.png", png()), (entry, b"/etc/passwd")), tmp_path, rf"'link\.png' {says}")


def test_a_bomb_is_refused_before_it_unpacks(packed: Callable[..., Path], tmp_path: Path) -> None:
    file = packed(("good.png", png()), ("bomb.png", b"\0" * (40 * 2**20)))
    refused(file, tmp_path, r"'bomb\.png' unpacks to \d+ times its size, expected at most 200 times")


def test_many_small_bombs_are_refused_together(packed: Callable[..., Path], tmp_path: Path) -> None:
    file = packed(*((f"{place}.bmp", b"\0" * (5 * 2**20)) for place in range(8)))
    refused(file, tmp_path, r"upload\.zip: unpacks to \d+ times its size")


def test_an_empty_mask_packs_well_and_is_no_bomb(packed: Callable[..., Path], tmp_path: Path) -> None:
    assert extract_zip(packed(("mask.bmp", b"\0" * (3 * 2**20))), tmp_path / "out").is_dir()


def test_number_and_size_are_limited_and_the_limit_is_told(packed: Callable[..., Path], tmp_path: Path) -> None:
    file = packed(*((f"{place}.png", png(place)) for place in range(6)))
    refused(file, tmp_path, "expected at most 5 files, got 6. Type the path of a folder on the server", max_files=5)
    refused(file, tmp_path, r"expected at most 0\.05 MiB unpacked, got 0 MiB", max_total_mib=0.05)


def test_a_zip_that_declares_less_than_it_holds_is_refused(packed: Callable[..., Path], tmp_path: Path) -> None:
    file = packed(("big.png", b"\0" * 2**20))
    data = file.read_bytes()
    assert data.count((2**20).to_bytes(4, "little")) == 2
    file.write_bytes(data.replace((2**20).to_bytes(4, "little"), (1000).to_bytes(4, "little")))
    refused(file, tmp_path, "damaged or unsupported")


def test_encrypted_damaged_and_foreign_files_are_refused(packed: Callable[..., Path], tmp_path: Path) -> None:
    secret = packed(("a.png", png()), name="secret.zip")
    data = bytearray(secret.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    secret.write_bytes(data)
    refused(secret, tmp_path, r"'a\.png' is encrypted")
    broken = packed(("a.png", png()), name="broken.zip")
    data = bytearray(broken.read_bytes())
    data[200] ^= 0xFF
    broken.write_bytes(data)
    refused(broken, tmp_path, "broken.zip: expected a zip archive that can be unpacked")
    (tmp_path / "no.zip").write_bytes(b"Rar!\x1a\x07")
    refused(tmp_path / "no.zip", tmp_path, "no.zip: expected a zip archive")
    (tmp_path / "empty.zip").write_bytes(b"")
    refused(tmp_path / "empty.zip", tmp_path, "empty.zip: expected a zip archive")


@pytest.mark.parametrize("way", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_packed_data_that_make_no_sense_are_refused_however_they_are_packed(tmp_path: Path, way: int) -> None:
    with zipfile.ZipFile(tmp_path / "broken.zip", "w", way) as archive:
        archive.writestr("a.png", bytes(range(256)) * 100 + random.Random(0).randbytes(20_000))
    data = bytearray((tmp_path / "broken.zip").read_bytes())
    data[60:400] = bytes(byte ^ 0x5A for byte in data[60:400])
    (tmp_path / "broken.zip").write_bytes(data)
    refused(tmp_path / "broken.zip", tmp_path, "broken.zip: (expected a zip archive that can be unpacked|cannot be unpacked into)")


def test_a_place_that_cannot_be_made_is_one_sentence(packed: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "unpacked").write_text("a file")
    with pytest.raises(DataError, match=r"upload\.zip: cannot be unpacked into .*unpacked"):
        extract_zip(packed(("a.png", png())), tmp_path / "unpacked" / "set")


def test_an_archive_without_pictures_is_refused(packed: Callable[..., Path], tmp_path: Path) -> None:
    refused(packed(("a.txt", b"x"), ("b.heic", b"x")), tmp_path, r"expected pictures \(.*\.png.*got 2 files of other kinds")


def test_names_that_cannot_lie_together_are_refused(packed: Callable[..., Path], tmp_path: Path) -> None:
    refused(packed(("a.png", png()), ("a.png/b.png", png())), tmp_path, "cannot be unpacked into")


def test_a_target_that_is_there_is_left_alone(packed: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(DataError, match="expected a new folder"):
        extract_zip(packed(("a.png", png())), tmp_path / "set")
    assert list((tmp_path / "set").iterdir()) == []
