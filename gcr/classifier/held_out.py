"""Examples that are never trained on: which ones, accuracy on them, and whether an update lost too much of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcr.data.source import stratified
from gcr.memory.examples import digests

CHANCE = 0.05  # level of the sign test for one class
NO_NEWS = 1  # example of a class that turned: too little to say anything about it
ROUNDING = 1e-9  # points


class Split(NamedTuple):
    train: list[int]  # rows
    held_out: list[int]
    copies: int  # rows that are neither, since they equal a held-out example


def split(
    examples: Tensor,
    labels: Sequence[str],
    share: float,
    seed: int,
    remembered: Tensor | None = None,
    replayed: Tensor | None = None,
) -> Split:
    """Hold out ``share`` of every class. A copy of a held-out example, new or ``remembered``, is not trained on; a copy
    of a ``replayed`` one is not held out."""
    own, kept, trained = digests(examples), set(digests(remembered)), set(digests(replayed))
    fresh = [row for row, digest in enumerate(own) if digest not in kept and digest not in trained]
    held_out: list[int] = []
    for row in _drawn([labels[row] for row in fresh], share, seed):
        if own[fresh[row]] not in kept:
            kept.add(own[fresh[row]])
            held_out.append(fresh[row])
    chosen = set(held_out)
    train = [row for row, digest in enumerate(own) if row not in chosen and digest not in kept]
    if bare := set(labels) - {labels[row] for row in train}:  # all its examples are alike: training goes first
        train += [row for row in held_out if labels[row] in bare]
        held_out = [row for row in held_out if labels[row] not in bare]
    return Split(train, held_out, len(labels) - len(train) - len(held_out))


def _drawn(labels: Sequence[str], share: float, seed: int) -> list[int]:
    if not labels:
        return []
    ids = np.unique(np.asarray(labels, dtype=object).astype(str), return_inverse=True)[1]
    return [int(row) for row in np.flatnonzero(stratified(ids.astype(np.int64), share, seed))]


def balanced_rows(labels: Sequence[str], capacity: int, digests: Sequence[bytes]) -> list[int]:
    """At most ``capacity`` rows, as many of every class as of the others where there are enough. Of a class those of
    least digest stay: whatever came in which update, what is kept is a uniform sample of it.

    >>> balanced_rows(["a", "a", "a", "a", "b"], 3, [b"2", b"0", b"3", b"1", b"4"])
    [1, 3, 4]
    """
    seen: Counter[str] = Counter()
    ranked = []
    for row in sorted(range(len(labels)), key=digests.__getitem__):
        ranked.append((seen[labels[row]], digests[row], row))
        seen[labels[row]] += 1
    return sorted(row for _, _, row in sorted(ranked)[:capacity])


@dataclass(frozen=True)
class ClassAccuracy:
    """Of one class on its held-out examples; shares from 0 to 1, None where there is nothing to measure."""

    name: str
    old: bool
    n: int
    before: float | None
    after: float | None
    lost: int = 0  # examples that were right before and are wrong now
    gained: int = 0

    @property
    def points_lost(self) -> float:
        return 0.0 if self.before is None or self.after is None else 100 * (self.before - self.after)


def compare(
    labels: Sequence[str], before: Sequence[str] | None, after: Sequence[str], old: Sequence[str], new: Sequence[str]
) -> list[ClassAccuracy]:
    """Class by class, from the predictions of the classifier before (None: there was none) and after an update."""
    truth, then = np.asarray(labels, dtype=object), np.asarray(after, dtype=object)
    right = then == truth
    was_right = None if before is None else np.asarray(before, dtype=object) == truth
    found = []
    for name in [*old, *new]:
        rows = truth == name
        n, is_old = int(rows.sum()), name in old
        if not n:
            found.append(ClassAccuracy(name, is_old, 0, None, None))
            continue
        known = was_right if is_old else None
        found.append(
            ClassAccuracy(
                name,
                is_old,
                n,
                None if known is None else float(known[rows].mean()),
                float(right[rows].mean()),
                0 if known is None else int((known & ~right)[rows].sum()),
                0 if known is None else int((~known & right)[rows].sum()),
            )
        )
    return found


def mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


@dataclass(frozen=True)
class Verdict:
    """Of an update. ``refused``: why, empty if it is accepted; ``doubt``: a loss that may be chance."""

    before: float | None  # mean over the old classes
    after: float | None
    refused: tuple[str, ...] = ()
    doubt: str = ""

    @property
    def points_lost(self) -> float:
        return 0.0 if self.before is None or self.after is None else 100 * (self.before - self.after)


def judge(classes: Sequence[ClassAccuracy], limit: float) -> Verdict:
    """Refuse where the mean of the old classes falls by more than ``limit`` points, or where one of them does and that
    is more than chance: a class with three examples falls by 33 points when one of them turns."""
    old = [one for one in classes if one.old and one.n]
    verdict = Verdict(mean(one.before for one in old), mean(one.after for one in old))
    refused, unsure = [], []
    if verdict.points_lost > limit + ROUNDING:
        refused.append(f"the old classes lost {verdict.points_lost:.1f} points on average")
    for one in old:
        if one.points_lost <= limit + ROUNDING:
            continue
        loss = f'"{one.name}" lost {one.points_lost:.1f} points'
        if is_more_than_chance(one):
            refused.append(loss)
        elif one.lost - one.gained > NO_NEWS:
            unsure.append(f"{loss} on {one.n} held-out examples")
    doubt = ""
    if unsure and not refused:
        doubt = f"{', '.join(unsure)}, which may be chance; keep more examples with a larger --memory"
    return replace(verdict, refused=tuple(refused), doubt=doubt)


def is_more_than_chance(one: ClassAccuracy) -> bool:
    """The sign test says so, or more than half of the accuracy is gone, with at least two examples."""
    halved = one.points_lost > 50 * (one.before or 0.0) and one.lost - one.gained > NO_NEWS
    return halved or sign_test(one.lost, one.gained) < CHANCE


def sign_test(lost: int, gained: int) -> float:
    """The chance of at least so many losses where a changed example is as likely to be lost as to be gained.

    >>> sign_test(5, 0), sign_test(1, 0)
    (0.03125, 0.5)
    """
    n = lost + gained
    return float(sum(math.comb(n, k) for k in range(lost, n + 1)) / 2**n)


def counts(labels: Iterable[str]) -> Mapping[str, int]:
    return Counter(labels)


def joined(first: Tensor | None, second: Tensor) -> Tensor:
    return second if first is None or not len(first) else torch.cat([first, second])
