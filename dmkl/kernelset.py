"""Kernel sets as users work with them: created, opened, and lazy, labeled and indexed like a NumPy array."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from dask.base import tokenize
from dask.delayed import Delayed

from dmkl.arrays import Array, Index
from dmkl.errors import InputError, SampleOrderWarning, refuse, warn
from dmkl.files.urls import as_given
from dmkl.inputs.kernels import as_source
from dmkl.inputs.label_tables import given_data, is_labelled_mask, matched
from dmkl.inputs.labels import Labels, labels_in
from dmkl.names import Join, sample_names, unique_names
from dmkl.numerics.alignment import sign_probes
from dmkl.numerics.covariates import Covariates, residualize
from dmkl.numerics.semidefinite import Repair
from dmkl.numerics.steps import NORMALIZATIONS, STEPS, Fitted, Residualize, Step, Weighing, as_steps
from dmkl.passes import statistics
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.composed import Composed, GeometricMean
from dmkl.passes.elements import view_blocks
from dmkl.passes.memory import persisted
from dmkl.passes.run import pass_graph
from dmkl.passes.sweep import Columns, Want
from dmkl.passes.view import Lens, View
from dmkl.store.ingest import ingest
from dmkl.store.memory import MemorySet
from dmkl.store.reader import StoreReader
from dmkl.store.zarr_groups import Location
from dmkl.variables import describe

if TYPE_CHECKING:
    import dask.array as da
    import xarray as xr


class Split(NamedTuple):
    """Positions of the samples in the parts of a predefined split."""

    train: Index
    validation: Index
    test: Index


class KernelSet:
    """n kernel matrices over the same samples, on disk, with lazily applied steps.

    `dmkl.open`, `dmkl.create` and `dmkl.build` return one. Nothing is read until a result is computed, and nothing is
    copied on disk: indexing, `select`, `center` and `normalize` return new views of the same store.

    ``K[rows, cols]`` takes integers, slices, boolean masks and integer arrays, and always keeps both axes:
    ``K[train, train]`` is a square set, ``K[test, train]`` has the test samples as rows. Steps apply to the current
    view: ``K[test, train].center()`` centers test rows by the training samples' means, ``K.center()[test, train]`` by
    the means over all samples.
    """

    def __init__(
        self,
        view: View,
        *,
        labels: Array | None = None,
        tasks: Array | None = None,
        splits: Array | None = None,
        provenance: Sequence[dict[str, Any]] = (),
        fitted: Fitted | None = None,
    ) -> None:
        self._view, self._fitted = view, fitted
        self._labels, self._tasks, self._splits, self._provenance = labels, tasks, splits, provenance
        self._labels_given = ""  # the place of other labels than the stored ones; "..." if they were in memory
        self._label_notes: tuple[str, ...] = ()  # on choices of their reader that could have been otherwise

    # --- properties ----------------------------------------------------------------------------------------------

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The kernels' names."""
        return tuple(self._view.source.names[k] for k in self._view.kernels)

    @property
    def samples(self) -> Array:
        """Names of the row samples."""
        return self._view.source.samples[self._view.final_positions()[0]]

    @property
    def train_samples(self) -> Array:
        """Names of the column samples."""
        return self._view.source.train_samples[self._view.final_positions()[1]]

    @property
    def individuals(self) -> Array:
        """Names of the samples of which the rows are records (see `repeat`), which folds keep together."""
        source = self._view.source
        return np.asarray(getattr(source, "individuals", source.samples)[self._view.final_positions()[0]])

    @property
    def labels(self) -> Array | None:
        """Labels of the row samples, (rows,) or (rows, tasks), NaN where unknown; None if the store has none."""
        return None if self._labels is None else self._labels[self._view.final_positions()[0]]

    @property
    def tasks(self) -> Array | None:
        """Names of the tasks or targets of labels with several columns."""
        return self._tasks

    @property
    def splits(self) -> Array | None:
        """The predefined splits of the row samples, (split, rows): 0 train, 1 validation, 2 test, -1 in no part."""
        return None if self._splits is None else self._splits[:, self._view.final_positions()[0]]

    def split(self, number: int = 0) -> Split:
        """Positions of the training, validation and test rows of a predefined split; InputError if there is none."""
        splits = self.splits
        if splits is None or not 0 <= number < len(splits):
            refuse(f"there is no split {number}; this set has {0 if splits is None else len(splits)}")
        return Split(*(np.flatnonzero(splits[number] == part) for part in (0, 1, 2)))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(kernels, rows, columns)."""
        return self._view.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision in which the kernels are stored."""
        return self._view.source.dtype

    @property
    def is_square(self) -> bool:
        """Whether rows and columns are the same samples in the same order."""
        return self._view.is_square

    @property
    def provenance(self) -> list[dict[str, Any]]:
        """How each kernel was made."""
        if len(self._provenance) != len(self._view.source.names):
            return [{"name": name} for name in self.names]
        return [self._provenance[k] for k in self._view.kernels]

    @property
    def content_id(self) -> str:
        """Identifies the stored kernels, independently of the view."""
        return self._view.source.content_id

    @property
    def origin(self) -> dict[str, Any]:
        """Facts about the kernels for results: set, the place as given; labels, that of other labels; and source.

        n_samples is the number of samples of the set. The source is "whole" if all kernels and samples of the set are
        used unchanged, "part" if some of them are, and "changed" if steps came before. The place is empty for sets in
        memory; that of labels in memory is "...".
        """
        view = self._view
        every, source = np.arange(len(view.source.samples)), "changed" if view.is_transformed else "part"
        if source == "part" and len(view.kernels) == len(view.source.names):
            source = "whole" if all(np.array_equal(at, every) for at in view.final_positions()) else source
        place = {"set": getattr(view.source, "given", ""), "labels": self._labels_given}
        return {**place, "source": source, "n_samples": len(every)}

    @property
    def bytes_per_pass(self) -> int:
        """Bytes that one pass over this view reads."""
        return self._view.bytes_per_pass

    @property
    def view(self) -> View:
        """The chosen kernels, rows and columns of the store, and the steps (for solvers)."""
        return self._view

    def __len__(self) -> int:
        return self.shape[0]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "fit":  # scikit-learn looks for it before it counts the samples of an argument
                refuse(
                    "a kernel set is given to dmkl.search(dmkl.MKFDA(), K, y), dmkl.evaluate, or the fit of a learner; "
                    "GridSearchCV, cross_val_score and other functions of scikit-learn would take kernels for samples"
                )
            msg = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(msg)

    def __repr__(self) -> str:
        n, rows, cols = self.shape
        steps = [step.name for step in self._view.steps]
        more = f", {' → '.join(steps)}" if steps else ""
        return f"<KernelSet {n} kernels, {rows} × {cols}, {self.dtype}{more}>"

    def _repr_html_(self) -> str:
        coords = {"kernel": list(self.names), "sample": self.samples}
        if self.tasks is not None:
            coords["task"] = list(self.tasks)
        labels = self.labels
        variables = {} if labels is None else {"label": (("sample", "task")[: labels.ndim], labels)}
        import xarray as xr

        dataset = describe(xr.Dataset(variables, coords, {"dtype": str(self.dtype), "shape": self.shape}))
        return f"<div>{html.escape(repr(self))}</div>{dataset._repr_html_()}"

    def __dask_tokenize__(self) -> Any:
        return self._view

    # --- views ---------------------------------------------------------------------------------------------------

    def _with(self, view: View, fitted: Fitted | None = None) -> KernelSet:
        stored = {"labels": self._labels, "tasks": self._tasks, "splits": self._splits}
        K = KernelSet(view, **stored, provenance=self._provenance, fitted=fitted)
        K._labels_given = self._labels_given
        return K

    def __getitem__(self, key: Any) -> KernelSet:
        if not isinstance(key, tuple) or len(key) != 2:
            refuse("a kernel set is indexed by rows and columns, K[rows, cols]; choose kernels with select(names)")
        _, n_rows, n_cols = self.shape
        rows = positions(self._in_order(key[0], "row"), n_rows, "row")
        same = key[0] is key[1] and n_rows == n_cols
        cols = rows if same else positions(self._in_order(key[1], "column"), n_cols, "column")
        return self._with(self._view.taking(rows, cols))

    def _in_order(self, key: Any, what: str) -> Any:
        """A mask with names of samples in the order of the rows or columns; any other index as it is."""
        if not is_labelled_mask(key):
            return key
        samples = self.samples if what == "row" else self.train_samples
        return matched(f"the {what} mask", key, samples, named=self.view.has_names).values

    def select(self, names: str | int | slice | Iterable[str | int]) -> KernelSet:
        """Some of the kernels, by name or position, in this order; InputError if one is missing, or none is chosen."""
        chosen = named_positions(names, self.names, "kernel")
        if not len(chosen):
            refuse("select() must keep at least one kernel")
        view = replace(self._view, kernels=self._view.kernels[chosen])
        return self._with(view, None if self._fitted is None else self._fitted.select(chosen))

    def center(self) -> KernelSet:
        """Center in feature space: K ↦ (I − 11ᵀ/m) K (I − 11ᵀ/m), by the means over the column samples."""
        return self.with_steps("center")

    def normalize(self, how: str = "trace") -> KernelSet:
        """Scale the kernels by statistics of the column samples.

        "trace": unit trace, K / tr K. "cosine": unit norm in feature space, K_ij / √(K_ii K_jj). "multiplicative": unit
        variance in feature space, K / (tr K/m − 1ᵀK1/m²). InputError for any other word; a kernel that cannot be
        normalized, such as a constant one, raises an error when a result is computed.
        """
        if how not in NORMALIZATIONS:
            refuse(f"normalize takes 'trace', 'cosine' or 'multiplicative', got {how!r}")
        return self.with_steps(how)

    def with_steps(self, steps: str | Iterable[str | Covariates] | None, weights: Array | None = None) -> KernelSet:
        """The set after some steps, in the order given.

        Parameters
        ----------
        steps
            "center" (see `center`), "trace", "cosine" and "multiplicative" (see `normalize`): a sequence of names such
            as ("cosine", "center"), or a comma-separated text. Learners, `dmkl.search` and `dmkl.analyze` take steps in
            the same form. InputError for any other name.
        weights
            (columns,), positive: sample weights of the column samples in means and traces, as if a sample occurred that
            many times; all equal if None. InputError for others.
        """
        if weights is not None:
            weights = np.asarray(weights, dtype=np.float64)
            if weights.shape != self.shape[2:] or not np.all((weights > 0) & (weights < np.inf)):
                refuse(f"weights must be positive numbers, one for each of the {self.shape[2]} columns, got {weights}")
        K = self
        for given in as_steps(steps):
            if isinstance(given, Covariates):
                cols = given.of(self.train_samples)
                K = K._step(Residualize(given, cols, cols if self.is_square else given.of(self.samples), weights))
            else:
                step: Any = STEPS[given]
                K = K._step(replace(step, weights=weights) if weights is not None and step.needs_training else step)
        return K

    def residualize(self, Z: Any) -> KernelSet:
        """Remove the effect of covariates: K ↦ PKP with P = I − Z̃(Z̃ᵀZ̃)⁻¹Z̃ᵀ, Z̃ = [1, Z] over the column samples.

        Z is an argument or a result of `dmkl.residualize`, with the same errors. It takes one pass, as centering over
        some samples does.
        """
        return self.with_steps([Z if isinstance(Z, Covariates) else residualize(Z)])

    def covariate_shares(self, Z: Any) -> xr.DataArray:
        """The share of each kernel's centered trace that covariates explain, 1 − tr(PKP)/tr(CKC), (kernel,); one pass.

        InputError as in `residualize`, and if the set is not square.
        """
        if not self.is_square:
            refuse("covariate_shares needs a square set, and the rows are not the columns; take K[train, train]")
        (centered, left), _ = measure([self.center(), self.residualize(Z)])
        before, after = (K.lens().diagonal().sum(axis=1) for K in (centered, left))
        share = 1.0 - np.divide(after, before, out=np.ones_like(before), where=before > 0)
        coords = {"kernel": list(self.names)}
        import xarray as xr

        return describe(xr.DataArray(share, dims=("kernel",), coords=coords, name="share"))

    def weighed(self, weights: Array) -> KernelSet:
        """D^{1/2} K D^{1/2} with D = diag(weights), the sample weights of the column samples.

        The first rows are the column samples, in their order; rows that follow them are not scaled.
        """
        scale = np.sqrt(weights)
        rows = np.ones(self.shape[1])
        rows[: len(scale)] = scale
        return self._step(Weighing(scale, scale if self.is_square else rows))

    def _step(self, step: Step) -> KernelSet:
        return self._with(replace(self._view, steps=(*self._view.steps, step)))

    def product(self) -> KernelSet:
        """One kernel, the entrywise geometric mean (∏_j K_j)^(1/n), computed tile by tile when it is read.

        It is defined for kernels without steps and without negative entries; reading a negative entry is an error.
        InputError if the set was centered or normalized.
        """
        if self._view.steps:
            refuse("product() multiplies the kernels as they are stored; call it before center() and normalize()")
        source = GeometricMean(self._view.source, self._view.kernels)
        view = View(source, np.array([0]), self._view.rows, self._view.cols)
        return KernelSet(view, labels=self._labels, tasks=self._tasks, splits=self._splits)

    def with_labels(self, labels: Any) -> KernelSet:
        """The set with other labels, as `dmkl.create` takes them: values, or the place of a file, FILE or FILE:NAME.

        InputError if they do not fit the samples, or rows were chosen or repeated without names before.
        """
        n = len(self._view.source.samples)
        if not np.array_equal(self._view.final_positions()[0], np.arange(n)):
            refuse("with_labels() labels all samples of a set; call it before rows are chosen, and name repeated ones")
        (given,) = given_data(labels=labels)
        named = self._view.has_names
        given.expected = tuple(map(str, self.samples)) if named else None
        table = matched(given.where, given.table, self.samples, named=named)
        labeled = Labels(given.expected, labels=table.values, tasks=table.columns)
        try:
            nodes = labeled.checked(n, n, rectangular=False)
        except InputError as error:
            refuse(". ".join([str(error), *table.notes]), error)
        K = self._with(self._view, self._fitted)
        K._label_notes = table.notes
        K._labels, K._tasks = labels_in(nodes), nodes["task"]
        K._labels_given = as_given(labels) if isinstance(labels, str | os.PathLike) else "..."
        return K

    def repeat(self, index: Any, names: Sequence[Any] | Array | None = None) -> KernelSet:
        """The kernels of records, several of which may be of one sample, such as an animal or a genotype.

        Nothing is copied: entries are those of the samples. Folds of a search keep the records of a sample together.
        `index` has the sample of each record, by name or by position, and `names` the names of the records, unique, by
        which labels and covariates of each are matched; by default those of the samples, several times. InputError if
        there is no such sample, rows and columns differ, or the set with names has steps.
        """
        if not self.is_square:
            refuse("repeat() is for a square set, whose rows and columns are the same samples; take K[train, train]")
        at = named_positions(np.asarray(index).tolist(), list(map(str, self.samples)), "sample")
        K = self[at, at]
        if names is None:
            return K
        unique = np.asarray(unique_names(names, len(at), "sample"))
        return K._composed((K,), samples=unique)

    def join(self, *others: KernelSet) -> KernelSet:
        """The kernels of this set and further ones over the same records in the same order, read where they are.

        Names of samples, labels, tasks and splits are those of this set, since sets of records may have the names of
        genotypes and of environments. InputError if a set is not square, has steps or other records, or two kernels
        have one name.
        """
        return self._composed((self, *others))

    def interaction(self, *names: str, name: str | None = None) -> KernelSet:
        """The set with one more kernel, the entrywise product K_a ∘ K_b of some, computed when it is read.

        It is the kernel of interactions, such as of genotype and environment: two records are alike if they are alike
        in all factors. It is positive semidefinite if these are. `names` are two or more kernels, and `name` is that of
        the product, by default those of its factors with colons between. InputError if there is no such kernel, fewer
        than two are given, the name is taken, or the set is not square or has steps.
        """
        places = named_positions(names, self.names, "kernel")
        if len(places) < 2:
            refuse(f"interaction() multiplies two or more kernels, got {len(places)}")
        made = ":".join(self.names[k] for k in places) if name is None else name
        return self._composed((self,), {made: tuple(map(int, places))})

    def _composed(
        self, sets: Sequence[KernelSet], products: Mapping[str, tuple[int, ...]] = {}, samples: Array | None = None
    ) -> KernelSet:
        """The kernels of some sets, then products of some of these by name."""
        for each in sets:
            if each.view.steps or not each.is_square or each.shape[1] != self.shape[1]:
                refuse(
                    f"kernels are joined and multiplied as they are stored, over the same records: expected square "
                    f"sets of {self.shape[1]} without steps, found {each!r}; call it before center() and normalize()"
                )
        names = [name for each in sets for name in each.names]
        terms = [*((k,) for k in range(len(names))), *products.values()]
        names += products
        twice = [name for number, name in enumerate(names) if name in names[:number]]
        if twice:
            refuse(f"two kernels would have the name {twice[0]!r}; give another (name=, or names= when a set is made)")
        samples = self.samples if samples is None else samples
        source = Composed([each.view for each in sets], terms, names, samples, self.individuals)
        return KernelSet(View.of(source), labels=self.labels, tasks=self._tasks, splits=self.splits)

    def persist(self) -> KernelSet:
        """Load the tiles of this view into memory (that of the workers on a cluster), so that nothing is read later.

        A set whose kernels are all kept as factors is returned as it is: passes read its features.
        """
        return self._with(persisted(self._view), self._fitted)

    # --- statistics of the steps ---------------------------------------------------------------------------------

    def measured(self) -> tuple[KernelSet, float]:
        """The same set with the statistics of its steps, and the number of passes (at most one for each centering)."""
        (K,), n_passes = measure([self])
        return K, n_passes

    def lens(self) -> Lens:
        """The view with the statistics of its steps, which are measured now if they are not known yet."""
        K, _ = self.measured()
        assert K._fitted is not None
        return Lens(K._view, K._fitted)

    # --- products ------------------------------------------------------------------------------------------------

    def apply(self, V: npt.ArrayLike, *, dtype: npt.DTypeLike | None = None) -> da.Array:
        """K_j V for every kernel: one pass over the stored tiles, lazy.

        Parameters
        ----------
        V
            (columns, b), or (columns,) for one vector.
        dtype
            Precision of the products; by default that of the kernels. float64 keeps all digits of their entries.

        Returns
        -------
        dask.array.Array
            (kernels, rows, b), or (kernels, rows). Computing it runs few large tasks on the threads of this process, or
            on the current `distributed` client.

        Raises
        ------
        InputError
            If V has another length than the kernels' columns, or holds NaN or infinity, or for another `dtype`.
        MemoryBudgetError
            If the projected memory exceeds the budget; nothing is run.
        """
        products = self._products(V, "each", dtype, "apply")
        return cast("da.Array", products[:, :, 0]) if np.ndim(V) == 1 else products

    def project(self, V: npt.ArrayLike, *, dtype: npt.DTypeLike | None = None) -> da.Array:
        """VᵀK_jV for all kernels of a square set, (kernels, b, b) in float64: one pass, half the arithmetic of `apply`.

        It takes what `apply` takes, with the same errors, and is as lazy; (kernels,) for one vector. InputError also if
        the view is not square.
        """
        products = self._products(V, "project", dtype, "project")
        return cast("da.Array", products[:, 0, 0]) if np.ndim(V) == 1 else products

    def _products(self, V: npt.ArrayLike, want: Want, dtype: npt.DTypeLike | None, verb: str) -> da.Array:
        """One lazy pass, its results one after the other, (kernels, …)."""
        import dask.array as da

        block, precision = np.asarray(V), self.compute_dtype(dtype)
        if block.dtype.kind not in "fiub":
            refuse(f"V must hold real numbers, got {block.dtype}")
        block = block[:, None] if block.ndim == 1 else block
        if block.ndim != 2 or block.shape[0] != self.shape[2]:
            refuse(f"V has shape {np.shape(V)}, expected ({self.shape[2]}, b): one row for each column of the kernels")
        if not np.isfinite(block).all():
            refuse(f"V holds {np.count_nonzero(~np.isfinite(block))} entries that are NaN or infinite")
        # Without steps there is nothing to measure, and no statistics of the store have to be read.
        fitted, later = self._fitted if self._view.steps else Fitted(), None
        if fitted is None:
            state = statistics.chain_statistics(self._view)
            fitted = Fitted() if isinstance(state, Delayed) else state.fitted
            later = state.fitted.for_products(pure=True) if isinstance(state, Delayed) else None
        token = tokenize(self._view, self._fitted, block, want, precision.str)
        lenses, columns = [Lens(self._view, fitted)], [Columns(block, want, None, precision)]
        graph = pass_graph(lenses, columns, f"{verb}-pass", token, later)
        shape = (self.shape[1] if want == "each" else block.shape[1], block.shape[1])
        dtype = precision if want == "each" else np.dtype(np.float64)
        chunks = [
            da.from_delayed(part, (len(kernels), *shape), dtype=dtype, name=f"{verb}-{k}-{graph.token}")
            for k, (kernels, part) in enumerate(graph.groups)
        ]
        return cast("da.Array", da.concatenate(chunks))

    def compute_dtype(self, dtype: npt.DTypeLike | None = None) -> np.dtype[Any]:
        """The precision of products for a requested `dtype`: at least that of the kernels.

        InputError for a precision that is higher than float64, or for complex numbers.
        """
        wanted = self.dtype if dtype is None else np.result_type(self.dtype, np.dtype(dtype))
        if wanted not in (np.float32, np.float64):
            refuse(f"products are computed in float32 or float64, not in {wanted}")
        return wanted

    # --- alignment -----------------------------------------------------------------------------------------------

    def alignment(self, centered: bool = True, *, probes: int | None = None, seed: int = 0) -> xr.DataArray:
        """A_ij = ⟨K_i, K_j⟩/(‖K_i‖‖K_j‖) for all pairs of kernels of a square set; Frobenius products, run now.

        The exact value takes one pass in which a task reads the tiles of all kernels at the same position. With
        `probes` it is an estimate from z_aᵀK_jz_b for pairs of random sign vectors, with a standard error from leaving
        out one probe at a time (`dmkl.numerics.alignment.estimated`). Centering over some of the samples, or after
        cosine normalization, takes one more pass before, for the means.

        Parameters
        ----------
        centered
            Align the kernels centered in feature space, (I − 11ᵀ/m)K(I − 11ᵀ/m). Without centering, a common offset
            makes all of them similar.
        probes
            Number of random vectors for an estimate, at least 3; exact by default.
        seed
            Seed of the random vectors.

        Returns
        -------
        xarray.DataArray
            (kernel, kernel_2), from −1 to 1, and from 0 for positive semidefinite kernels; NaN for a kernel that is
            zero after centering, up to rounding. An estimate has a coordinate ``standard_error`` of the same shape. The
            attributes name the method.

        Raises
        ------
        InputError
            If the view is not square or has no samples, or `probes` is below 3.
        MemoryBudgetError
            If the projected memory exceeds the budget; nothing is run.

        References
        ----------
        Yan, Kittler, Mikolajczyk, Tahir, JMLR 13 (2012), Fig. 5; centered: Cortes, Mohri, Rostamizadeh, Algorithms for
        learning kernels based on centered alignment, JMLR 13 (2012), Definition 4.
        """
        from dmkl.passes.alignment import align, check_alignable  # SciPy, which opening a set does without

        check_alignable(self._view)
        Z = None if probes is None else sign_probes(self.shape[1], probes, seed)
        K = self.center() if centered else self
        value, error = align(K.lens(), Z)
        errors = {} if error is None else {"standard_error": (("kernel", "kernel_2"), error)}
        names = np.array(self.names, dtype=str)
        what = "alignment of centered kernels" if centered else "alignment of the kernels"
        method = "exact" if probes is None else f"estimate from {probes} random probes, seed {seed}"
        coords = {"kernel": names, "kernel_2": names, **errors}
        attrs = {"long_name": what, "method": method}
        import xarray as xr

        return describe(xr.DataArray(value, coords, ("kernel", "kernel_2"), name="alignment", attrs=attrs))

    # --- matrices ------------------------------------------------------------------------------------------------

    def to_dask(self, chunk: int | None = None) -> da.Array:
        """The transformed matrices as a lazy array (kernels, rows, columns), float64 where there are steps.

        `chunk` is the side of a chunk in samples, by default that of the stored tiles.
        """
        state: Any = statistics.chain_statistics(self._view, elements=True)
        return view_blocks(self._view, state, chunk)

    def to_xarray(self, chunk: int | None = None) -> xr.DataArray:
        """`to_dask` with the names of kernels and samples."""
        import xarray as xr

        names = np.array(self.names, dtype=str), self.samples.astype(str), self.train_samples.astype(str)
        coords = dict(zip(("kernel", "sample", "train_sample"), names, strict=True))
        return describe(xr.DataArray(self.to_dask(chunk), coords, tuple(coords), name="gram"))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        # The result is in memory in any case: several small tiles make one task, to limit the number of tasks.
        chunk = max(self._view.source.tiling.tile, 1024)
        return np.asarray(self.to_dask(chunk).compute(), dtype=dtype)


def measure(sets: Sequence[KernelSet], *, zero_constant: bool = False) -> tuple[list[KernelSet], float]:
    """Several sets of the same kernels as `dmkl.passes.statistics.measure` measures them, and the number of passes."""
    missing = [K.view for K in sets if K._fitted is None]
    lenses, n_passes = statistics.measure(missing, zero_constant=zero_constant)
    measured = iter(lenses)
    return [K if K._fitted is not None else K._with(K.view, next(measured).fitted) for K in sets], n_passes


# --- positions of samples and kernels ---------------------------------------------------------------------------------


def positions(key: Any, length: int, what: str) -> Index:
    """The positions, from 0 to `length` − 1, that an index selects.

    An index is an integer, a slice, a boolean mask or a vector of integers, where negative integers count from the end;
    InputError for any other index, and for positions out of range. `what` is the noun for messages, such as "row".
    """
    if isinstance(key, slice):
        return np.arange(length)[key]
    index = np.asarray(key)
    if index.dtype == bool:
        if index.shape != (length,):
            refuse(f"a boolean {what} mask must have shape ({length},), got {index.shape}")
        return np.flatnonzero(index)
    # An empty list becomes a float array, which would be rejected below.
    if index.size == 0:
        index = index.astype(np.int64)
    if index.dtype.kind not in "iu" or index.ndim > 1:
        refuse(f"{what}s are chosen by an integer, a slice, a boolean mask or a vector of integers, got {key!r}")
    index = np.atleast_1d(index).astype(np.int64)
    outside = index[(index < -length) | (index >= length)]
    if len(outside):
        refuse(f"{what} {outside[0]} is outside the {length} {what}s of this set")
    return np.where(index < 0, index + length, index)


def named_positions(wanted: Any, names: Sequence[str], what: str) -> Index:
    """The positions of named items, in the order requested.

    The request is a name, a position, a slice, a boolean mask, or several names or positions; InputError if an item
    does not exist. `what` is the noun for messages, such as "kernel".
    """
    if isinstance(wanted, slice):
        return positions(wanted, len(names), what)
    several = [wanted] if isinstance(wanted, str | int | np.integer) else list(wanted)
    places: dict[Any, int] = {name: place for place, name in enumerate(names)}
    for item in several:
        if not isinstance(item, int | np.integer | np.bool_) and not (isinstance(item, str) and item in places):
            available = f"{', '.join(map(repr, names[:10]))}{', …' if len(names) > 10 else ''}"
            refuse(f"there is no {what} named {item!r}; the names are {available}")
    return positions([places.get(item, item) for item in several], len(names), what)


_MOST_CANDIDATES = 1000  # Pairs of samples whose entries are read.


def identical_samples(K: KernelSet) -> tuple[Index, bool]:
    """Pairs of samples of the source that no kernel tells apart, (pairs, 2), and whether these are all.

    Candidates have equal k(x, x) and row sums in all kernels, or, where there are no row sums, equal random
    combinations of the features; k(x, x) + k(y, y) − 2k(x, y) decides. Differences below 32 units in the last place of
    the stored type, of the diagonal, are rounding: measurements of one sample that were repeated differ by more. More
    candidates than `_MOST_CANDIDATES`, each with the next of its copies, are left out.
    """
    source, kernels, none = K.view.source, K.view.kernels, np.empty((0, 2), dtype=np.int64)
    diagonal = source.diagonal(kernels) if source.symmetric else None
    if diagonal is None or not np.isfinite(diagonal).all():
        return none, True
    resolution = 32 * float(np.finfo(source.dtype).eps)
    scale = np.abs(diagonal).max(axis=1, keepdims=True)
    scale[scale == 0] = 1
    sums, of_features = source.row_sum(kernels), getattr(source, "combined_features", lambda _: none)
    others = of_features(kernels) if sums is None else sums / scale / len(sums.T)
    if not len(others) or not np.isfinite(others).all():
        return none, True
    both = np.concatenate([diagonal / scale, others])
    # Equal samples are neighbors in the order of one random combination of all figures.
    order = np.argsort(np.random.default_rng(0).standard_normal(len(both)) @ both, kind="stable")
    near = np.flatnonzero((np.abs(np.diff(both[:, order], axis=1)) <= resolution).all(axis=0))
    links = near[:_MOST_CANDIDATES]
    pairs = np.sort(np.column_stack([order[links], order[links + 1]]), axis=1)
    identical = np.ones(len(pairs), dtype=bool)
    side = source.tiling.tile
    for i, j in np.unique(pairs // side, axis=0).tolist():
        here = np.flatnonzero((pairs // side == (i, j)).all(axis=1))
        a, b = pairs[here].T
        keys = [(int(k), i, j) for k in kernels]
        for of_kernel, (_, tile) in zip(diagonal, source.stream(keys), strict=True):
            own, shared = of_kernel[a] + of_kernel[b], tile[a - i * side, b - j * side].astype(np.float64)
            identical[here] &= own - 2.0 * shared <= resolution * np.abs(own)
    links = links[identical]
    runs = np.split(links, np.flatnonzero(np.diff(links) > 1) + 1) if len(links) else []
    groups = [np.sort(order[run[0] : run[-1] + 2]) for run in runs]
    of_groups = [np.column_stack([group[at] for at in np.triu_indices(len(group), 1)]) for group in groups]
    return np.concatenate([none, *of_groups]), len(near) <= _MOST_CANDIDATES


# --- creating and opening sets ----------------------------------------------------------------------------------------


Kernels: TypeAlias = "KernelSet | xr.DataArray | Array | Sequence[Any] | Mapping[str, Any]"
"""A kernel set, or matrices in memory as `dmkl.create` takes them."""


def open(path: Location) -> KernelSet:
    """Open a stored kernel set in a folder, at a URL or in a Zarr store; only its names and labels are read.

    StoreNotFoundError, IncompleteStoreError, FormatVersionError or StoreError if there is no finished kernel set of a
    known format version.
    """
    return set_of(path)


def set_of(stored: Location | MemorySet) -> KernelSet:
    """The kernel set that `dmkl.store.ingest.ingest` has made."""
    reader = stored if isinstance(stored, MemorySet) else StoreReader(stored)
    if isinstance(reader, StoreReader) and reader.kept:
        from dmkl.features.stored import FactorReader  # sets of tiles need no recipes

        reader = FactorReader(reader)
    view, of_kernels = View.of(reader), reader.provenance
    return KernelSet(view, labels=reader.labels, tasks=reader.tasks, splits=reader.splits, provenance=of_kernels)


@one_blas_thread
def create(
    path: Location | None,
    kernels: Any,
    *,
    names: Sequence[str] | None = None,
    samples: Sequence[Any] | Array | None = None,
    labels: Any = None,
    splits: Any = None,
    join: Join = "exact",
    tile: int | None = None,
    dtype: npt.DTypeLike | None = None,
    train_samples: Sequence[Any] | Array | None = None,
    tasks: Sequence[Any] | Array | None = None,
    symmetric: bool | None = None,
    full: bool = False,
    diagonal: npt.ArrayLike | None = None,
    repair: Repair | None = None,
    symmetry_tol: float | None = None,
    symmetrize: bool = False,
    overwrite: bool = False,
) -> KernelSet:
    """Store kernel matrices as a kernel set, reading them one at a time and a tile at a time.

    After an interruption the same call continues with the first kernel that is not complete (matrices from a generator
    cannot be identified, and are imported again).

    Where kernels, labels and splits carry the names of their samples, these are matched by name: in the index and the
    columns of a data frame (unless they only count), in the coordinates of an xarray array, in an index or a column of
    names of labels and splits. The stored order is that of `samples`, or else of the first kernel with names, so that
    arrays without names in that order still fit. Without names, samples are matched by their position.

    Parameters
    ----------
    path
        Where to write: a folder, a URL or a Zarr store; None keeps the set in memory.
    kernels
        An array (n, m, m), an iterable of (m, m) arrays or data frames read one at a time, a mapping from names to
        such, a Dask array, a Zarr array, or an xarray array, with the kernels along the dimension "kernel" or the
        first; a Dataset of xarray, also with labels; AnnData or MuData with kernels in ``obsp``. Rectangular kernels
        (n, rows, columns) are new samples against training samples.
    names
        The kernels' names, unique; ``kernel_0``, ``kernel_1`` … by default.
    samples, train_samples
        Names of the row and column samples, unique. If the kernels carry names, the samples to keep, in this order;
        else the names of their rows, as they stand, which labels with names need. By default the names of the kernels,
        or numbers from 0.
    labels
        (rows,) classes or numbers, or (rows, tasks) of 0 and 1 or of numbers, NaN where unknown; a data frame or an
        xarray array names the tasks too. A path is that of a file, FILE:NAME that of a column or array in it.
    splits
        (splits, rows): 0 train, 1 validation, 2 test, -1 in no part. A data frame has a column for each split. A path
        as for labels.
    join
        "exact": all kernels, labels and splits name the same samples, in any order. "inner": the samples that all have,
        and whose label is not missing. "outer": the samples of any kernel, for square ones. A sample that lacks a
        kernel gets the mean of the training samples that have it, in that kernel's feature space: the kernel stays
        positive semidefinite, and its row is zero after centering over the training samples, so that the sample is
        predicted from its other kernels. Training samples are those of the first split, or all.
    tile
        Side of a tile in samples; the setting ``dmkl.tile`` by default.
    dtype
        float32 or float64; by default the widest type of `kernels` (float64 for integers). A generator of kernels in
        mixed precision needs it.
    tasks
        Names of the columns of `labels`, if there are several.
    symmetric
        Whether the kernels are symmetric; by default square kernels are.
    full
        Store both halves of symmetric kernels, for other programs.
    diagonal
        (n, rows), k(x, x) of the row samples of rectangular kernels: cosine normalization needs it.
    repair
        "clip", "flip" or "shift" negative eigenvalues of each kernel (see `dmkl.numerics.semidefinite.repair_psd`);
        needs memory for one kernel.
    symmetry_tol
        Largest difference of mirrored entries, relative to the largest entry; 1e-5 for float32, 1e-8 for float64.
    symmetrize
        Store (K + Kᵀ)/2 of kernels whose mirrored entries differ; `provenance` records the largest difference. Where
        all entries on one side of the diagonal are 0 or NaN, the triangle on the other is mirrored and recorded, also
        without this option.
    overwrite
        Replace a finished set; it stays until the new one is complete.

    Returns
    -------
    KernelSet
        The stored set, opened.

    Raises
    ------
    InputError
        If a kernel holds NaN or infinity, is not symmetric, or has another shape than the first; if names are not
        unique, hold control characters, or cannot be joined; if labels or splits have names and nothing names the rows
        of the kernels; if a length does not fit; if the entries of a kernel
        depend only on the classes of both samples. `path` is unchanged.
    StoreExistsError
        If there is a finished set at `path` and `overwrite` was not given.
    DiskFullError
        If the disk is full; the same call continues from there.

    Warns
    -----
    SampleOrderWarning
        If kernels, labels or splits without names are matched by position with samples that have names.
    """
    given, source = given_data(labels=labels, splits=splits), as_source(kernels, names)
    source.join(
        join,
        samples=sample_names("samples", samples),
        train_samples=sample_names("train_samples", train_samples),
        read_data=[item for item in source.side_data if item.role not in {other.role for other in given}],
        given=given,
        symmetric=symmetric,
    )
    for note in source.order_notes:
        warn(note, SampleOrderWarning)
    if tasks is not None:
        source.labels.tasks = tasks
    written = ingest(
        path,
        source,
        source.labels,
        tile=tile,
        dtype=dtype,
        symmetric=symmetric,
        full=full,
        diagonal=None if diagonal is None else np.asarray(diagonal),
        repair=repair,
        symmetry_tol=symmetry_tol,
        symmetrize=symmetrize,
        overwrite=overwrite,
    )
    return set_of(written)


def as_kernel_set(K: Any, what: str, train_samples: Array | None = None) -> KernelSet:
    """Return a kernel set unchanged, and convert matrices as `dmkl.create` takes them to a set in memory.

    If the rows are new samples, `train_samples` are those of the columns: columns with names are put in this order,
    and columns without names must be in it. InputError if `K` is neither a set nor matrices.
    """
    if isinstance(K, KernelSet):
        return K
    if K is None or isinstance(K, str | os.PathLike):
        rule = f"{what} takes a kernel set, or matrices as dmkl.create takes them"
        refuse(f"{rule}, got {type(K).__name__}; open a stored set with dmkl.open(path)")
    if len(getattr(K, "shape", ())) == 2:
        way_out = "make kernels of its columns with dmkl.build, take dmkl.MKLClassifier or dmkl.MKLRegressor"
        way_out = way_out if train_samples is None else "give features of new samples as features="
        rule = f"{what} takes kernels (kernel, row, column), got a table of shape {K.shape}"
        refuse(f"{rule}; {way_out}, or give a single kernel as [K]")
    return create(None, K, symmetric=train_samples is None, train_samples=train_samples)


def given_labels(K: KernelSet, y: Any) -> tuple[Array | None, Array | None]:
    """Labels of the row samples and names of their tasks: those of `y`, matched by name, or the stored ones."""
    if y is None:
        return K.labels, K.tasks
    table = matched("y", y, K.samples, named=K.view.has_names, stored=K.labels)
    return table.values, None if table.columns is None else np.array(table.columns, dtype=object)
