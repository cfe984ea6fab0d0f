"""Results are equal on any number of threads and workers, also on a cluster that is scaled during the search."""

import dask
import numpy as np
import pytest
from distributed import Client
from helpers.references import digits, local_cluster

import dmkl
from dmkl import progress
from dmkl.numerics.cholesky import Factor
from dmkl.passes import execute as running_module
from dmkl.passes.sums import Combination, by_factors, factor_pass

pytestmark = pytest.mark.usefixtures("rounds")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Open a set of three kernels and three classes with a given tile size and precision."""
    folder = tmp_path_factory.mktemp("anywhere")
    kernels, y = digits()

    def of(tile=20, dtype="float32"):
        path = folder / f"{tile}-{dtype}.zarr"
        if not path.exists():
            dmkl.create(path, kernels[:3, :60, :60], labels=y[:60] % 3, tile=tile, dtype=dtype)
        return dmkl.open(path)

    return of


def searched(K, solver="subspace", p=(1.0, 1.5)):
    grid = {"p": list(p), "lam": [1e-2]}
    return dmkl.search(dmkl.MKFDA(solver=solver), K, grid=grid, cv=2, refit=False, baselines="none").scores["weight"]


def learnt(K):
    """The weights of a search, and of a fit that combines kernels in passes."""
    return [searched(K), dmkl.MKFDA(p=1.5, solver="direct").fit(K).weights_]


def agree(result, expected, tolerance=1e-10):
    for one, other in zip(result, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


@pytest.fixture
def reference(opened, tasks_of_parts, monkeypatch):
    """The weights computed in one thread; passes have several tasks for each kernel."""
    monkeypatch.setattr("dmkl.passes.view._TASKS", 9)
    with dask.config.set(scheduler="synchronous"):
        return learnt(opened())


def test_threads(opened, reference):
    with dask.config.set(scheduler="threads", num_workers=8):
        agree(learnt(opened()), reference)


def has_matrices(result):
    """Whether nested results of tasks have matrices."""
    if isinstance(result, list | tuple):
        return any(map(has_matrices, result))
    return isinstance(result, np.ndarray) and result.ndim > 1


@pytest.mark.slow
@pytest.mark.usefixtures("client")
def test_processes_return_no_vectors_of_samples_but_those_of_decision_rules(opened, reference, monkeypatch):
    returned = {}

    def executed(tasks, units, what, execute=running_module.execute, **options):
        result = execute(tasks, units, what, **options)
        returned.setdefault(what.rstrip("-0123456789"), []).extend(result)
        return result

    monkeypatch.setattr(running_module, "execute", executed)
    agree(learnt(opened()), reference)
    assert {"residuals", "precondition", "choose-directions", "project"} <= set(returned)
    with_matrices = {name for name, result in returned.items() if has_matrices(result)}
    assert with_matrices == {"scores", "dual", "inverse-diagonal"}  # α is (m, classes), diagonals are (λ, m)


class Scaling(progress.Watch):
    """Changes the size of a cluster at the start of each stage."""

    def __init__(self, cluster):
        self.cluster, self.sizes = cluster, []

    def begin(self, what, total_bytes):
        self.sizes.append((1, 4, 2, 8, 3)[len(self.sizes) % 5])
        self.cluster.scale(self.sizes[-1])


@pytest.mark.slow
def test_workers_that_come_and_go(opened, reference):
    with (
        local_cluster(1, processes=False, protocol="tcp://", memory_limit=0) as cluster,
        Client(cluster) as client,
        dask.config.set({"dmkl.memory": "2GiB"}),
    ):
        with progress.watching(Scaling(cluster)) as watch:
            agree(learnt(opened()), reference)
        assert len(watch.sizes) > 10
        cluster.scale(8)
        client.wait_for_workers(8)
        agree([searched(opened())], reference[:1])


def test_factors_that_left_with_their_workers_are_made_again(opened):
    lens, rng = opened().center().lens(), np.random.default_rng(1)
    combinations, lams = [Combination(lens, rng.random(3)) for _ in range(2)], [0.1, 1.0]
    blocks = [rng.standard_normal((60, 2)) for _ in combinations]
    expected = by_factors("solve", Factor.solve, factor_pass(combinations, lams), blocks)
    with local_cluster(1, processes=False, protocol="tcp://", memory_limit=0) as cluster, Client(cluster) as client:
        factors = factor_pass(combinations, lams)
        first = [factor.held for factor in factors]
        agree(by_factors("solve", Factor.solve, factors, blocks), expected)
        assert [factor.held for factor in factors] == first
        client.cancel(first, force=True)  # as Dask does for results that were on a lost worker
        agree(by_factors("solve", Factor.solve, factors, blocks), expected)
        assert not {factor.held.key for factor in factors} & {held.key for held in first}


@pytest.mark.parametrize(
    ("solver", "dtype", "tolerance"),
    [
        ("direct", "float32", 1e-8),
        ("subspace", "float64", 1e-8),
        # Rounding in single precision depends on the tiles, and the subspace solver stops once the gap is proven.
        ("subspace", "float32", 1e-5),
    ],
)
def test_tiles_of_any_size(opened, solver, dtype, tolerance):
    first, other = (searched(opened(tile, dtype), solver, p=(1.0, 1.5, np.inf)) for tile in (20, 60))
    agree([other], [first], tolerance)
