"""Writing what a scoring found: figures and raw maps first, then the pictures, and `result.json` last, which says that all is there."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from app.cae.heat_maps import Scale, heat_map
from app.cae.image_files import PictureError
from app.cae.images import read_image
from app.cae.rows import save_npz
from app.core.errors import RunError
from app.runs.files import write_by, write_bytes, write_json
from app.runs.folder import RunFolder
from app.runs.results import as_type
from app.runs.score_folder import HEAT_MAPS, PREVIEWS
from app.runs.score_inputs import Reading
from app.runs.sentences import cannot_write

if TYPE_CHECKING:
    from app.cae.cae_pipeline import NewScores

PREVIEW_PX = 1024
"""Longer side of the small copies that pages show; the originals are not copied."""
PREVIEW_QUALITY = 90
NO_SPEED = "The first {first} pictures are left out of images/s, and there were no more."
FIRST_PICTURES = 32


@dataclass
class Writer:
    """One scoring's results on their way to its folder."""

    place: RunFolder
    run: RunFolder
    reading: Reading
    found: NewScores
    problems: Sequence[str]

    def write(self, progress: Callable[[int, int], None]) -> dict[str, Any]:
        """Write everything; `progress` is told of the pictures done, and may raise to stop: figures and raw maps stay then.

        Returns:
            What `result.json` holds.

        Raises:
            RunError: a file cannot be written.
        """
        rows = self._rows()
        write_bytes(self.place.path / "scores.csv", _scores_csv(rows))
        write_by(self.place.path / "maps.npz", self._save_maps)
        for name in (HEAT_MAPS, PREVIEWS):
            _make(self.place.path / name)
        scale = Scale(self.found.calibration.heat_low, self.found.calibration.heat_high)
        for place, row in enumerate(rows):
            progress(place, len(rows))
            self._write_pictures(place, row, scale)
        progress(len(rows), len(rows))
        result = self._result(rows)
        write_json(self.place.path / "result.json", result)
        return result

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for place, picture in enumerate(self.reading.kept):
            width, height = self.reading.sizes[place]
            stem = f"{place + 1:04d}-{_file_stem(picture.name)}"
            rows.append(
                {
                    "path": picture.name,
                    "score": float(self.found.scored.scores[place]),
                    "threshold": self.found.calibration.threshold,
                    "verdict": self.found.verdicts[place],
                    "width": width,
                    "height": height,
                    "heat_map": f"{HEAT_MAPS}/{stem}.png",
                    "preview": f"{PREVIEWS}/{stem}.jpg",
                }
            )
        return rows

    def _save_maps(self, path: Path) -> None:
        scored = self.found.scored
        arrays = {
            "maps": as_type(scored.maps, np.float32),
            "inputs": as_type(scored.inputs, np.uint8),
            "reconstructions": as_type(scored.reconstructions, np.uint8),
            "sizes": np.asarray(self.reading.sizes, np.int64).reshape(-1, 2),
        }
        save_npz(path, arrays)

    def _write_pictures(self, place: int, row: dict[str, Any], scale: Scale) -> None:
        coloured = Image.fromarray(heat_map(self.found.scored.maps[place], scale, (row["width"], row["height"])))
        write_by(self.place.path / row["heat_map"], lambda temp: coloured.save(temp))
        try:
            read = read_image(self.reading.kept[place].file, channels=3, size=None, full_scale=self.found.calibration.full_scale)
        except PictureError:  # removed since it was scored: its heat map is there all the same
            row["preview"] = None
            return
        small = Image.fromarray(read.pixels)
        small.thumbnail((PREVIEW_PX, PREVIEW_PX))
        write_by(self.place.path / row["preview"], lambda temp: small.save(temp, quality=PREVIEW_QUALITY))

    def _result(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        profile, calibration, speed = self.found.profile, self.found.calibration, self.found.images_per_s
        defective = sum(row["verdict"] == "defective" for row in rows)
        return {
            "run_id": self.run.run_id,
            "run_folder": str(self.run.path),
            "folder": str(self.place.path),
            "count": len(rows),
            "defective": defective,
            "good": len(rows) - defective,
            "threshold": calibration.threshold,
            "heat_low": calibration.heat_low,
            "heat_high": calibration.heat_high,
            "background_sigma": calibration.rule.outlined_sigma,
            "full_scale": calibration.full_scale,
            "selected_device": profile.selected_device,
            "path": profile.path,
            "reason": profile.reason,
            "images_per_s": speed,
            "not_available": {} if speed is not None else {"images_per_s": NO_SPEED.format(first=FIRST_PICTURES)},
            "pictures": rows,
            "problems": list(self.problems),
            "notes": self.reading.notes,
        }


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise RunError(cannot_write(folder, error)) from error


def _file_stem(name: str) -> str:
    """What a picture's files are called after: letters, digits, dots and dashes only, and not many, since bytes in names are limited."""
    return re.sub(r"[^\w.-]+", "_", Path(name.replace("\\", "/")).stem)[:30].strip("._") or "picture"


def _scores_csv(rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["path", "score", "verdict"], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
