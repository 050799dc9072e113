"""The picture of a report: where the output is wrong, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from difftest.judging.heat import CONFUSED


def draw(path: Path, heat: Sequence[str], shape: tuple[int, int], title: str) -> None:
    """Write the heat map `heat` of an output of `shape` [M, H] to the SVG file `path`.

    Where the output is right it is pale; where it is wrong its colour is the distance to what is allowed, in parts of
    rms, on a logarithmic scale. Where finite and non-finite are confused it is black.
    """
    level = np.array([[int(sign) if sign.isdigit() else -1 for sign in line] for line in heat], dtype=float)
    confused = np.array([[sign == CONFUSED for sign in line] for line in heat])
    with mpl.rc_context({"svg.hashsalt": "difftest", "font.size": 9}):
        figure = Figure(figsize=(8, min(6.0, 2.0 + 0.25 * len(heat))), layout="constrained")
        axes = figure.subplots()
        ends = (-0.5, shape[1] - 0.5, shape[0] - 0.5, -0.5)
        place: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "extent": ends}
        shown = np.ma.masked_less(level, 0)
        image = axes.imshow(shown, vmin=0, vmax=9, cmap="YlOrRd", **place)
        axes.imshow(np.ma.masked_equal(confused, False), cmap="gray", **place)
        axes.set_title(title, wrap=True)
        axes.set(xlabel="column of the output", ylabel="row (token)")
        axes.set_facecolor("#eef3f0")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        bar = figure.colorbar(image, label="distance / rms")
        digits = range(0, 10, 3)
        bar.set_ticks(digits, labels=[f"1e{digit - 7}" for digit in digits])
        figure.savefig(path, format="svg", metadata={"Date": None})
