"""The picture of a report: how far each output is from what it may be."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from oracles.enclosure import FINITE, Enclosure


def draw(path: Path, output: torch.Tensor, enclosure: Enclosure, title: str) -> None:
    """Write a heat map of rows x columns of [M, H] to the SVG file `path`.

    Inside the bound an output is pale; outside, its colour is the distance to the bound in parts of rms, on a
    logarithmic scale. Where finite and non-finite are confused it is black.
    """
    got, must = output.double().cpu(), enclosure.kinds.cpu() == FINITE
    center, hard = enclosure.center.cpu(), enclosure.hard.cpu()
    finite = got.isfinite()
    confused = (must & ~finite) | ((enclosure.kinds.cpu() & FINITE == 0) & finite)
    rms = float(torch.where(must, center, 0.0).square().sum() / must.sum().clamp(min=1)) ** 0.5 or 1.0
    excess = torch.where(must & finite, ((got - center).abs() - hard).clamp(min=0) / rms, 0.0).numpy()
    with mpl.rc_context({"svg.hashsalt": "difftest", "font.size": 9}):
        rows = len(excess)
        figure = Figure(figsize=(8, min(6.0, 1.6 + 0.25 * rows)), layout="constrained")
        axes = figure.subplots()
        top = max(float(excess.max()), 1e-6)
        shown = np.ma.masked_equal(excess, 0)
        image = axes.imshow(shown, aspect="auto", interpolation="nearest", norm=LogNorm(top * 1e-4, top), cmap="YlOrRd")
        axes.imshow(np.ma.masked_equal(confused.numpy(), 0), aspect="auto", interpolation="nearest", cmap="gray")
        axes.set(title=title, xlabel="column of the output", ylabel="row (token)")
        axes.set_facecolor("#eef3f0")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.colorbar(image, label="distance to the bound / rms")
        figure.savefig(path, format="svg", metadata={"Date": None})
