"""Numbers over seeds: mean ± SEM, intervals, and paired tests between methods that ran on the same seeds.

Seed for seed two runs share the order of examples and the network's first weights, so the difference is taken first and
tested then. SciPy is imported when a test or an interval is asked for.

>>> a = {0: 71.0, 1: 73.0, 2: 72.0, 3: 74.0, 4: 75.0}
>>> b = {0: 70.0, 1: 71.5, 2: 71.0, 3: 72.0, 4: 73.5}
>>> found = compare(a, b)
>>> round(found.difference, 2), round(found.p, 4), round(found.effect, 2)
(1.4, 0.0017, 3.35)
>>> best({"gcr": a, "er": b}).labels
('gcr',)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from gcr.settings import BadInput

BOLD_P = 0.05  # the paper's level for bold
PAIRWISE_P = 1e-3  # and for "all pairwise differences" in its ablation
FEW_SEEDS = 5  # with fewer, a paired test sees only gross differences

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Spread:
    mean: float
    sem: float | None  # None for a single value
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.sem is None else f"{self.mean:.2f} ± {self.sem:.2f}"


@dataclass(frozen=True)
class Comparison:
    """A paired comparison of two methods, first minus second, over the seeds that both have."""

    n: int
    difference: float | None  # None without a common seed
    sem: float | None  # of the difference; None with fewer than two common seeds
    p: float | None  # two-sided; None where there is nothing to test
    effect: float | None  # Cohen's d of the paired differences: their mean in their standard deviations
    warnings: tuple[str, ...]

    def significant(self, level: float = BOLD_P) -> bool:
        return self.p is not None and self.p < level


@dataclass(frozen=True)
class Best:
    labels: tuple[str, ...]  # what is printed bold
    doubts: tuple[tuple[str, str], ...]  # a pair that was compared, and what weakens that

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
    half = float(_scipy_special().stdtrit(of.n - 1, (1 + level) / 2)) * of.sem
    return of.mean - half, of.mean + half


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
    deviation = of.sem * math.sqrt(n)
    if deviation <= 1e-12 * max(1.0, abs(of.mean)):  # the t-statistic is 0/0 or infinite
        same = abs(of.mean) <= 1e-12
        effect = 0.0 if same else math.copysign(math.inf, of.mean)
        return Comparison(n, of.mean, of.sem, 1.0 if same else 0.0, effect, tuple(warnings))
    p = 2 * float(_scipy_special().stdtr(n - 1, -abs(of.mean / of.sem)))
    return Comparison(n, of.mean, of.sem, p, of.mean / deviation, tuple(warnings))


def best(of: Mapping[str, BySeed], *, higher: bool = True, level: float = BOLD_P) -> Best:
    """The paper's rule for bold: the best mean, and all that are not significantly worse than it.

    What cannot be tested against the best (no two common seeds) is not bold; the warnings say so.
    """
    present = {label: values for label, values in of.items() if values}
    if not present:
        return Best((), ())
    sign = 1.0 if higher else -1.0
    means = {label: sign * sum(values.values()) / len(values) for label, values in present.items()}
    leader = max(means, key=means.__getitem__)
    bold, doubts = [], []
    for label, values in present.items():
        if label == leader:
            bold.append(label)
            continue
        found = compare(values, present[leader])
        pair = f"{label} against {leader}"
        doubts += [(pair, text) for text in found.warnings]
        if found.p is None or found.difference is None:
            doubts.append((pair, "cannot be tested, so not bold"))
        elif not found.significant(level) or sign * found.difference > 0:  # or even better on the common seeds
            bold.append(label)
    return Best(tuple(bold), tuple(doubts))


def not_apart(of: Mapping[str, BySeed], level: float = PAIRWISE_P) -> list[tuple[str, str, Comparison]]:
    """The pairs whose difference is not significant at ``level``: none where the ablation's claim holds."""
    found = [(a, b, compare(of[a], of[b])) for a, b in combinations(of, 2)]
    return [(a, b, comparison) for a, b, comparison in found if not comparison.significant(level)]


def _scipy_special() -> Any:
    """Student's distribution. ``scipy.stats`` has it too, and takes five times as long to import."""
    try:
        from scipy import special
    except ImportError:
        raise BadInput("intervals and tests need SciPy: pip install 'gradient-coreset-replay[statistics]'") from None
    return special
