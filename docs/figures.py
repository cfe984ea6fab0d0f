"""The figures of the documentation, which `python docs/figures.py` draws; the gallery's by dmkl's own methods."""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch, Rectangle

import dmkl
from dmkl.pictures import figure_of

BLUE, SKY, RED, GRAY = "#0072b2", "#56b4e9", "#d55e00", "#8a8a8a"


def draw_all(folder: Path) -> None:
    """Draw all figures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in {"kernel_set": kernel_set, "pass": one_pass}.items():
        _save(draw(), folder / f"{name}.png")
    with tempfile.TemporaryDirectory() as place:
        for name, axes in from_digits(Path(place)).items():
            _save(figure_of(axes), folder / f"{name}.png")


def _save(figure, path: Path) -> None:
    figure.savefig(path, dpi=130, bbox_inches="tight", facecolor="white")
    plt.close(figure)


def _axes(width: float, height: float, extent: tuple[float, float]):
    figure, ax = plt.subplots(figsize=(width, height))
    ax.set(xlim=(0, extent[0]), ylim=(extent[1], 0), aspect="equal")
    ax.axis("off")
    return figure, ax


def _tiles(ax, left: float, top: float, side: float, color: str, n: int = 4, alpha: float = 0.85) -> None:
    step = side / n
    for i in range(n):
        for j in range(n):
            stored = j >= i
            look = {"facecolor": color, "alpha": alpha} if stored else {"facecolor": "none", "linestyle": ":"}
            ax.add_patch(
                Rectangle((left + j * step, top + i * step), step, step, edgecolor="white" if stored else GRAY, **look)
            )


def kernel_set():
    """Three kernels over the same samples, in tiles."""
    figure, ax = _axes(7.2, 2.6, (15.4, 5.4))
    for k, (name, color) in enumerate(zip(("expression", "methylation", "images"), (BLUE, RED, SKY), strict=True)):
        left = 1.0 + 4.9 * k
        _tiles(ax, left, 1.0, 4.0, color)
        ax.text(left + 2, 0.55, name, ha="center")
    ax.text(0.55, 3, "m samples", rotation=90, va="center", ha="center", color=GRAY)
    ax.text(3.0, 5.3, "m samples", ha="center", color=GRAY)
    return figure


def one_pass():
    """Tiles are read once, and multiplied with the columns of all folds."""
    figure, ax = _axes(8.4, 3.0, (18.8, 6.2))
    for k, color in enumerate((SKY, RED, BLUE)):
        _tiles(ax, 0.6 + 0.35 * k, 1.5 - 0.35 * k, 4.0, color, alpha=1.0)
    ax.text(3.0, 6.1, "tiles of K₁ … Kₙ, each read once", ha="center", color=GRAY)
    ax.text(6.1, 3.2, "×", fontsize=20, ha="center", va="center")
    parts = (("fold 1", BLUE), ("fold 2", RED), ("fold 3", SKY), ("permuted\nlabels", GRAY))
    for k, (name, color) in enumerate(parts):
        for column in range(3):
            ax.add_patch(Rectangle((6.8 + 1.5 * k + 0.32 * column, 1.2), 0.26, 4.0, facecolor=color, alpha=0.85))
        ax.text(7.25 + 1.5 * k, 0.6, name, ha="center", va="center", fontsize=8)
    ax.text(9.5, 6.1, "V: columns of all folds", ha="center", color=GRAY)
    ax.add_patch(FancyArrowPatch((12.9, 3.2), (14.0, 3.2), arrowstyle="-|>", mutation_scale=16, color="black"))
    for k, (_, color) in enumerate(parts):
        for column in range(3):
            ax.add_patch(Rectangle((14.3 + 1.1 * k + 0.28 * column, 1.2), 0.22, 4.0, facecolor=color, alpha=0.5))
    ax.text(16.4, 6.1, "K₁V … KₙV, added up in a tree", ha="center", color=GRAY)
    return figure


def from_digits(place: Path) -> dict:
    """Axes of a search of the whole default grid on handwritten digits, and of an analysis."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X, y = X[:300], y[:300]
    noise = np.random.default_rng(0)
    views = {"whole": X, "upper": X[:, :32], "lower": X[:, 32:], "left": X.reshape(-1, 8, 8)[:, :, :4].reshape(-1, 32)}
    views |= {f"noise {k}": noise.normal(size=(len(X), 8)) for k in (1, 2)}
    specs = [{"function": "rbf", "bandwidth": [0.5, 2]}]
    K = dmkl.build(place / "digits.zarr", views, specs, labels=y)
    found = dmkl.search(dmkl.MKFDA(), K, cv=3)
    half = np.arange(300) < 200
    model = dmkl.MKFDA(p=1.5, lam=1e-3).fit(K[half, half])
    parts = [np.random.default_rng(k).permutation(np.repeat([0, 1, 2], 100)) for k in range(3)]
    splits = [tuple(np.flatnonzero(part == k) for k in range(3)) for part in parts]
    tested = dmkl.search(dmkl.MKFDA(), K, grid={"p": [1, 1.25, 2, 4, np.inf], "lam": [1e-4, 1e-2, 1]}, cv=splits)
    grids = {"mkfda": {"p": [1, 2], "lam": [1e-3, 1e-1]}, "sum": {"lam": [1e-3, 1e-1]}, "mksvm": {"C": [1, 10]}}
    return {
        "comparison": dmkl.compare(["mkfda", "stack", "sum", "mksvm"], K, grids=grids).plot(),
        "weights_over_p": found.plot_weights_over(),
        "tested": tested.plot_scores(),
        "confusion": dmkl.plot_confusion(dmkl.assess(model, K[~half, half])),
        "weight_map": dmkl.GSMKL(n_groups=4, across=True).fit(K).plot_weight_map(),
        "scores": found.plot_scores(),
        "search_weights": found.plot_weights(),
        "alignment": dmkl.analyze(K).plot_alignment(),
        "grid": _certified(found),
        "certificate": _bounds(dmkl.MKFDA(p=1, lam=1e-4, solver="direct", tol=1e-6).fit(K)),
        "evaluation": dmkl.evaluate(dmkl.MKFDA(), K, grid={"p": [1, 2], "lam": [1e-3, 1e-1]}, baselines="rules").plot(),
        "permutations": dmkl.permutation_test(dmkl.MKFDA(), K, grid={"lam": [1e-2]}, n_permutations=99, cv=3).plot(),
        "association": dmkl.association_test(K, K.labels == K.labels[0]).plot(),
        "stability": dmkl.stability(dmkl.MKFDA(p=1), K, n_resamples=40, n_selected=3).plot(),
        "importance": dmkl.importance(dmkl.MKFDA(p=1.5), K, grid={"lam": [1e-3, 1e-1]}, cv=3).plot(),
        "contributions": dmkl.plot_contributions(found.best_.contributions(K), K.samples[7]),
    }


def _bounds(model) -> plt.Axes:
    history = model.history_
    lower = history["objective"] - history["residual_sq"]
    _, ax = plt.subplots(figsize=(6.2, 2.8), layout="constrained")
    ax.fill_between(history["iteration"], lower, history["upper"], color=SKY, alpha=0.35, linewidth=0)
    ax.plot(history["iteration"], history["upper"], color=RED, marker="o", markersize=3, label="upper bound F(α)")
    ax.plot(history["iteration"], lower, color=BLUE, marker="o", markersize=3, label="lower bound S(α, β) − B")
    ax.set(xlabel="step", ylabel="objective", xticks=history["iteration"].values)
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _certified(found) -> plt.Axes:
    rounds = found.scores
    _, ax = plt.subplots(figsize=(7.0, 2.8), layout="constrained")
    # The record of a pass has the number of points that were certified before it.
    certified = np.append(rounds["round_certified"].values[1:], np.sum(rounds["status"].values == 0))
    passes = np.arange(1, len(certified) + 1)
    ax.bar(passes, certified, color=BLUE)
    ax.axhline(rounds["status"].size, color=GRAY, linestyle=":")
    ax.set(xlabel="passes", ylabel="points certified", xticks=passes)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


if __name__ == "__main__":
    draw_all(Path(__file__).parent / "_static" / "figures")
