"""Numbers over seeds: mean ± SEM, intervals, and tests between methods.

Seed for seed two runs share the order of examples and the network's first weights, so ``compare`` takes the difference
first and tests it then. ``welch`` is for methods whose seeds differ or are not correlated. SciPy is imported when a
test or an interval is asked for.

>>> a = {0: 71.0, 1: 73.0, 2: 72.0, 3: 74.0, 4: 75.0}
>>> b = {0: 70.0, 1: 71.5, 2: 71.0, 3: 72.0, 4: 73.5}
>>> found = compare(a, b)
>>> round(found.difference, 2), round(found.p, 4), round(found.effect, 2)
(1.4, 0.0017, 3.35)
>>> round(welch(a, b).p, 4)
0.1655
>>> best({"gcr": a, "er": b}).labels
('gcr',)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from gcr.settings import BadInput

BOLD_P = 0.05  # the paper's level for bold
PAIRWISE_P = 1e-3  # and for "all pairwise differences" in its ablation
FEW_SEEDS = 5  # with fewer, a test sees only gross differences
NO_COMMON = "no seed in common"  # why a test is Welch's

BySeed = Mapping[int, float]
WhyUnpaired = Callable[[str, str], str]  # of two labels: why Welch's test compares them; empty: a paired one does


def always_paired(first: str, second: str) -> str:
    return ""


@dataclass(frozen=True)
class Spread:
    mean: float
    sem: float | None  # None for a single value
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.sem is None else f"{self.mean:.2f} ± {self.sem:.2f}"


@dataclass(frozen=True)
class Comparison:
    """Two methods, first minus second: paired over the seeds that both have, or by Welch's test over all seeds."""

    n: int
    difference: float | None  # None without a seed to take it from
    sem: float | None  # of the difference; None with fewer than two seeds
    p: float | None  # two-sided; None where there is nothing to test
    effect: float | None  # Cohen's d: the mean difference in standard deviations, paired of the differences
    warnings: tuple[str, ...]
    n_second: int | None = None  # seeds of the second in Welch's test; None: paired
    degrees: float = 0.0  # of freedom of the test

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the difference; None where there is nothing to test."""
        return None if self.difference is None or self.sem is None else _around(self.difference, self.sem, self.degrees)

    @property
    def seeds(self) -> str:
        return str(self.n) if self.n_second is None else f"{self.n}, {self.n_second}"

    def significant(self, level: float = BOLD_P) -> bool:
        return self.p is not None and self.p < level


@dataclass(frozen=True)
class Best:
    labels: tuple[str, ...]  # what is printed bold
    doubts: tuple[tuple[str, str], ...]  # a pair that was compared, and what weakens that
    tests: tuple[str, ...] = ()  # by which the others were compared with the best

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(f"{pair}: {text}" for pair, text in self.doubts)


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean and standard error of the mean; None where a value is missing.

    >>> str(spread([1.0, 2.0, 3.0]))
    '2.00 ± 0.58'
    """
    present = [value for value in values if value is not None]
    n = len(present)
    if n == 0 or n < len(values):
        return None
    mean = sum(present) / n
    if n == 1:
        return Spread(mean, None, 1)
    variance = sum((value - mean) ** 2 for value in present) / (n - 1)
    return Spread(mean, math.sqrt(variance / n), n)


def interval(of: Spread, level: float = 0.95) -> tuple[float, float] | None:
    """The t-interval that covers the true mean in ``level`` of all repetitions; None for a single value.

    >>> low, high = interval(spread([1.0, 2.0, 3.0]))
    >>> round(low, 2), round(high, 2)
    (-0.48, 4.48)
    """
    if not 0 < level < 1:
        raise BadInput(f"level must be between 0 and 1, got {level}")
    if of.sem is None:
        return None
    return _around(of.mean, of.sem, of.n - 1, level)


def _around(mean: float, sem: float, degrees: float, level: float = 0.95) -> tuple[float, float]:
    half = float(_scipy_special().stdtrit(degrees, (1 + level) / 2)) * sem
    return mean - half, mean + half


def verdict(ours: Spread, published: float) -> str:
    """A published mean lies inside our 95% interval, or ours is above or below it. Few seeds decide nothing if inside.

    >>> verdict(Spread(50.0, 1.0, 15), 51.0), verdict(Spread(50.0, 1.0, 3), 51.0), verdict(Spread(50.0, 1.0, 3), 40.0)
    ('inside', 'undecided', 'above')
    """
    bounds = interval(ours)
    if bounds is None:
        return "undecided"
    if bounds[0] <= published <= bounds[1]:
        return "inside" if ours.n >= FEW_SEEDS else "undecided"
    return "above" if ours.mean > published else "below"


def compare(first: BySeed, second: BySeed) -> Comparison:
    """Paired t-test on equal seeds, with its effect size, and in words what weakens it."""
    seeds = sorted(first.keys() & second.keys())
    n = len(seeds)
    warnings = []
    if first.keys() != second.keys():
        warnings.append(f"seed sets differ: {len(first)} and {len(second)} seeds, of which {n} are paired")
    if n < FEW_SEEDS:
        warnings.append(f"{n} paired {'seed is' if n == 1 else 'seeds are'} few; a test wants {FEW_SEEDS} or more")
    differences = [first[seed] - second[seed] for seed in seeds]
    of = spread(differences)
    if of is None:
        return Comparison(0, None, None, None, None, tuple(warnings))
    if of.sem is None:
        return Comparison(1, of.mean, None, None, None, tuple(warnings))
    p, effect = _t_test(of.mean, of.sem, n - 1, of.sem * math.sqrt(n))
    return Comparison(n, of.mean, of.sem, p, effect, tuple(warnings), degrees=n - 1)


def welch(first: BySeed, second: BySeed) -> Comparison:
    """Welch's t-test, unpaired and without equal variances, over all seeds of both."""
    sizes = len(first), len(second)
    few = f"{sizes[0]} and {sizes[1]} seeds are few; a test wants {FEW_SEEDS} or more of each"
    warnings = (few,) if min(sizes) < FEW_SEEDS else ()
    a, b = spread(list(first.values())), spread(list(second.values()))
    if a is None or b is None:
        return Comparison(sizes[0], None, None, None, None, warnings, sizes[1])
    difference = a.mean - b.mean
    if a.sem is None or b.sem is None:
        return Comparison(a.n, difference, None, None, None, warnings, b.n)
    squares = a.sem**2, b.sem**2
    sem, deviation = math.sqrt(sum(squares)), math.sqrt((squares[0] * a.n + squares[1] * b.n) / 2)
    below = squares[0] ** 2 / (a.n - 1) + squares[1] ** 2 / (b.n - 1)
    degrees = sum(squares) ** 2 / below if below else math.inf
    p, effect = _t_test(difference, sem, degrees, deviation)
    return Comparison(a.n, difference, sem, p, effect, warnings, b.n, degrees)


def one_sample_p(of: Spread, value: float) -> float | None:
    """Two-sided t-test of a mean against a value that is taken as exact; None for a single seed.

    >>> round(one_sample_p(spread([1.0, 2.0, 3.0]), 4.0), 4)
    0.0742
    """
    return None if of.sem is None else _t_test(of.mean - value, of.sem, of.n - 1, of.sem * math.sqrt(of.n))[0]


def holm(values: Sequence[float]) -> list[float]:
    """Holm's step-down correction of p-values.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    corrected, highest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = highest
    return corrected


def after_holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction over those p-values that are there."""
    corrected = iter(holm([p for p in values if p is not None]))
    return [None if p is None else next(corrected) for p in values]


def significant_after_holm(values: Sequence[float | None], level: float = BOLD_P) -> list[bool]:
    """Which p-values stay below ``level`` after Holm's correction over all that are there."""
    return [p is not None and p < level for p in after_holm(values)]


def best(
    of: Mapping[str, BySeed],
    *,
    higher: bool = True,
    level: float = BOLD_P,
    why_unpaired: WhyUnpaired = always_paired,
) -> Best:
    """The paper's rule for bold: the best mean, and all that are not significantly worse than it.

    What cannot be tested against the best (too few seeds) is not bold; the warnings say so.
    """
    present = {label: values for label, values in of.items() if values}
    if not present:
        return Best((), ())
    sign = 1.0 if higher else -1.0
    means = {label: sign * sum(values.values()) / len(values) for label, values in present.items()}
    leader = max(means, key=means.__getitem__)
    bold, doubts, tests = [], [], []
    for label in present:
        if label == leader:
            bold.append(label)
            continue
        why, found = _tested(present, label, leader, why_unpaired)
        tests.append(f"Welch's t-test: {why}" if why else "a paired t-test")
        pair = f"{label} against {leader}"
        doubts += [(pair, text) for text in found.warnings]
        if found.p is None or found.difference is None:
            doubts.append((pair, "cannot be tested, so not bold"))
        elif not found.significant(level) or sign * found.difference > 0:  # or even better on the common seeds
            bold.append(label)
    return Best(tuple(bold), tuple(doubts), tuple(tests))


def not_apart(
    of: Mapping[str, BySeed], level: float = PAIRWISE_P, why_unpaired: WhyUnpaired = always_paired
) -> list[tuple[str, str, Comparison]]:
    """The pairs whose difference is not significant at ``level``: none where the ablation's claim holds."""
    found = [(a, b, _tested(of, a, b, why_unpaired)[1]) for a, b in combinations(of, 2)]
    return [(a, b, comparison) for a, b, comparison in found if not comparison.significant(level)]


def _tested(of: Mapping[str, BySeed], a: str, b: str, why_unpaired: WhyUnpaired) -> tuple[str, Comparison]:
    """Why the test of two labels is Welch's (empty: it is paired), and the test."""
    why = why_unpaired(a, b) or ("" if of[a].keys() & of[b].keys() else NO_COMMON)
    return why, (welch if why else compare)(of[a], of[b])


def _t_test(difference: float, sem: float, degrees: float, deviation: float) -> tuple[float, float]:
    """Two-sided p, and the difference in standard deviations."""
    if deviation <= 1e-12 * max(1.0, abs(difference)):  # the t-statistic is 0/0 or infinite
        same = abs(difference) <= 1e-12
        return (1.0, 0.0) if same else (0.0, math.copysign(math.inf, difference))
    return 2 * float(_scipy_special().stdtr(degrees, -abs(difference / sem))), difference / deviation


def _scipy_special() -> Any:
    """Student's distribution. ``scipy.stats`` has it too, and takes five times as long to import."""
    try:
        from scipy import special
    except ImportError:
        raise BadInput("intervals and tests need SciPy: pip install 'gradient-coreset-replay[statistics]'") from None
    return special
