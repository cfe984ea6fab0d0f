"""Linear kernels of few features over many samples: a grid is searched from sums over the samples, without kernels.

    python pipelines/thin_kernels.py --samples 100000
    python pipelines/thin_kernels.py --samples 1000000 --kernels 50 --features 100 --classes 10 --folds 5

    python pipelines/thin_kernels.py --samples 1000000 --kernels 50 --features 20 --classes 2 --loss logistic

The features are simulated: standard normal, with class-dependent means in half of the kernels. The script builds the
set in a folder, searches the default grid, refits the choice, predicts new samples from their features and evaluates by
nested cross-validation. It prints seconds and passes of each step, numbers of certified fits, and peak memory.
`--loss logistic` searches ten points with `MKLogistic`, refits the choice and predicts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import dask.array as da
import numpy as np
from measuring import measured

import dmkl


def features(m: int, n: int, d: int, n_classes: int, seed: int) -> tuple[dict[str, da.Array], np.ndarray]:
    """Return tables of d features, generated block by block when read, and the classes of the samples."""
    y = np.random.default_rng(seed).integers(0, n_classes, m)
    # The overlap of the classes does not depend on the number of features.
    scale = np.float32(0.3 * np.sqrt(120 / (n // 2 * d)))
    means = scale * np.random.default_rng(0).standard_normal((n // 2, n_classes, d), dtype=np.float32)

    def block(j: int, block_info: dict) -> np.ndarray:
        (start, stop), _ = block_info[None]["array-location"]
        values = np.random.default_rng([seed, j, start]).standard_normal((stop - start, d), dtype=np.float32)
        return values + means[j, y[start:stop]] if j < n // 2 else values

    chunks = (da.core.normalize_chunks(2**14, (m,))[0], (d,))
    tables = {f"table{j}": da.map_blocks(partial(block, j), chunks=chunks, dtype=np.float32) for j in range(n)}
    return tables, y


@contextmanager
def timed(step: str) -> Iterator[None]:
    """Print the seconds of a step."""
    started = time.monotonic()
    yield
    print(f"{step}: {time.monotonic() - started:.1f} s", flush=True)


def run(options: argparse.Namespace, folder: Path) -> None:
    """Build, search, refit, predict and evaluate."""
    size = options.kernels, options.features, options.classes
    with timed("build"):
        tables, y = features(options.samples, *size, seed=1)
        K = dmkl.build(folder / "set.zarr", tables, {"function": "linear"}, labels=y, dtype=options.dtype)
    # The grid of MK-FDA is the default one, of one chain of steps; the other has ten points.
    logistic = options.loss == "logistic"
    learner = dmkl.MKLogistic() if logistic else dmkl.MKFDA(decision=options.decision)
    grid = {"p": [1.0, 2.0], "lam": np.logspace(-4, 0, 5)} if logistic else {"p": None, "lam": None}
    with timed("search and refit"):
        grid["steps"] = [learner.steps]
        result = dmkl.search(learner, K, grid=grid, cv=options.folds, baselines="none")
    print(result.summary())
    model = result.best_
    print(f"  refit: {model.n_passes_:g} passes, gap {model.gap_:.1e}, {model.solver_}")
    with timed("predict"):
        tables, y = features(1000, *size, seed=2)
        accuracy = float(np.mean(model.predict(features=tables) == y))
    print(f"  accuracy on 1,000 new samples {accuracy:.4f}")
    if logistic:
        return
    with timed("evaluate"):
        evaluation = dmkl.evaluate(learner, K, grid={"p": [1.0, 2.0], "lam": [1e-2, 1.0]}, outer=2, inner=2)
    print(evaluation.summary())


def main() -> None:
    """Measure the run in a subprocess."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("samples", 20_000), ("kernels", 6), ("features", 40), ("classes", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--decision", choices=("means", "largest"), default="largest", help="rule of fit and search")
    parser.add_argument("--loss", choices=("square", "logistic"), default="square")
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float16", help="of the stored features")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        with TemporaryDirectory(prefix="thin-") as folder:
            run(options, Path(folder))
    else:
        measured([sys.executable, *sys.argv, "--run"])


if __name__ == "__main__":
    main()
