"""Learn the weights of RBF kernels of the UCI multiple-features digits: six views, five bandwidths each.

    python pipelines/uci_digits.py uci_digits.npz --output out/uci_digits

The file holds views, (samples, features) each, and `label`. Each view is standardised; `uci_digits.toml`, in the folder
of this script, specifies its kernels: exp(−γ‖x − y‖²) with 1/γ from ¼ to 4 times the mean squared distance between
training samples. The split into train and test is random and stratified.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import dmkl


def main() -> None:
    """Build, fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("out/uci_digits"))
    parser.add_argument("--lam", type=float, default=1e-3)
    options = parser.parse_args()
    with np.load(options.data) as data:
        views = {name: data[name] for name in data.files if data[name].ndim == 2 and name != "split"}
        labels = data["label"]
    train, test = train_test_split(np.arange(len(labels)), test_size=0.5, stratify=labels, random_state=0)
    split = np.zeros((1, len(labels)), dtype=np.int8)
    split[0, test] = 2
    scaled = {name: StandardScaler().fit(view[train]).transform(view) for name, view in views.items()}
    store, specs = options.output / "kernels.zarr", Path(__file__).with_suffix(".toml")
    K = dmkl.build(store, scaled, specs, labels=labels, splits=split, overwrite=True)
    train, _, test = K.split(0)
    models = {f"MK-FDA p = {p:g}": dmkl.MKFDA(p, options.lam) for p in (1.0, 1 + 2**-6, 1.5, 2.0, 8.0)}
    models |= {"uniform sum": dmkl.Uniform(options.lam), "product": dmkl.Product(options.lam)}
    models |= {"single best (3-fold)": dmkl.SingleBest(options.lam)}
    print(f"{K}, λ = {options.lam:g}")
    print(f"{'model':<24}{'test':>8}{'gap':>10}{'passes':>8}{'seconds':>9}   kernels with weight")
    for title, model in models.items():
        start = time.perf_counter()
        model.fit(K[train, train])
        seconds = time.perf_counter() - start
        used = int(np.count_nonzero(model.weights_ > 1e-4))
        note = model.best_ if isinstance(model, dmkl.SingleBest) else ""
        print(
            f"{title:<24}{model.score(K[test, train]):8.4f}{model.gap_:10.1e}{model.n_passes_:8.0f}{seconds:9.1f} "
            f"  {used} {note}"
        )


if __name__ == "__main__":
    main()
