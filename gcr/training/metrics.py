"""What follows from the accuracy matrix: ``matrix[i][j]`` is the accuracy, in percent, on task j after stage i.

``first[j]`` and ``last[j]`` are the stages in which task j begins and ends.
"""

from __future__ import annotations

Matrix = list[list[float]]


def average_accuracy(matrix: Matrix) -> float:
    """Mean over tasks after the last stage."""
    return _mean(matrix[-1])


def forgetting(matrix: Matrix, first: list[int]) -> float | None:
    """Chaudhry et al. 2018: mean over all tasks but the last of (best accuracy before the last stage - final accuracy).

    Evaluations count from the stage on in which the task begins. None where there was but one stage.

    >>> forgetting([[90.0, 0.0], [70.0, 95.0]], first=[0, 1])
    20.0
    """
    earlier = range(len(matrix) - 1)
    drops = [
        max(matrix[stage][task] for stage in earlier if stage >= begin) - matrix[-1][task]
        for task, begin in enumerate(first[:-1])
        if begin < len(matrix) - 1
    ]
    return _mean(drops) if drops else None


def forgetting_with_last(matrix: Matrix, first: list[int]) -> float | None:
    """As the paper's released code has it: the best accuracy may be the final one, so no task counts below zero.

    >>> forgetting_with_last([[90.0, 65.0, 0.0], [70.0, 60.0, 0.0], [70.0, 50.0, 95.0]], first=[0, 1, 2])
    15.0
    """
    drops = [max(row[task] for row in matrix[begin:]) - matrix[-1][task] for task, begin in enumerate(first[:-1])]
    return _mean(drops) if drops and len(matrix) > 1 else None


def backward_transfer(matrix: Matrix, last: list[int]) -> float | None:
    """Lopez-Paz & Ranzato 2017: mean over all tasks but the last of (final accuracy - accuracy when the task ended).

    >>> backward_transfer([[90.0, 0.0], [70.0, 95.0]], last=[0, 1])
    -20.0
    """
    changes = [matrix[-1][task] - matrix[end][task] for task, end in enumerate(last[:-1]) if end < len(matrix) - 1]
    return _mean(changes) if changes else None


def forward_transfer(matrix: Matrix, first: list[int], untrained: list[float] | None) -> float | None:
    """Lopez-Paz & Ranzato 2017: mean over all tasks but the first of (accuracy just before the task begins - that of
    the untrained network). None where a method does not predict what it has not met.

    >>> forward_transfer([[90.0, 60.0], [70.0, 95.0]], first=[0, 1], untrained=[50.0, 45.0])
    15.0
    """
    if untrained is None:
        return None
    gains = [matrix[begin - 1][task] - untrained[task] for task, begin in enumerate(first) if task and begin]
    return _mean(gains) if gains else None


def learning_accuracy(matrix: Matrix, last: list[int]) -> float:
    """Riemer et al. 2019: mean over tasks of the accuracy when the task ended: how well new things are learnt."""
    return _mean([matrix[end][task] for task, end in enumerate(last)])


def anytime_accuracy(matrix: Matrix, first: list[int]) -> float:
    """Mean over stages of the mean accuracy on the tasks begun so far: what a user who asks at any time gets.

    >>> anytime_accuracy([[90.0, 0.0], [70.0, 80.0]], first=[0, 1])
    82.5
    """
    begun = [[row[task] for task, begin in enumerate(first) if begin <= stage] for stage, row in enumerate(matrix)]
    return _mean([_mean(row) for row in begun])


def summary(matrix: Matrix, first: list[int], last: list[int], untrained: list[float] | None) -> dict[str, object]:
    return {
        "matrix": matrix,
        "accuracy": average_accuracy(matrix),
        "forgetting": forgetting(matrix, first),
        "anytime": anytime_accuracy(matrix, first),
        "learning": learning_accuracy(matrix, last),
        "backward_transfer": backward_transfer(matrix, last),
        "forward_transfer": forward_transfer(matrix, first, untrained),
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
