"""F10: sets that do not fit into memory. What is computed part by part equals what is computed at once, and memory stays bounded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from app.cae import calibration, metrics, rows
from app.cae.calibration import ErrorSums, calibrate
from app.cae.config import make_config
from app.cae.error_maps import ScoringRule, pooled
from app.cae.large_sets import ByParts, InMemory, pixel_metrics
from app.cae.order import quantiles
from app.cae.pimo import Aupimo
from app.cae.rows import FileRows, Store
from app.cae.scoring import pooled_errors

Maps = NDArray[np.float32]
NUMBERS = ("mean", "fpr_lower", "fpr_upper", "num_points", "threshold_at_lower", "threshold_at_upper", "warnings")


@pytest.fixture(autouse=True)
def _many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PART_BYTES", 3 * 64 * 64 * 4)


def filed(array: NDArray[np.generic], folder: Path) -> FileRows:
    found = FileRows(folder, array.shape, array.dtype)
    found[:] = array
    return found


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e30])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 1), (7, 30, 17), (40, 64, 64)])
def test_quantiles_are_numpys_to_the_last_bit(tmp_path: Path, shape: tuple[int, ...], scale: float) -> None:
    values = (np.random.default_rng(3).normal(0.2, 1.0, shape) * scale).astype(np.float32)
    values[values > scale] = scale  # ties
    levels = (0.5, 0.999, 0.0, 1.0, 0.25, 0.3333)
    assert quantiles(filed(values, tmp_path), levels) == [float(value) for value in np.quantile(values, levels)]


@pytest.mark.parametrize("rule", [{}, {"pooling": "max"}, {"pooling": "mean"}, {"calibration": "global"}])
def test_calibration_from_a_file_is_the_same_to_the_last_bit(tmp_path: Path, rule: dict[str, str]) -> None:
    config = make_config(rule)
    errors = np.random.default_rng(0).gamma(2.0, 0.1, (23, 64, 64)).astype(np.float32)
    wide = errors.astype(np.float64)
    sums = ErrorSums.of(errors)
    np.testing.assert_array_equal(sums.total, wide.sum(axis=0))
    np.testing.assert_array_equal(sums.squares, np.square(wide).sum(axis=0))
    on_disk = Store(tmp_path, 0.0)
    found, scores = calibrate(ScoringRule.of(config), config, sums, errors, channels=1)
    again, same = calibrate(ScoringRule.of(config), config, sums, filed(errors, tmp_path), channels=1, zeros=on_disk.zeros)
    np.testing.assert_array_equal(scores, same)
    for name in calibration.Calibration.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(found, name), getattr(again, name), err_msg=name)
    at_once = pooled(found.applied(errors), found.rule)
    np.testing.assert_array_equal(pooled_errors(filed(errors, tmp_path), found), at_once)


def regions(random: np.random.Generator) -> tuple[Maps, NDArray[np.uint8]]:
    """40 pictures, the last 8 with one or two defects that show in the maps; scores in steps, so that there are ties."""
    maps, masks = random.normal(0, 1, (40, 64, 64)), np.zeros((40, 64, 64), np.uint8)
    for place in range(32, 40):
        for _ in range(place % 2 + 1):
            row, column = random.integers(0, 50, 2)
            masks[place, row : row + 9, column : column + 14] = 1
    return np.round(maps + 2 * masks, 2).astype(np.float32), masks


def few_marked(random: np.random.Generator) -> tuple[Maps, NDArray[np.uint8]]:
    maps, masks = regions(random)
    return maps, np.where(np.arange(64) % 2 == 0, masks, 0).astype(np.uint8)


def most_marked(random: np.random.Generator) -> tuple[Maps, NDArray[np.uint8]]:
    maps, masks = regions(random)
    masks[4:] |= 1
    masks[5:, :3] = 0
    return maps, masks


@pytest.mark.parametrize("make", [regions, few_marked, most_marked])
def test_pixel_figures_by_parts_are_those_at_once(
    tmp_path: Path, make: Callable[[np.random.Generator], tuple[Maps, NDArray[np.uint8]]]
) -> None:
    maps, masks = make(np.random.default_rng(5))
    by_parts = ByParts(filed(maps, tmp_path), filed(masks, tmp_path))
    assert by_parts.any_marked
    assert by_parts.pixel_auroc() == metrics.pixel_auroc(maps, masks)
    assert by_parts.aupro() == pytest.approx(metrics.aupro(maps, masks), abs=1e-12)
    # Rounded ones leave AUPIMO too few levels.
    maps += np.random.default_rng(6).normal(0, 1e-2, maps.shape).astype(np.float32)
    assert told(ByParts(filed(maps, tmp_path), masks).aupimo) == told(lambda: metrics.aupimo(maps, masks))


def told(compute: Callable[[], Aupimo]) -> object:
    """All that AUPIMO says, or why it is refused."""
    try:
        found = compute()
    except (ValueError, RuntimeError) as error:
        return type(error), str(error)
    return found.per_image[~np.isnan(found.per_image)].tolist(), *(getattr(found, name) for name in NUMBERS)


@pytest.mark.parametrize(("maps", "masks"), [(0.0, 0), (0.0, 1), (np.nan, 0), (np.inf, 0)])
def test_what_cannot_be_ranked_by_parts_is_refused_in_the_same_words(maps: float, masks: int) -> None:
    values, marked = np.zeros((4, 64, 64), np.float32), np.full((4, 64, 64), masks, np.uint8)
    values[1, 3, 3] = maps
    for name in ("pixel_auroc", "aupro", "aupimo"):
        said = []
        for of in (InMemory(values, marked), ByParts(values, marked)):
            with pytest.raises(ValueError) as refused:
                getattr(of, name)()
            said.append(str(refused.value))
        assert said[0] == said[1] or "infinite" in said[1]


def test_figures_are_computed_by_parts_only_where_memory_is_short() -> None:
    maps, masks = np.zeros((600, 64, 64), np.float32), np.zeros((600, 64, 64), np.uint8)  # 75 MiB
    assert isinstance(pixel_metrics(maps, masks, 80.0), InMemory)
    assert isinstance(pixel_metrics(maps, masks, 70.0), ByParts)
    assert isinstance(pixel_metrics(maps[:100], masks[:100], 0.0), InMemory)


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
import pandas as pd
from app.cae.config import make_config
from app.cae.datasets import load_pictures
from app.cae.memory import process_limit_left_mib
from app.cae.cae_pipeline import store_now
from app.cae import scoring
from app.cae.rows import chosen, save_npz
from app.cae.tables import Dataset
from app.cae.training import Throughput, TrainingBatches

picture, folder, believed = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
table = pd.DataFrame({"path": [picture] * 600, "split": ["train"] * 450 + ["test"] * 150, "label": 0, "defect": "good"})
table["masks"] = [()] * 600
taken = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) << 10
resource.setrlimit(resource.RLIMIT_DATA, (taken + (80 << 20),) * 2)
assert 70 < process_limit_left_mib() <= 80
free = believed or None
pictures = load_pictures(Dataset("same", "same", "plain folder", table), size=256, channels=3, folder=folder, available_mib=free)
config, clock = make_config({"image_size": 256, "batch_size": 4}), Throughput()
batches = TrainingBatches(chosen(pictures.images, np.arange(450)), config)
seen = [batches.batch(0, index)[0].mean() for index in range(3)]
rule, room = scoring.ScoringRule.of(config), store_now(folder).zeros
scoring.SCORE_BATCH = 4
errors = room((150, 256, 256), np.float32)
for part, found, _, _ in scoring.iter_errors(chosen(pictures.images, np.arange(150)), lambda x: x * 0.9, rule, clock):
    errors[part] = found
calibration, scores = scoring.calibrate(rule, config, None, errors, channels=3, zeros=room)
scored = scoring.score_pictures(chosen(pictures.images, np.arange(450, 600)), lambda x: x * 0.9, calibration, zeros=room)
save_npz(folder / "maps.npz", {"maps": scored.maps, "inputs": scored.inputs, "reconstructions": scored.reconstructions})
print(type(pictures.images).__name__, pictures.notes, np.isfinite(scored.scores).all(), len(scores))
"""


def test_f10_a_set_of_several_times_the_memory_limit_is_read_batched_calibrated_and_scored(tmp_path: Path) -> None:
    """600 pictures of 256 px take 150 MiB, their maps and copies 132 MiB; 80 MiB may be taken. Believed to fit, they do not."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "one.png")
    runs = [
        subprocess.run(
            [sys.executable, "-c", LIMITED, str(tmp_path / "one.png"), str(tmp_path), believed],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=Path(__file__).parents[2],
        )
        for believed in ("0", "1e6")
    ]
    assert runs[0].returncode == 0, runs[0].stderr[-2000:]
    assert "FileRows ('600 pictures of 256 px with 3 channels need 150 MiB, more than 40% of the" in runs[0].stdout
    assert runs[0].stdout.split()[-2:] == ["True", "150"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["maps.npz", "one.png"]
    assert runs[1].returncode != 0
    assert "MemoryError" in runs[1].stderr
