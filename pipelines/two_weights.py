"""The objective of generalized MKL over the weights of two kernels (Varma and Ray, ICCV 2007, Figure 1).

    python pipelines/two_weights.py                                   # two halves of the images of digits 3 and 8
    python pipelines/two_weights.py out/compare_models/flower17/kernels-0.zarr --classes 3 8

For two classes and kernels K_1 and K_2,

    T(d) = σ(d_1 + d_2) + max over 0 ≤ α ≤ C, αᵀy = 0 of  Σα − ½ uᵀ(d_1 K_1 + d_2 K_2)u,   u = α∘y.

scikit-learn's SVC computes T at each point of a grid; the figure has its contours and, as published, the surface of −T.
T is convex: the job prints by how much T in the middle of two neighbors is above their mean (at most rounding), and
compares the lowest T of the grid with T at the weights that `dmkl.GMKL` finds, which is not higher.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.svm import SVC

import dmkl


def digits(classes: list[int]) -> dmkl.KernelSet:
    """Return RBF kernels of the upper and the lower half of the images of two digits."""
    images, labels = load_digits(return_X_y=True)
    rows = np.isin(labels, classes)
    halves = {"upper half": images[rows, :32], "lower half": images[rows, 32:]}
    return dmkl.build(None, halves, {"function": "rbf", "feature": "*", "bandwidth": 1}, labels=labels[rows])


def objective(d: np.ndarray, kernels: np.ndarray, labels: np.ndarray, C: float, sigma: float) -> float:
    """Return T(d)."""
    combined = np.tensordot(d, kernels, 1)
    machine = SVC(C=C, kernel="precomputed", tol=1e-6).fit(combined, labels)
    u, rows = machine.dual_coef_[0], machine.support_
    return float(sigma * d.sum() + np.abs(u).sum() - u @ combined[np.ix_(rows, rows)] @ u / 2)


def draw(d: np.ndarray, T: np.ndarray, weights: np.ndarray, names: list[str]) -> Figure:
    """Plot contours of T with the learnt weights, and the surface of −T."""
    figure = Figure(figsize=(10, 4.4), dpi=120, layout="constrained")
    axes = figure.add_subplot(1, 2, 1)
    axes.contour(d, d, T.T, levels=np.quantile(T, np.linspace(0, 1, 25)))
    axes.plot(*weights, "k*", markersize=10)
    axes.set(title="T, and the weights of GMKL", xlabel=f"weight of {names[0]}", ylabel=f"weight of {names[1]}")
    surface = figure.add_subplot(1, 2, 2, projection="3d")
    surface.plot_surface(*np.meshgrid(d, d, indexing="ij"), -T, cmap="viridis")
    surface.set(title="−T", xlabel=names[0], ylabel=names[1])
    return figure


def main() -> None:
    """Compute T on the grid and at the learnt weights, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", type=Path, nargs="?", help="a kernel set; default: handwritten digits")
    parser.add_argument("--names", nargs=2, help="two kernels of the set, by name; default: its first two")
    parser.add_argument("--classes", type=int, nargs=2, default=[3, 8])
    parser.add_argument("-C", type=float, default=10.0)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--points", type=int, default=25, help="points of the grid in each direction, an odd number")
    parser.add_argument("--output", type=Path, default=Path("out/two_weights"))
    options = parser.parse_args()
    K = digits(options.classes) if options.kernels is None else dmkl.open(options.kernels)
    K = K.select(options.names or list(K.names[:2]))
    rows = np.flatnonzero(np.isin(K.labels, options.classes))
    K = K[rows, rows]
    kernels, labels, cost = np.asarray(K).astype(np.float64), np.asarray(K.labels), (options.C, options.sigma)
    model = dmkl.GMKL(*cost, steps=(), tol=1e-6).fit(K)
    weights = model.weights_.values
    d = np.linspace(0.1, 2, options.points) * weights.max()  # towards zero T grows to 2C times the smaller class
    T = np.array([[objective(np.array([first, second]), kernels, labels, *cost) for second in d] for first in d])
    middle = T[1:-1, 1:-1]
    neighbors = (
        T[:-2, 1:-1] + T[2:, 1:-1],
        T[1:-1, :-2] + T[1:-1, 2:],
        T[:-2, :-2] + T[2:, 2:],
        T[:-2, 2:] + T[2:, :-2],
    )
    above = max(float(((middle - both / 2) / middle).max()) for both in neighbors)
    learnt = objective(weights, kernels, labels, *cost)
    lowest = np.unravel_index(T.argmin(), T.shape)
    print(f"GMKL: d = {weights[0]:.4g}, {weights[1]:.4g}; T = {learnt:.6g}, gap {float(model.gap_):.1e}")
    print(f"grid: d = {d[lowest[0]]:.4g}, {d[lowest[1]]:.4g}; T = {T.min():.6g}, {T.min() / learnt - 1:.1e} above")
    print(f"T between two neighbors is above their mean by {max(0.0, above):.1e} of itself at most")
    options.output.mkdir(parents=True, exist_ok=True)
    draw(d, T, weights, list(K.names)).savefig(options.output / "two_weights.png")


if __name__ == "__main__":
    main()
