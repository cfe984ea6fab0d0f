"""Alignment of kernels before and after centering (JMLR Figure 5).

    python pipelines/alignments.py                                            # 14 kernels of a replica of VOC2007
    python pipelines/alignments.py out/compare_models/flower17/kernels-0.zarr

Section 3.3 of Yan, Kittler, Mikolajczyk, Tahir (JMLR 13, 2012): ⟨K_i, K_j⟩ / (‖K_i‖ ‖K_j‖) for all pairs of kernels,
of unit norm in feature space (a) and then centered (b). The paper finds that centering changes alignments much, though
it does not change what a learner can do with the kernels, and that alignments, which do not depend on labels, cannot
tell how sparse the weights of a label should be. The table has the alignments of different kernels, and below it is the
rank correlation of both variants over the pairs. `experiments.py --only voc` has the norm p that each label chooses.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import replicas
from matplotlib.figure import Figure
from scipy.stats import spearmanr

import dmkl

VARIANTS = {"unit norm": ("cosine",), "unit norm, centered": ("cosine", "center")}


def draw(alignments: dict[str, np.ndarray]) -> Figure:
    """Plot the map of each variant, with its own colors, as published."""
    figure = Figure(figsize=(5.2 * len(alignments), 4.2), dpi=120, layout="constrained")
    for axes, (name, values) in zip(figure.subplots(1, len(alignments)), alignments.items(), strict=True):
        image = axes.imshow(values, cmap="viridis")
        axes.set(title=name, xlabel="kernel", ylabel="kernel")
        figure.colorbar(image, ax=axes)
    return figure


def main() -> None:
    """Compute, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", type=Path, nargs="?", help="a kernel set; default: a replica of VOC2007")
    parser.add_argument("--samples", type=int, default=800, help="samples of the replica")
    parser.add_argument("--output", type=Path, default=Path("out/alignments"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.kernels is None:
        views = replicas.pairs(options.samples, n_views=7, n_pixels=8)
        K = replicas.build(options.output / f"voc-{options.samples}.zarr", views, ("rbf", "chi2"))
    else:
        K = dmkl.open(options.kernels)
    print(K)
    analyses = {name: dmkl.analyze(K, steps=steps, targets=False) for name, steps in VARIANTS.items()}
    alignments = {name: analysis.data["alignment"].values for name, analysis in analyses.items()}
    pairs = {name: values[np.triu_indices(len(K), 1)] for name, values in alignments.items()}
    table = pd.DataFrame(pairs).agg(["min", "median", "max"]).T
    print(table.to_string(float_format="%.3f"))
    print(f"rank correlation over {len(K) * (len(K) - 1) // 2} pairs: {spearmanr(*pairs.values()).statistic:.2f}")
    draw(alignments).savefig(options.output / "alignments.png")


if __name__ == "__main__":
    main()
