"""One set of rules for any picture file."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageDraw

from app.cae.image_files import MAX_PIXELS, PictureError, read_header, white_of
from app.cae.images import ALPHA_NOTE, FRAMES_NOTE, LOW_BYTES_NOTE, common_white, read_image, white_for
from app.core.errors import DataError

RAMP = np.linspace(0, 1, 64)[None, :].repeat(64, axis=0)


def levels(path: Path, **options: object) -> int:
    return len(np.unique(read_image(path, channels=1, size=None, **options).pixels))  # type: ignore[arg-type]


def smooth(width: int = 90, height: int = 60) -> np.ndarray:
    """A colour picture that lossy formats keep well."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows * 4, columns * 2.5, 255 - rows * 2 - columns], axis=2).clip(0, 255).astype(np.uint8)


# Formats


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.png", "PNG"),
        ("a.PNG", "PNG"),
        ("a.jpg", "JPEG"),
        ("a.JPeG", "JPEG"),
        ("a.bmp", "BMP"),
        ("a.TIF", "TIFF"),
        ("a.webp", "WEBP"),
        ("a.ppm", "PPM"),
        ("a.jp2", "JPEG2000"),
        ("lies.png", "JPEG"),
        ("lies.jpg", "BMP"),
        ("lies.bmp", "TIFF"),
    ],
)
def test_content_decides_not_the_name(tmp_path: Path, name: str, form: str) -> None:
    source = smooth()
    Image.fromarray(source).save(tmp_path / name, form)
    read = read_image(tmp_path / name, channels=3, size=None)
    assert read.pixels.shape == (60, 90, 3)
    assert read.original_size == (90, 60)
    assert np.abs(read.pixels.astype(int) - source).mean() < 6
    assert read_header(tmp_path / name).format == form


def test_resizing_gives_a_square_and_keeps_width_and_height_apart(tmp_path: Path) -> None:
    Image.new("RGB", (100, 40), "red").save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png", channels=3, size=64)
    assert read.pixels.shape == (64, 64, 3)
    assert read.original_size == (100, 40)


def test_shrinking_is_antialiased(tmp_path: Path) -> None:
    checker = (np.indices((256, 256)).sum(axis=0) % 2 * 255).astype(np.uint8)
    Image.fromarray(checker).save(tmp_path / "a.png")
    pixels = read_image(tmp_path / "a.png", channels=1, size=64).pixels
    assert np.abs(pixels.astype(int) - 128).max() < 8, "a fine pattern averages out instead of aliasing"


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (640, 480), (3, 500)])
def test_tiny_and_extreme_shapes(tmp_path: Path, shape: tuple[int, int]) -> None:
    Image.new("L", shape, 90).save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png", channels=3, size=64)
    assert read.pixels.shape == (64, 64, 3)
    assert (read.pixels == 90).all()
    assert read.original_size == shape


# Bit depths


@pytest.mark.parametrize("depth", [8, 10, 12, 14, 16])
@pytest.mark.parametrize("form", ["png", "tif"])
def test_a_ramp_keeps_its_levels_at_every_depth(tmp_path: Path, depth: int, form: str) -> None:
    values = np.rint(RAMP * (2**depth - 1)).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / f"a.{form}")
    assert levels(tmp_path / f"a.{form}") >= 60
    read = read_image(tmp_path / f"a.{form}", channels=1, size=None).pixels
    assert (int(read.min()), int(read.max())) == (0, 255)
    assert read_header(tmp_path / f"a.{form}").white == 2**depth - 1


def test_big_endian_and_32_bit_integers(tmp_path: Path) -> None:
    Image.fromarray(np.rint(RAMP * 65535).astype(">u2")).save(tmp_path / "big.tif")
    Image.fromarray(np.rint(RAMP * 1_000_000).astype(np.int32)).save(tmp_path / "int.tif")
    assert levels(tmp_path / "big.tif") >= 60
    assert levels(tmp_path / "int.tif") >= 60
    assert read_header(tmp_path / "int.tif").white == 2**20 - 1


@pytest.mark.parametrize(("top", "white"), [(1.0, 1.0), (0.4, 1.0), (1.2, 1.2), (255.0, 255.0), (4000.0, 4095.0), (65535.0, 65535.0)])
def test_floats_in_any_range(tmp_path: Path, top: float, white: float) -> None:
    Image.fromarray((RAMP * top).astype(np.float32)).save(tmp_path / "a.tif")
    assert read_header(tmp_path / "a.tif").white == pytest.approx(white)
    read = read_image(tmp_path / "a.tif", channels=1, size=None).pixels
    assert int(read.max()) == round(255 * top / white)
    assert levels(tmp_path / "a.tif") >= 60


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_floats_that_are_not_finite_are_refused_by_name(tmp_path: Path, bad: float) -> None:
    values = RAMP.astype(np.float32)
    values[3, 4] = bad
    Image.fromarray(values).save(tmp_path / "poison.tif")
    for read in (lambda: read_header(tmp_path / "poison.tif"), lambda: read_image(tmp_path / "poison.tif", channels=1, size=64)):
        with pytest.raises(DataError, match=r"poison\.tif.*1 values that are NaN or infinite"):
            read()


def test_negative_values_are_refused_unless_they_are_noise(tmp_path: Path) -> None:
    Image.fromarray((RAMP * 2 - 1).astype(np.float32)).save(tmp_path / "signed.tif")
    Image.fromarray((RAMP - 0.005).astype(np.float32)).save(tmp_path / "noise.tif")
    with pytest.raises(PictureError, match="negative values"):
        read_header(tmp_path / "signed.tif")
    assert int(read_image(tmp_path / "noise.tif", channels=1, size=None).pixels.min()) == 0


def test_a_dark_picture_stays_dark_among_others_but_another_depth_is_told() -> None:
    common = common_white([4095.0, 65535.0, 255.0])
    assert common == 65535.0
    assert white_for(16383.0, common) == 65535.0, "2 bits less: a dark picture of the same camera"
    assert white_for(4095.0, common) == 4095.0, "4 bits less: another depth"
    assert white_for(255.0, None) == 255.0
    assert common_white([]) is None


def test_full_scale_is_shared(tmp_path: Path) -> None:
    Image.fromarray(np.full((64, 64), 8000, np.uint16)).save(tmp_path / "a.png")
    alone = read_image(tmp_path / "a.png", channels=1, size=None).pixels
    among = read_image(tmp_path / "a.png", channels=1, size=None, full_scale=65535.0).pixels
    assert int(alone[0, 0, 0]) == round(8000 / 8191 * 255) or int(alone[0, 0, 0]) == round(8000 / 16383 * 255)
    assert int(among[0, 0, 0]) == round(8000 / 65535 * 255)


def test_white_of_has_no_gap() -> None:
    whites = [white_of(float(value), is_float=False) for value in range(0, 70_000, 7)]
    assert all(white >= value for white, value in zip(whites, range(0, 70_000, 7), strict=True))
    assert whites == sorted(whites)


def rgb16_png(values: np.ndarray) -> bytes:
    """A PNG of 16 bits a channel; values (H, W, 3) uint16."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width, _ = values.shape
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def test_16_bit_colour_is_read_and_noted_and_12_bit_in_it_refused(tmp_path: Path) -> None:
    full = np.rint(RAMP[..., None].repeat(3, axis=2) * 65535).astype(np.uint16)
    (tmp_path / "full.png").write_bytes(rgb16_png(full))
    (tmp_path / "dim.png").write_bytes(rgb16_png(full // 16))
    read = read_image(tmp_path / "full.png", channels=3, size=None)
    assert len(np.unique(read.pixels)) >= 60
    assert read.notes == (LOW_BYTES_NOTE,)
    with pytest.raises(PictureError, match=r"dim\.png.*12 bits or fewer"):
        read_image(tmp_path / "dim.png", channels=3, size=None)


# Colours


def test_palette_becomes_colours(tmp_path: Path) -> None:
    source = smooth()
    Image.fromarray(source).quantize(64).save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png", channels=3, size=None).pixels
    assert np.abs(read.astype(int) - source).mean() < 12


def test_one_transparent_palette_colour_is_a_colour(tmp_path: Path) -> None:
    image = Image.fromarray(smooth()).quantize(64)
    expected = np.asarray(image.convert("RGB"))
    image.save(tmp_path / "a.png", transparency=0)
    read = read_image(tmp_path / "a.png", channels=3, size=None)
    assert np.array_equal(read.pixels, expected)
    assert read.notes == ()


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr"])
def test_print_and_video_colours_become_rgb(tmp_path: Path, mode: str) -> None:
    source = smooth()
    Image.fromarray(source).convert(mode).save(tmp_path / "a.tif" if mode == "CMYK" else tmp_path / "a.jpg", quality=95)
    path = next(tmp_path.iterdir())
    assert np.abs(read_image(path, channels=3, size=None).pixels.astype(int) - source).mean() < 6


def test_lab_becomes_rgb(tmp_path: Path) -> None:
    source = Image.fromarray(smooth())
    lab = ImageCms.profileToProfile(source, ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB")
    assert lab is not None
    lab.save(tmp_path / "a.tif")
    assert np.abs(read_image(tmp_path / "a.tif", channels=3, size=None).pixels.astype(int) - np.asarray(source)).mean() < 8


def test_one_bit_becomes_black_and_white(tmp_path: Path) -> None:
    bits = (np.indices((20, 30)).sum(axis=0) % 2).astype(bool)
    Image.fromarray(bits).save(tmp_path / "a.png")
    assert np.array_equal(read_image(tmp_path / "a.png", channels=1, size=None).pixels[..., 0], bits * 255)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_are_shown_on_white_and_noted(tmp_path: Path, mode: str) -> None:
    image = Image.new(mode, (70, 70), (10, 10, 10, 0) if mode == "RGBA" else (10, 0))
    ImageDraw.Draw(image).rectangle((0, 0, 34, 69), fill=(10, 10, 10, 255) if mode == "RGBA" else (10, 255))
    image.save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png", channels=3, size=None)
    assert (read.pixels[:, :35] == 10).all()
    assert (read.pixels[:, 35:] == 255).all(), "what lies under transparent pixels does not leak into the data"
    assert read.notes == (ALPHA_NOTE,)
    assert read_header(tmp_path / "a.png").transparent


def test_an_opaque_alpha_channel_changes_nothing(tmp_path: Path) -> None:
    Image.fromarray(smooth()).convert("RGBA").save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png", channels=3, size=None)
    assert np.array_equal(read.pixels, smooth())
    assert read.notes == ()


def test_a_palette_with_an_alpha_table_is_composited(tmp_path: Path) -> None:
    image = Image.new("P", (64, 64), 0)
    image.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200])
    image.paste(1, (0, 0, 64, 32))
    image.save(tmp_path / "a.png", transparency=bytes([0, 255, 0]))
    pixels = read_image(tmp_path / "a.png", channels=3, size=None).pixels
    assert (pixels[:32] == (0, 200, 0)).all()
    assert (pixels[32:] == 255).all()


def test_grey_is_luma(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64), (255, 0, 0)).save(tmp_path / "a.png")
    assert (read_image(tmp_path / "a.png", channels=1, size=64).pixels == 76).all()


# Frames and orientation


@pytest.mark.parametrize(("name", "form"), [("a.tif", "TIFF"), ("a.gif", "GIF"), ("a.webp", "WEBP"), ("a.png", "PNG")])
def test_the_first_frame_counts_and_that_is_noted(tmp_path: Path, name: str, form: str) -> None:
    frames = [Image.new("RGB", (64, 64), colour) for colour in ("red", "blue", "lime")]
    frames[0].save(tmp_path / name, form, save_all=True, append_images=frames[1:])
    read = read_image(tmp_path / name, channels=3, size=64)
    assert read.pixels.shape == (64, 64, 3)
    assert np.abs(read.pixels[0, 0].astype(int) - (255, 0, 0)).max() < 8
    assert read.notes == (FRAMES_NOTE,)
    assert read_header(tmp_path / name).frames == 3


def upright_l() -> Image.Image:
    """A picture that differs under every turn and flip: bright upper left corner, darker top."""
    image = Image.new("L", (80, 60), 20)
    image.paste(120, (0, 0, 80, 15))
    image.paste(240, (0, 0, 20, 15))
    return image


_BACK = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "TIFF tiff_lzw", "WEBP"])
def test_pictures_are_turned_into_viewing_order(tmp_path: Path, orientation: int, form: str) -> None:
    back = _BACK[orientation]
    stored = upright_l() if back is None else upright_l().transpose(back)
    exif = Image.Exif()
    exif[0x0112] = orientation
    form, _, compression = form.partition(" ")
    path = tmp_path / f"a.{form.lower()}"
    stored.save(path, form, exif=exif, **({"compression": compression} if compression else {}))
    read = read_image(path, channels=1, size=None)
    assert read.original_size == (80, 60)
    assert read_header(path).size == (80, 60)
    assert np.abs(read.pixels[..., 0].astype(int) - np.asarray(upright_l())).mean() < 6


def test_deep_pictures_are_turned_too(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.rint(RAMP[:, :40] * 65535).astype(np.uint16)).save(tmp_path / "a.png", exif=exif)
    read = read_image(tmp_path / "a.png", channels=1, size=None)
    assert read.original_size == (64, 40)
    assert int(read.pixels[0, 0, 0]) == 0, "left becomes top"


def test_broken_exif_is_no_reason_to_refuse(tmp_path: Path) -> None:
    Image.fromarray(smooth()).save(tmp_path / "a.jpg", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert read_header(tmp_path / "a.jpg").orientation == 1
    assert read_image(tmp_path / "a.jpg", channels=3, size=64).pixels.shape == (64, 64, 3)


# Files that are no pictures


def encoded(form: str) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, form)
    return buffer.getvalue()


@pytest.mark.parametrize("share", [0.3, 0.7, 0.98])
@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP", "TIFF", "WEBP", "GIF", "PPM"])
def test_truncated_files_are_found_from_the_header_and_named(tmp_path: Path, form: str, share: float) -> None:
    data = encoded(form)
    path = tmp_path / f"cut.{form.lower()}"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(PictureError, match=r"cut\."):
        read_header(path)
    with pytest.raises(PictureError, match=r"cut\."):
        read_image(path, channels=3, size=64)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP", "TIFF", "WEBP", "GIF"])
def test_any_cut_or_flipped_byte_is_a_sentence_or_a_picture_never_another_exception(tmp_path: Path, form: str) -> None:
    data = encoded(form)
    random = np.random.default_rng(1)
    path = tmp_path / f"x.{form.lower()}"
    for _ in range(25):
        broken = bytearray(data)
        for place in random.integers(0, min(len(broken), 400), 3):
            broken[place] = random.integers(256)
        path.write_bytes(broken)
        for read in (lambda: read_header(path), lambda: read_image(path, channels=3, size=64)):
            with contextlib.suppress(PictureError):
                read()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"../elsewhere/picture.png", "is text, not a picture"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
        (b"\x00\x01\x02\x03" * 50, "is not a picture"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "is text"),
    ],
)
def test_what_is_no_picture_is_told_apart(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(PictureError, match=f"a.png: .*{says}"):
        read_header(tmp_path / "a.png")


def test_missing_files_and_broken_links(tmp_path: Path) -> None:
    (tmp_path / "link.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(PictureError, match="is a broken link"):
        read_header(tmp_path / "link.png")
    with pytest.raises(PictureError, match="is not there"):
        read_header(tmp_path / "gone.png")
    (tmp_path / "self.png").symlink_to("self.png")
    with pytest.raises(PictureError, match=r"self\.png"):
        read_header(tmp_path / "self.png")


def bomb_png(width: int, height: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [9_500, 13_000, 60_000])
def test_bombs_are_refused_with_the_limit(tmp_path: Path, side: int) -> None:
    (tmp_path / "bomb.png").write_bytes(bomb_png(side, side))
    for read in (lambda p: read_header(p), lambda p: read_image(p, channels=1, size=64)):
        with pytest.raises(PictureError, match=rf"bomb\.png.*decompression bomb.*{MAX_PIXELS}"):
            read(tmp_path / "bomb.png")


def test_a_picture_with_text_chunks_is_not_decoded_for_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import PngImagePlugin

    texts = PngImagePlugin.PngInfo()
    texts.add_text("Software", "camera")
    Image.fromarray(smooth()).save(tmp_path / "a.png", pnginfo=texts)

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(Image.Image, "load", forbidden)
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", forbidden)
    assert read_header(tmp_path / "a.png").size == (90, 60)


def test_the_recorded_case_files(case: Callable[[str], Path]) -> None:
    assert levels(case("D01-tiff16") / "gray16.tif") >= 60
    with pytest.raises(PictureError, match=r"float_nan\.tif"):
        read_image(case("D01-float") / "float_nan.tif", channels=1, size=64)
    for path in (case("D01") / "widget" / "train" / "good").iterdir():
        assert levels(path, full_scale=65535.0) >= 60, path.name
