"""Detection quality of the autoencoder on the real sets at hand, beside two baselines computed in the same run.

    python benchmarks/quality.py [--set elpv-mono …] [--seeds 0 1] [--option optimizer=muon …] [--write docs/quality.md]

Each training is a process of its own, as from the page or the command line. The baselines see the same pictures and the same split, and
are scored with rule R (calibration per pixel, mean of the top 1 % of the map itself), as the autoencoder's error maps are in the second
column:

- *mean picture*: each picture against the mean of the training pictures;
- *PCA-128*: each picture against its projection on the first 128 principal components of the training pictures.

Both on standardised pictures. `--from FILE` writes the table again from saved figures, without training.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from sklearn.decomposition import PCA

from app.cae import metrics, scoring
from app.cae.config import CaeConfig, make_config
from app.cae.datasets import Pictures, load_pictures, open_dataset, split_validation
from app.cae.training import Floats, Throughput, standardise
from app.core.cpu_probe import cpu_facts

BALLSCREW = Path(__file__).resolve().parents[1] / "tests" / "data" / "ballscrew"
COMPONENTS = 128
FIGURES = ("image_auroc", "pixel_auroc", "aupro", "aupimo")
NAMES = {"image_auroc": "image AUROC", "pixel_auroc": "pixel AUROC", "aupro": "AUPRO", "aupimo": "AUPIMO"}
METHODS = {"cae": "autoencoder", "cae_r": "autoencoder, score R alone", "pca": "PCA-128 with R", "mean": "mean picture with R"}
"""Columns of the table, in order."""

Figures = dict[str, float | None]


def figures(rows: Any, scores: np.ndarray, maps: np.ndarray, masks: np.ndarray, has_mask: np.ndarray) -> Figures:
    """Image AUROC, and the pixel figures where there are masks (else None)."""
    found: Figures = dict.fromkeys(FIGURES)
    found["image_auroc"] = metrics.image_auroc(rows["label"].to_numpy(), scores)
    maps, masks = maps[has_mask], masks[has_mask]
    if masks.any():
        found["pixel_auroc"] = metrics.pixel_auroc(maps, masks)
        found["aupro"] = metrics.aupro(maps, masks)
        found["aupimo"] = _aupimo(maps, masks)
    return found


def _aupimo(maps: np.ndarray, masks: np.ndarray) -> float | None:
    try:
        return metrics.aupimo(maps, masks).mean
    except (ValueError, RuntimeError):  # too few normal pixels
        return None


def rule_r(config: CaeConfig) -> scoring.ScoringRule:
    """Score R: the map itself is pooled."""
    return scoring.ScoringRule.of(config.model_copy(update={"background_sigma": 0.0}))


def baseline(pictures: Pictures, config: CaeConfig, reconstruct: Callable[[Floats], Floats]) -> Figures:
    """A reconstruction in place of the network's, scored as the pipeline scores: same split, same rule R."""
    train, held_out = split_validation(pictures.rows, config.val_fraction, config.seed)
    test = np.flatnonzero(pictures.rows["split"].to_numpy() == "test")
    rule, clock = rule_r(config), Throughput()

    def nothing(_done: int) -> None:
        """No progress is shown."""

    taken_in = scoring.uses_training_pictures(len(train), len(held_out))
    sums = scoring.summed_errors(pictures.images[train], reconstruct, rule, clock, nothing) if taken_in else None
    errors = scoring.collected_errors(pictures.images[held_out], reconstruct, rule, clock, nothing)
    calibration, _ = scoring.calibrate(rule, config, sums, errors, channels=pictures.channels, full_scale=pictures.full_scale)
    scored = scoring.score_pictures(pictures.images[test], reconstruct, calibration)
    return figures(pictures.rows.iloc[test], scoring.pooled(scored.maps, rule), scored.maps, pictures.masks[test], pictures.has_mask[test])


def baselines(config: CaeConfig) -> dict[str, Figures]:
    """Figures of both baselines for the data set and seed of `config`."""
    pictures = load_pictures(open_dataset(config.data, seed=config.seed), size=config.image_size, channels=config.channels)
    train, _ = split_validation(pictures.rows, config.val_fraction, config.seed)
    good = standardise(pictures.images[train], config.standardise)
    mean = good.mean(axis=0, dtype=np.float64).astype(np.float32)
    flat = good.reshape(len(good), -1)
    pca = PCA(min(COMPONENTS, len(flat) - 1), svd_solver="randomized", random_state=config.seed).fit(flat)

    def projected(batch: Floats) -> Floats:
        wide = batch.reshape(len(batch), -1)
        return np.asarray(pca.inverse_transform(pca.transform(wide)), np.float32).reshape(batch.shape)

    return {
        "mean": baseline(pictures, config, lambda batch: np.broadcast_to(mean, batch.shape)),
        "pca": baseline(pictures, config, projected),
    }


def trained(config: CaeConfig, runs_dir: Path) -> dict[str, Any]:
    """Figures of a training in a process of its own, as JSON types, with those of its maps pooled by score R alone."""
    given = {name: value for name, value in config.model_dump(exclude_unset=True).items() if value is not None}
    words = {True: "yes", False: "no"}
    options = [f"--{name.replace('_', '-')}={words[value] if isinstance(value, bool) else value}" for name, value in given.items()]
    command = [sys.executable, "-m", "app.main", "cae", "--json", "--runs-dir", str(runs_dir), *options]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(ended.stdout)
    folder = Path(told["run_folder"])
    with np.load(folder / "maps.npz", allow_pickle=False) as arrays:
        maps = arrays["maps"]
    found = {name: told["metrics"].get(name) for name in FIGURES}
    import pandas as pd

    table = pd.read_csv(folder / "scores.csv")
    labels = table.loc[table["split"] == "test", "label"].to_numpy()
    by_map = metrics.image_auroc(labels, scoring.pooled(maps, rule_r(config))) if len(maps) == len(labels) else None
    return {
        "cae": found,
        "cae_r": {**found, "image_auroc": by_map},
        "epochs": told["epochs"],
        "train_images_per_s": told["train_images_per_s"],
        "path": told["path"],
        "synthetic_auroc": told["metrics"].get("synthetic_auroc"),
    }


def measured(sets: list[str], seeds: list[int], options: dict[str, Any], runs_dir: Path) -> list[dict[str, Any]]:
    """One entry a set and seed: {set, seed, methods: {method: figures}, …}."""
    entries = []
    for name in sets:
        for seed in seeds:
            config = make_config({**options, "data": name, "seed": seed})
            entry = {"set": _label(name), "seed": seed, "methods": baselines(config)}
            told = trained(config, runs_dir)
            entry["methods"] |= {"cae": told.pop("cae"), "cae_r": told.pop("cae_r")}
            entries.append(entry | told)
            shown = {method: found["image_auroc"] for method, found in entry["methods"].items()}
            print(f"{entry['set']} seed {seed}: " + ", ".join(f"{METHODS[key]} {value:.3f}" for key, value in shown.items()), flush=True)
    return entries


def _label(name: str) -> str:
    return name if name in ("elpv-mono", "elpv-poly", "synthetic") else Path(name).name


def table(entries: list[dict[str, Any]]) -> str:
    """The entries as Markdown: a block for each figure that any set has, mean over the seeds with the least and the most."""
    blocks = []
    for figure in FIGURES:
        rows = []
        for name in dict.fromkeys(entry["set"] for entry in entries):
            cells = [
                _cell([entry["methods"][method][figure] for entry in entries if entry["set"] == name])
                for method in METHODS
                if figure == "image_auroc" or method != "cae_r"
            ]
            if any(cell != "–" for cell in cells):
                rows.append(f"| {name} | " + " | ".join(cells) + " |")
        if rows:
            heads = [title for method, title in METHODS.items() if figure == "image_auroc" or method != "cae_r"]
            head = f"| {NAMES[figure]} | " + " | ".join(heads) + " |\n|" + "---|" * (len(heads) + 1)
            blocks.append("\n".join([head, *rows]))
    return "\n\n".join(blocks)


def _cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{fmean(known):.3f} ({min(known):.3f} to {max(known):.3f})" if len(known) > 1 else f"{known[0]:.3f}"


BEGIN, END = "<!-- written by benchmarks/quality.py: begin -->", "<!-- written by benchmarks/quality.py: end -->"


def written_into(text: str, block: str) -> str:
    """`text` with `block` between the two marks.

    Raises:
        SystemExit: the marks are not there.
    """
    if BEGIN not in text or END not in text:
        raise SystemExit(f"--write: expected a file with the lines {BEGIN!r} and {END!r}.")
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{block}\n{rest[rest.index(END) :]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--set", action="append", dest="sets", metavar="DATA", help="data set or folder; again for more (default: all at hand)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--preset", default="recommended")
    parser.add_argument("--steps", type=int, default=None, help="optimizer steps in place of the preset's")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the autoencoder; again for more")
    parser.add_argument("--save", type=Path, default=None, help="also write the figures as JSON")
    parser.add_argument("--from", type=Path, nargs="+", default=None, dest="saved", help="figures saved before, in place of training")
    parser.add_argument("--write", type=Path, default=None, help="put the table between the marks of this Markdown file")
    args = parser.parse_args()
    sets = args.sets or ["elpv-mono", "elpv-poly", str(BALLSCREW)]
    options: dict[str, Any] = {"preset": args.preset, "device": "cpu"} | ({"steps": args.steps} if args.steps else {})
    options |= dict(each.split("=", 1) for each in args.option)
    if args.saved:
        entries = [entry for path in args.saved for entry in json.loads(path.read_text(encoding="utf-8"))]
    else:
        with tempfile.TemporaryDirectory() as place:
            entries = measured(sets, args.seeds, options, Path(os.environ.get("TWOPATH_RUNS_DIR") or place))
        if args.save:
            args.save.write_text(json.dumps(entries, indent=1), encoding="utf-8")
    cpu = cpu_facts()
    seeds = ", ".join(str(seed) for seed in sorted({entry["seed"] for entry in entries}))
    block = (
        f"Preset *{args.preset}*, seeds {seeds}; mean (least to most). "
        f"{cpu.name or 'CPU'}, {cpu.usable_cores} usable cores.\n\n{table(entries)}"
    )
    print(block)
    if args.write:
        args.write.write_text(written_into(args.write.read_text(encoding="utf-8"), block), encoding="utf-8")


if __name__ == "__main__":
    main()
