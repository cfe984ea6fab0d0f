"""Training times of MK-FDA and MK-SVM over kernels and samples, on two classes and on 101 (JMLR Figures 7 and 8).

    python pipelines/training_times.py
    python pipelines/training_times.py --problems binary --kernels 2 14 --samples 200 1000      # a small one

The experiment of Yan, Kittler, Mikolajczyk, Tahir (JMLR 13, 2012, section 3.7): weights of ℓ1 and ℓ2, λ = 1 and C = 1,
kernels centered and of unit norm in feature space, first with more and more kernels, then with more and more samples.
Two classes: 1,000 samples, or 14 kernels; 101 classes: 101 samples, or 10 kernels. Here the kernels are RBF kernels of
simulated views, in which the classes differ by their means, and MK-SVM learns one β for all classes, as in the paper.
Each line has the CPU seconds of one fit on kernels in memory, the passes over the kernels, and the proven gap; both
learners stop at a gap of 1e-3. The paper stops MK-FDA by the change of its objective.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from sklearn.gaussian_process.kernels import RBF

import dmkl

CLASSES = {"binary": 2, "multiclass": 101}
SIZES = {
    "binary": {"kernels": [3, 14, 31, 96], "samples": [75, 300, 1200, 4800]},
    "multiclass": {"kernels": [2, 5, 10, 31], "samples": [101, 404, 909, 1515]},
}
OTHERS = {"binary": {"kernels": 14, "samples": 1000}, "multiclass": {"kernels": 10, "samples": 101}}
STEPS = ("center", "cosine")
TOLERANCE = 1e-3
FEATURES = 10


def learners(p: float) -> dict[str, dmkl.MKFDA | dmkl.MKSVM]:
    """Return the learners of the figures at λ = 1 and C = 1."""
    return {
        "MK-FDA": dmkl.MKFDA(p, 1.0, steps=STEPS, tol=TOLERANCE),
        "MK-SVM": dmkl.MKSVM(p, 1.0, steps=STEPS, tol=TOLERANCE, sharing="classes"),
    }


def simulated(n_classes: int, n_kernels: int, n_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return RBF kernels (kernels, samples, samples) of views whose means differ between classes, and the labels."""
    rng, labels = np.random.default_rng(0), np.arange(n_samples) % n_classes
    kernel = RBF(np.sqrt(FEATURES))
    views = (rng.standard_normal((n_samples, FEATURES)) for _ in range(n_kernels))
    kernels = (kernel(view + rng.standard_normal((n_classes, FEATURES))[labels]) for view in views)
    return np.stack([entries.astype(np.float32) for entries in kernels]), labels


def main() -> None:
    """Time the fits of all sizes, and print a line after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=CLASSES, default=list(CLASSES))
    for name in ("kernels", "samples"):
        parser.add_argument(f"--{name}", nargs="+", type=int, help=f"numbers of {name} in place of the paper's")
    options = parser.parse_args()
    warnings.filterwarnings(
        "ignore", category=dmkl.errors.LabelWarning
    )  # the paper too has a sample for each of 101 classes
    for learner in learners(2.0).values():  # imports and the compiled loops are not measured
        learner.fit(*simulated(2, 2, 40))
    print(f"{'problem':12}{'learner':9}{'p':>3}{'kernels':>9}{'samples':>9}{'CPU s':>9}{'passes':>8}{'gap':>10}")
    for problem in options.problems:
        for row, usual in SIZES[problem].items():
            for size in getattr(options, row) or usual:
                sizes = OTHERS[problem] | {row: size}
                kernels, labels = simulated(CLASSES[problem], **{f"n_{name}": sizes[name] for name in sizes})
                for p in (1.0, 2.0):
                    for name, learner in learners(p).items():
                        started = time.process_time()
                        model = learner.fit(kernels, labels)
                        print(
                            f"{problem:12}{name:9}{p:>3g}{sizes['kernels']:>9}{sizes['samples']:>9,}"
                            f"{time.process_time() - started:>9.2f}{model.n_passes_:>8}{np.max(model.gap_):>10.1e}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
