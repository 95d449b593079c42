"""What a run says of its pictures."""

from __future__ import annotations

from typing import Any

from app.cae.config import CaeConfig
from app.cae.pictures import Pictures
from app.cae.tables import Dataset, split_digest, split_validation


def dataset_summary(dataset: Dataset, pictures: Pictures, config: CaeConfig) -> dict[str, Any]:
    """What was found and read, as JSON types; `split_digest` identifies the split for repeating the run."""
    rows = pictures.rows
    train, held_out = split_validation(rows, config.val_fraction, config.seed)
    test = rows[rows["split"] == "test"]
    return {
        "name": dataset.name,
        "source": dataset.source,
        "layout": dataset.layout,
        "image_size": config.image_size,
        "channels": pictures.channels,
        "pictures": len(rows),
        "train": len(train),
        "held_out": len(held_out),
        "test_good": int((test["label"] == 0).sum()),
        "test_defective": int((test["label"] == 1).sum()),
        "defects": {str(name): int(count) for name, count in test["defect"][test["label"] == 1].value_counts().items()},
        "test_with_mask": int(pictures.has_mask[test.index].sum()),
        "epochs": config.epochs_for(len(train)),
        "split_digest": split_digest(dataset),
        "problems": list(dict.fromkeys((*dataset.problems, *pictures.problems))),
        "notes": list(dict.fromkeys((*dataset.notes, *pictures.notes))),
    }
