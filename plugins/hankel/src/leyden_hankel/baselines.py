"""What the method is compared with: one call signature, the same transforms and the same start.

The methods are those of the predecessors, reconstructed from their papers. The factored ones (`shgd`, `pgd`,
`fiht`, `hsnld`) start from the same spectral start and use the same fast Hankel products, each in its most
economical form; `ist` is what users of the field have, `emac` the convex program. Each is a generator of
iterates (``*_iterates``, for whoever counts and times them) with a function around it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Complex
from torch import Tensor

from leyden_hankel.completion import Completion, Task, checked_shape, is_real, prepare
from leyden_hankel.directions import regularized_inverse
from leyden_hankel.objective import Problem, conjugate_gram
from leyden_hankel.solver import Settings, set_aside, without_largest
from leyden_hankel.spectral import orthonormal_basis, spectral_init, takagi

Iterates = Iterator[tuple[Tensor, Tensor]]
"""Pairs of a factor and the signal, batch first."""


def shgd(
    observed: Any,
    mask: Any = None,
    rank: int = 1,
    *,
    step: float = 0.75,
    clip: bool = True,
    max_iter: int = 300,
    tol: float = 1e-7,
    truth: Any = None,
) -> Completion:
    """Symmetric Hankel gradient descent (Li, Cui and Zhang, 2024): Z - step / sigma_1 times the gradient.

    Args:
        observed: the samples of one signal, as for `complete`.
        mask: which were observed; None: those that are not NaN.
        rank: the number of exponentials.
        step: 0.5 to 0.75 in the literature.
        clip: whether long rows are scaled back after every step.
        max_iter: iterations at most.
        tol: relative change of the signal that ends the iteration.
        truth: the true signal, for the history.

    Returns:
        As `complete`.

    Raises:
        ValueError: if an argument is wrong; the text names it.
    """
    return _solve(shgd_iterates, observed, mask, rank, max_iter, tol, truth, step=step, clip=clip)


def pgd(
    observed: Any,
    mask: Any = None,
    rank: int = 1,
    *,
    step: float = 0.5,
    max_iter: int = 300,
    tol: float = 1e-7,
    truth: Any = None,
) -> Completion:
    """Projected gradient descent on two factors (Cai, Wang and Wei, 2018), with a balancing term.

    Args:
        observed: the samples of one signal, as for `complete`.
        mask: which were observed; None: those that are not NaN.
        rank: the number of exponentials.
        step: multiplies the gradient over sigma_1.
        max_iter: iterations at most.
        tol: relative change of the signal that ends the iteration.
        truth: the true signal, for the history.

    Returns:
        As `complete`; ``Z`` is the left factor.

    Raises:
        ValueError: if an argument is wrong; the text names it.
    """
    return _solve(pgd_iterates, observed, mask, rank, max_iter, tol, truth, step=step)


def fiht(
    observed: Any,
    mask: Any = None,
    rank: int = 1,
    *,
    max_iter: int = 300,
    tol: float = 1e-7,
    truth: Any = None,
) -> Completion:
    """Fast iterative hard thresholding (Cai, Wang and Wei, 2019), in a form that keeps one factor.

    The authors' keeps two singular bases and transforms both; for a square Hankel matrix the second is the
    conjugate of the first, which halves the cost.

    Args:
        observed: the samples of one signal, as for `complete`.
        mask: which were observed; None: those that are not NaN.
        rank: the number of exponentials.
        max_iter: iterations at most.
        tol: relative change of the signal that ends the iteration.
        truth: the true signal, for the history.

    Returns:
        As `complete`.

    Raises:
        ValueError: if an argument is wrong; the text names it.
    """
    return _solve(fiht_iterates, observed, mask, rank, max_iter, tol, truth)


def hsnld(
    observed: Any,
    mask: Any = None,
    rank: int = 1,
    *,
    step: float = 0.5,
    outlier_fraction: float = 0.0,
    max_iter: int = 300,
    tol: float = 1e-7,
    truth: Any = None,
) -> Completion:
    """Scaled gradient descent on two factors (Cai, Huang, Lu and You, 2024), with outliers set aside.

    Args:
        observed: the samples of one signal, as for `complete`.
        mask: which were observed; None: those that are not NaN.
        rank: the number of exponentials.
        step: 0.5 in the literature.
        outlier_fraction: the share of the observed samples that may be grossly wrong, below 0.5.
        max_iter: iterations at most.
        tol: relative change of the signal that ends the iteration.
        truth: the true signal, for the history.

    Returns:
        As `complete`; ``Z`` is the left factor.

    Raises:
        ValueError: if an argument is wrong; the text names it.
    """
    return _solve(
        hsnld_iterates,
        observed,
        mask,
        rank,
        max_iter,
        tol,
        truth,
        step=step,
        outlier_fraction=outlier_fraction,
    )


def ist(
    observed: Any,
    mask: Any = None,
    rank: int = 1,
    *,
    decay: float = 0.98,
    max_iter: int = 500,
    tol: float = 0.0,
    truth: Any = None,
) -> Completion:
    """Iterative soft thresholding of the discrete spectrum, what NMR users have; bound to its grid.

    Args:
        observed: the samples of one signal, as for `complete`.
        mask: which were observed; None: those that are not NaN.
        rank: not used; for the common signature.
        decay: of the threshold, an iteration.
        max_iter: iterations at most.
        tol: relative change of the signal that ends the iteration; 0: none does.
        truth: the true signal, for the history.

    Returns:
        As `complete`; ``Z`` has no columns.

    Raises:
        ValueError: if an argument is wrong; the text names it.
    """
    return _solve(ist_iterates, observed, mask, 1, max_iter, tol, truth, decay=decay)


def emac(
    observed: Any,
    mask: Any = None,
    rank: int = 1,
    *,
    eps: float = 1e-9,
    max_iter: int = 20_000,
    truth: Any = None,
) -> Completion:
    """The least nuclear norm of the Hankel matrix that keeps the samples (Chen and Chi), by cvxpy and SCS.

    A semidefinite program of twice the matrix's rows: for about 100 samples at most.

    Args:
        observed: the samples of one signal, as for `complete`.
        mask: which were observed; None: those that are not NaN.
        rank: columns of ``Z``; the program does not use it.
        eps: the tolerance of SCS.
        max_iter: its iterations at most.
        truth: the true signal, for the history.

    Returns:
        As `complete`; ``iters`` counts those of SCS.

    Raises:
        ValueError: if an argument is wrong; the text names it.
        ModuleNotFoundError: if cvxpy is not installed (``pip install leyden-hankel[peers]``).
    """
    import cvxpy as cp

    cvxpy: Any = cp

    task = _task(observed, mask, rank)
    operator = task.problem.operator
    index = operator.dense(torch.arange(task.problem.y[0].numel()).reshape(operator.shape)).real.long()
    variable = cvxpy.Variable(math.prod(operator.shape), complex=True)
    rows = [cvxpy.hstack([variable[int(place)] for place in row]) for row in index]
    seen = task.problem.mask[0].flatten().nonzero().squeeze(1).numpy()
    problem = cvxpy.Problem(
        cvxpy.Minimize(cvxpy.normNuc(cvxpy.vstack(rows))),
        [variable[seen] == task.problem.y[0].flatten()[seen].numpy()],
    )
    problem.solve(solver=cvxpy.SCS, eps=eps, max_iters=max_iter)
    x = torch.as_tensor(variable.value).to(operator.dtype).reshape(1, *operator.shape)
    values, vectors = takagi(operator.dense(x), rank)
    factor = vectors * values.sqrt().unsqueeze(-2)
    iterations = int(problem.solver_stats.num_iters)
    done = problem.status == "optimal"
    return _completion(task, factor, x, iterations, done, {})


def shgd_iterates(
    problem: Problem, factor: Complex[Tensor, "batch rows rank"], *, step: float = 0.75, clip: bool = True
) -> Iterates:
    """The iterates of `shgd` from a factor."""
    gram = conjugate_gram(factor)
    norms = gram.diagonal(dim1=-2, dim2=-1).real
    leverage = (factor.abs().square() / norms.unsqueeze(-2)).sum(dim=-1).amax(dim=-1)
    largest = torch.linalg.matrix_norm(gram, ord=2)
    longest = (2 * leverage * largest).sqrt()[..., None, None]
    rate = (step / largest)[..., None, None]
    operator = problem.operator
    while True:
        spectrum = operator.fft(factor)
        x = operator.lift_adjoint(spectrum)
        yield factor, x
        pull = operator.matmul_conj(problem.correction(x, problem.misfit(x)), spectrum)
        weights = (torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device) - rate * gram).mT
        rows = weights @ factor.mT - rate * pull.mT
        if clip:
            lengths = torch.linalg.vector_norm(rows, dim=-2, keepdim=True)
            rows = rows * (longest / lengths).clamp(max=1)
        factor = rows.mT
        gram = conjugate_gram(factor)


def pgd_iterates(
    problem: Problem, factor: Complex[Tensor, "batch rows rank"], *, step: float = 0.5
) -> Iterates:
    """The iterates of `pgd` from a factor and its conjugate."""
    largest = torch.linalg.matrix_norm(conjugate_gram(factor), ord=2)
    rate = (step / largest)[..., None, None]

    def descend(one: Tensor, own: Tensor, other: Tensor, pull: Tensor) -> Tensor:
        # The balancing term: (|L^H L - R^H R|^2 / 8)'s gradient is L (L^H L - R^H R) / 4.
        weights = other + (own.conj() - other.conj()) / 4
        moved: Tensor = (one.mT - rate * (weights.mT @ one.mT + pull.mT)).mT
        return moved

    return _two_factors(problem, factor, descend)


def hsnld_iterates(
    problem: Problem,
    factor: Complex[Tensor, "batch rows rank"],
    *,
    step: float = 0.5,
    outlier_fraction: float = 0.0,
) -> Iterates:
    """The iterates of `hsnld` from a factor and its conjugate."""

    def descend(one: Tensor, own: Tensor, other: Tensor, pull: Tensor) -> Tensor:
        inverse = regularized_inverse(other)
        weights = (other @ inverse).mT
        return one - step * (weights @ one.mT + inverse.mT @ pull.mT).mT

    return _two_factors(problem, factor, descend, outlier_fraction)


def fiht_iterates(problem: Problem, factor: Complex[Tensor, "batch rows rank"]) -> Iterates:
    """The iterates of `fiht` from a factor with orthogonal columns."""
    rank = factor.shape[-1]
    operator = problem.operator
    roots = torch.linalg.vector_norm(factor, dim=-2)
    basis = (factor.mT / roots.unsqueeze(-1)).mT
    spectrum = operator.fft(factor)
    while True:
        x = operator.lift_adjoint(spectrum)
        yield factor, x
        # H(x + (y - mask x) / p) conj(U); U is Z with normalized columns, so that one transform serves both
        target = -problem.correction(x, problem.misfit(x))
        image = (operator.matmul_conj(target, spectrum).mT / roots.unsqueeze(-1)).mT
        middle = basis.mT.conj() @ image
        outside = image - (middle.mT @ basis.mT).mT
        beside = orthonormal_basis(outside)
        corner = beside.mT.conj() @ outside
        zero = torch.zeros_like(corner)
        core = torch.cat([torch.cat([middle, corner.mT], -1), torch.cat([corner, zero], -1)], -2)
        values, vectors = takagi(core, rank)
        basis = (vectors[..., :rank, :].mT @ basis.mT + vectors[..., rank:, :].mT @ beside.mT).mT
        roots = values.sqrt()
        factor = (roots.unsqueeze(-1) * basis.mT).mT
        spectrum = operator.fft(factor)


def ist_iterates(problem: Problem, factor: Any = None, *, decay: float = 0.98) -> Iterates:
    """The iterates of `ist`; without a factor to start from, the samples are the start."""
    places = tuple(range(1, problem.y.dim()))
    empty = problem.y.new_zeros(len(problem.y), problem.operator.rows, 0)
    x = problem.y
    spectrum = torch.fft.fftn(x, dim=places, norm="ortho")
    threshold = spectrum.abs().amax(dim=places, keepdim=True)
    while True:
        yield empty, x
        threshold = threshold * decay
        spectrum = torch.fft.fftn(x - problem.misfit(x), dim=places, norm="ortho")
        moduli = spectrum.abs().clamp(min=torch.finfo(threshold.dtype).tiny)
        x = torch.fft.ifftn(spectrum * (1 - threshold / moduli).clamp(min=0), dim=places, norm="ortho")


def _two_factors(
    problem: Problem,
    factor: Tensor,
    descend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    outlier_fraction: float = 0.0,
) -> Iterates:
    """Iterates L S^T from L = S = Z; ``descend`` moves a factor, given both Gram matrices and its pull."""
    operator = problem.operator
    left = right = factor
    for time in itertools.count():
        spectra = operator.fft(left), operator.fft(right)
        x = operator.lift_adjoint(*spectra) / 2
        yield left, x
        seen = set_aside(problem, x, outlier_fraction, time) if outlier_fraction else problem
        correction = seen.correction(x, seen.misfit(x))
        grams = conjugate_gram(left), conjugate_gram(right)
        pulls = [operator.matmul_conj(correction, spectrum) for spectrum in reversed(spectra)]
        left, right = (
            descend(left, grams[0], grams[1], pulls[0]),
            descend(right, grams[1], grams[0], pulls[1]),
        )


def _solve(
    method: Callable[..., Iterates],
    observed: Any,
    mask: Any,
    rank: int,
    max_iter: int,
    tol: float,
    truth: Any,
    **options: Any,
) -> Completion:
    """Prepare the signal, iterate until it no longer changes, and wrap the result up."""
    fraction = options.get("outlier_fraction", 0.0)
    task = _task(observed, mask, rank, max_iter=max_iter, tol=tol, outlier_fraction=fraction)
    for name in ("step", "decay"):
        if name in options and not 0 < options[name] < math.inf:
            raise ValueError(f"{name}: expected a finite number above 0, got {options[name]!r}")
    with torch.no_grad():
        problem = task.problem
        seen = without_largest(problem, fraction)
        factor = spectral_init(seen, problem.mask, rank, operator=problem.operator)
        iterates = method(problem, factor, **options)
        _, x = next(iterates)
        changes, errors, done, count = [], [], False, 0
        goal = None if truth is None else task.goal(truth)
        for current, after in itertools.islice(iterates, max_iter):
            factor, count = current, count + 1
            changes.append(torch.linalg.vector_norm(after - x) / torch.linalg.vector_norm(x))
            x = after
            if goal is not None:
                errors.append(torch.linalg.vector_norm(task.crop(x) - goal) / torch.linalg.vector_norm(goal))
            done = bool(changes[-1] <= tol)
            if done or not bool(changes[-1].isfinite()):
                break
    history = {"rel_change": torch.stack(changes)} | ({"rel_error": torch.stack(errors)} if errors else {})
    return _completion(task, factor, x, count, done, history)


def _task(observed: Any, mask: Any, rank: int, **settings: Any) -> Task:
    y = torch.as_tensor(observed)
    return prepare(y, mask, checked_shape(tuple(y.shape)), Settings(rank=rank, step="fixed", **settings))


def _completion(
    task: Task, factor: Tensor, x: Tensor, iterations: int, converged: bool, history: Mapping[str, Tensor]
) -> Completion:
    x = task.crop(x)[0] * task.scale
    return Completion(
        x=x.real if task.real and is_real(x) else x,
        Z=factor[0] * task.scale.sqrt(),
        iters=torch.tensor(iterations),
        history=history,
        converged=torch.tensor(converged),
        shape=task.shape,
    )
