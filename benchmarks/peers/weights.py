"""Whether two rounds ended at the same weights."""

import numpy as np


def difference(answer, reference, start) -> dict[str, float]:
    """How far two answers are apart, as a part of how far the reference moved.

    As lengths of vectors, and as the largest single entries.
    """
    apart = np.concatenate([np.ravel(a - r) for a, r in zip(answer, reference, strict=True)]).astype(float)
    moved = np.concatenate([np.ravel(r - s) for r, s in zip(reference, start, strict=True)]).astype(float)
    if not np.isfinite(apart).all() or not moved.any():
        return {"length": np.inf, "largest": np.inf}
    return {
        "length": float(np.linalg.norm(apart) / np.linalg.norm(moved)),
        "largest": float(np.abs(apart).max() / np.abs(moved).max()),
    }


# In double precision a whole round leaves rounding of 1e-13; pfl hands differences over in single precision, 1e-7.
TOLERANCE = 1e-6


def strangers(cells) -> list[str]:
    """Those who did other work: whose round in double precision ended elsewhere."""
    return [
        f"{cell['title']}, {cell['algorithm']}: {entry['contestant']} is {entry['double']['length']:.1e} of the way off"
        for cell in cells
        for entry in cell["entries"]
        if not entry["double"]["length"] <= TOLERANCE
    ]
