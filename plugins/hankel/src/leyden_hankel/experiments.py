"""What the claims run: a method on a signal, its error after every iteration, its time to an error."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from leyden_hankel.baselines import (
    emac,
    fiht_iterates,
    hsnld_iterates,
    ist,
    pgd_iterates,
    shgd_iterates,
)
from leyden_hankel.completion import HankelCompletion, Task, prepare
from leyden_hankel.metrics import match_frequencies, relative_error
from leyden_hankel.signals import SpectralSignal, spectral_signal
from leyden_hankel.solver import Settings, State, iterate, start_at, without_largest
from leyden_hankel.spectral import spectral_init

OWN: dict[str, dict[str, Any]] = {
    "tangent": {},
    "tangent, exact": {"step": "exact"},
    "tangent, fixed": {"step": "fixed"},
    "block_jacobi": {"preconditioner": "block_jacobi", "step": "fixed"},
}
"""The plugin's own methods, with the settings that differ from the defaults."""

BASELINES = {
    "FIHT": fiht_iterates,
    "SHGD": shgd_iterates,
    "PGD": pgd_iterates,
    "HSNLD": hsnld_iterates,
}


def draw(*args: Any, seed: int, **kwargs: Any) -> SpectralSignal:
    """A signal from a seed."""
    return spectral_signal(*args, generator=torch.Generator().manual_seed(seed), **kwargs)


def signals_of(
    method: str, task: Task, rank: int, factor: Tensor, options: dict[str, Any]
) -> Iterator[Tensor]:
    """The signals after each iteration of a method, from a factor.

    Args:
        method: one of `OWN` or `BASELINES`.
        task: the signal.
        rank: the number of lines.
        factor: where it starts.
        options: further settings of the method.

    Yields:
        The signal at the start, then after each iteration.
    """
    if method in BASELINES:
        with torch.no_grad():
            iterates = BASELINES[method](task.problem, factor, **options)
        while True:
            with torch.no_grad():
                _, x = next(iterates)
            yield x
    settings = Settings(rank=rank, tol=0.0, max_iter=10**6, **{**OWN[method], **options})
    with torch.no_grad():
        state: State = start_at(task.problem, settings, factor)
    yield state.x
    while state.running:
        with torch.no_grad():
            state = iterate(task.problem, settings, state)
        yield state.x


def errors_of(method: str, signal: SpectralSignal, rank: int, iterations: int, **options: Any) -> list[float]:
    """The relative error after each iteration from the spectral start; it ends below 1e-11 or on divergence.

    Args:
        method: one of `OWN` or `BASELINES`.
        signal: the signal.
        rank: the number of lines.
        iterations: at most so many.
        **options: further settings of the method.

    Returns:
        The errors.
    """
    task, factor = _started(signal, rank, float(options.get("outlier_fraction", 0.0)))
    errors = []
    iterates = signals_of(method, task, rank, factor, options)
    for x in itertools.islice(iterates, 1, iterations + 1):
        error = float(relative_error(task.crop(x)[0] * task.scale, signal.truth))
        errors.append(error if math.isfinite(error) else 1e6)
        if error <= 1e-11 or not error < 1e6:
            break
    return errors


def first_below(errors: Sequence[float], level: float, otherwise: float) -> float:
    """The first iteration, counted from 1, whose error is at most a level."""
    return next((place + 1.0 for place, error in enumerate(errors) if error <= level), otherwise)


def times_to(
    methods: Mapping[str, Mapping[str, Any]],
    signal: SpectralSignal,
    rank: int,
    *,
    level: float,
    cap: int,
    rounds: int,
) -> dict[str, float]:
    """Processor seconds from the spectral start to a relative error, start excluded.

    How many iterations a method needs is counted first; then all run that many in turn, in several rounds,
    and each one's shortest time counts.

    Args:
        methods: of `OWN` or `BASELINES`, each with its further settings.
        signal: the signal.
        rank: the number of lines.
        level: the relative error.
        cap: iterations at most; a method that needs more takes the time of so many.
        rounds: how often each is timed.

    Returns:
        The seconds of each.
    """
    task, factor = _started(signal, rank, 0.0)
    needed = {
        method: int(first_below(errors_of(method, signal, rank, cap, **options), level, cap))
        for method, options in methods.items()
    }
    seconds = dict.fromkeys(methods, math.inf)
    for _ in range(rounds):
        for method, options in methods.items():
            begun = time.process_time()
            iterates = signals_of(method, task, rank, factor, dict(options))
            for _ in itertools.islice(iterates, needed[method] + 1):
                pass
            seconds[method] = min(seconds[method], time.process_time() - begun)
    return seconds


def batch_speedup(count: int, rounds: int, seed: int) -> tuple[float, float, float]:
    """How many times faster a batch of signals of 255 samples is solved than one after the other.

    Args:
        count: how many signals.
        rounds: how often both are timed.
        seed: of the first signal.

    Returns:
        The ratio of the processor seconds of 30 iterations; among the signals that are recovered, the largest
        relative difference between both ways, and that of single precision.
    """
    signals = [draw(255, 4, samples=80, seed=count * seed + place) for place in range(count)]
    y, mask, truth = (torch.stack([getattr(s, name) for s in signals]) for name in ("y", "mask", "truth"))
    timed, solver = HankelCompletion(255, 4, max_iter=30, tol=0.0), HankelCompletion(255, 4)
    whole = parts = math.inf
    for _ in range(rounds):
        begun = time.process_time()
        timed(y, mask)
        whole = min(whole, time.process_time() - begun)
        begun = time.process_time()
        for one, seen in zip(y, mask, strict=True):
            timed(one, seen)
        parts = min(parts, time.process_time() - begun)
    together, single = solver(y, mask).x, solver(y.to(torch.complex64), mask).x.to(truth.dtype)
    alone = torch.stack([solver(one, seen).x for one, seen in zip(y, mask, strict=True)])
    # A signal that is not recovered wanders, and rounding decides where it is when the iteration ends.
    recovered = relative_error(together, truth, signal_dims=1) <= 1e-5
    apart, rounded = (relative_error(x, together, signal_dims=1)[recovered].max() for x in (alone, single))
    return parts / whole, float(apart), float(rounded)


def field_errors(method: str, signal: SpectralSignal, rank: int, **options: Any) -> dict[str, float]:
    """How near ``"tangent"``, ``"IST"`` or ``"EMaC"`` comes to a signal, and in which time.

    Args:
        method: which.
        signal: the signal.
        rank: the number of lines.
        **options: further settings of ``"IST"`` and ``"EMaC"``.

    Returns:
        The relative error and the processor seconds.
    """
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method == "IST":
            found = ist(signal.y, signal.mask, **options)
        elif method == "EMaC":
            found = emac(signal.y, signal.mask, rank, **options)
        else:
            found = HankelCompletion(tuple(signal.truth.shape), rank)(signal.y, signal.mask)
    seconds = time.process_time() - begun
    return {"rel_error": float(relative_error(found.x, signal.truth)), "seconds": seconds}


def arrival_errors(seed: int) -> dict[str, float]:
    """How near four directions of arrival come, from one snapshot of 24 sensors at 20 dB.

    The sensors stand at random places of a line of 63; the sources have equal strength and are at least 0.1
    apart.

    Args:
        seed: draws it all.

    Returns:
        The relative error of the signal, and the largest one of a frequency, in cycles a place.
    """
    signal = snapshot(torch.Generator().manual_seed(seed))
    found = HankelCompletion(63, 4)(signal.y, signal.mask)
    return {
        "rel_error": float(relative_error(found.x, signal.truth)),
        "frequency_error": float(match_frequencies(found.frequencies, signal.frequencies).max()),
    }


def snapshot(generator: torch.Generator) -> SpectralSignal:
    """The snapshot of `arrival_errors`."""
    while True:
        frequencies = torch.rand(4, dtype=torch.float64, generator=generator)
        turns = (frequencies.unsqueeze(1) - frequencies).remainder(1.0)
        if (torch.minimum(turns, 1 - turns) + torch.eye(4)).min() >= 0.1:
            break
    phases = 2 * math.pi * torch.rand(4, dtype=torch.float64, generator=generator)
    amplitudes = torch.polar(torch.ones(4, dtype=torch.float64), phases)
    places = torch.arange(63, dtype=torch.float64)
    truth = torch.exp(2j * math.pi * places.unsqueeze(1) * frequencies) @ amplitudes
    mask = torch.zeros(63, dtype=torch.bool)
    mask[torch.randperm(63, generator=generator)[:24]] = True
    noise = torch.complex(*torch.randn(2, 63, dtype=torch.float64, generator=generator)) * mask
    y = torch.where(mask, truth, torch.zeros((), dtype=truth.dtype))
    y = y + noise * (0.1 * torch.linalg.vector_norm(y) / torch.linalg.vector_norm(noise))
    return SpectralSignal(y, mask, truth, frequencies, torch.zeros(4).double(), amplitudes, noise=0.1)


def decay_signal(seed: int) -> SpectralSignal:
    """An NMR-like signal: 511 samples, eight decaying lines of strengths 1 to 50, 30 dB of noise.

    A quarter of the samples is observed, early ones more often, with a density that falls like the signal.

    Args:
        seed: draws it all.

    Returns:
        The signal.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = spectral_signal(511, 8, damping=True, separation=True, generator=generator)
    moduli = torch.logspace(0, math.log10(50), 8, dtype=torch.float64)
    amplitudes = moduli * drawn.amplitudes / drawn.amplitudes.abs()
    times = torch.arange(511, dtype=torch.float64).unsqueeze(1)
    truth = torch.exp(times * (2j * math.pi * drawn.frequencies - drawn.damping)) @ amplitudes
    density = torch.exp(-times.squeeze(1) / 255)
    mask = torch.zeros(511, dtype=torch.bool)
    mask[torch.multinomial(density, 128, generator=generator)] = True
    noise = torch.complex(*torch.randn(2, 511, dtype=torch.float64, generator=generator)) * mask
    y = torch.where(mask, truth, torch.zeros((), dtype=truth.dtype))
    y = y + noise * (10**-1.5 * torch.linalg.vector_norm(y) / torch.linalg.vector_norm(noise))
    return SpectralSignal(y, mask, truth, drawn.frequencies, drawn.damping, amplitudes, noise=10**-1.5)


def _started(signal: SpectralSignal, rank: int, outlier_fraction: float) -> tuple[Task, Tensor]:
    """The task of a signal and its spectral start, the same for every method."""
    task = prepare(signal.y, signal.mask, tuple(signal.truth.shape), Settings(rank=rank))
    problem = task.problem
    seen = without_largest(problem, outlier_fraction)
    with torch.no_grad():
        return task, spectral_init(seen, problem.mask, rank, operator=problem.operator)
