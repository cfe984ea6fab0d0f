"""Kernel weights over half-samples in shared passes, compared with a loop of fits.

    python pipelines/stability.py flower17.npz                    # 100 halves at p = 1 and p = 1.0625
    python pipelines/stability.py flower17.npz --resamples 20 --ps 1 --selected 3

For each norm the script prints the result of `dmkl.stability`, saves its figure in --output, and compares its passes,
seconds and weights with those of a loop that fits each half separately and scores the other half. The loop fits --loop
of the halves; its passes and seconds are extrapolated to all halves. The kernels, χ² kernels of the views in the file,
are kept in --output.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.model_selection import StratifiedKFold

import dmkl


def kernels(options: argparse.Namespace) -> dmkl.KernelSet:
    """Open the kernel set of the file; build it if it does not exist."""
    store = options.output / "kernels.zarr"
    if not store.exists():
        with np.load(options.data) as data:
            names = [name for name in data.files if data[name].ndim == 2 and name != "split"]
            views = {name: data[name].astype(np.float32) for name in names}
            views = {name: view / view.sum(axis=1, keepdims=True) for name, view in views.items()}
            dmkl.build(store, views, {"function": "chi2", "bandwidth": 1.0}, labels=data["label"])
    return dmkl.open(store)


def loop(K: dmkl.KernelSet, p: float, lam: float, n: int) -> tuple[float, float, np.ndarray]:
    """Fit n halves one by one, scored on the other halves; return passes, seconds and mean weights."""
    started, passes, weights, y = time.perf_counter(), 0.0, [], K.labels
    for k in range(n):
        train, test = next(StratifiedKFold(2, shuffle=True, random_state=k).split(y, y))
        model = dmkl.MKFDA(p=p, lam=lam).fit(K[train, train])
        model.score(K[test, train])
        passes += model.n_passes_ + 1
        weights.append(model.weights_.values)
    return passes, time.perf_counter() - started, np.mean(weights, axis=0)


def main() -> None:
    """Resample, loop and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("out/stability"))
    parser.add_argument("--ps", type=float, nargs="+", default=[1.0, 1.0625])
    parser.add_argument("--lam", type=float, default=1e-2)
    parser.add_argument("--resamples", type=int, default=100)
    parser.add_argument("--selected", type=int, help="number of kernels that each half selects; default: by weight")
    parser.add_argument("--loop", type=int, default=10, help="number of fits of the loop")
    options = parser.parse_args()
    K = kernels(options)
    print(K, flush=True)
    dmkl.MKFDA().fit(K)  # warm-up: imports and compilation are not timed
    rows = []
    for p in options.ps:
        model = dmkl.MKFDA(p=p, lam=options.lam)
        result = dmkl.stability(model, K, n_resamples=options.resamples, n_selected=options.selected)
        print(
            f"\np = {p:g}\n{result}\n{result.table().to_string(index=False, float_format='{:.4f}'.format)}", flush=True
        )
        result.plot()[0].figure.savefig(options.output / f"stability-{p:g}.png", dpi=110)
        passes, seconds, mean = loop(K, p, options.lam, options.loop)
        times = options.resamples / options.loop
        difference = float(np.abs(mean - result.data["mean_weight"].values).max())
        rows.append((p, result.n_passes_, result.data.attrs["seconds"], passes * times, seconds * times, difference))
    print(f"\n{'':>8}{'shared passes':>24}{f'loop of {options.loop}, times {times:g}':>24}")
    print(f"{'p':>8}{'passes':>12}{'seconds':>12}{'passes':>12}{'seconds':>12}   mean weights differ by")
    for p, n, s, loop_n, loop_s, difference in rows:
        print(f"{p:>8g}{n:>12g}{s:>12.1f}{loop_n:>12g}{loop_s:>12.0f}   {difference:.3f}")


if __name__ == "__main__":
    main()
