"""Textbook non-negative matching pursuit on explicit gradient vectors, with scipy's NNLS inside."""

import numpy as np
from scipy.optimize import nnls


def matching_pursuit(gradients, target, budget, ridge, tolerance=0.0):
    """[n, d] gradients, [d] target -> (support in order of entry, weights [n]) before any top-up."""
    n = len(gradients)
    weights, support = np.zeros(n), []
    while len(support) < min(budget, n):
        if objective(gradients, target, weights, ridge) <= tolerance:
            break
        correlation = gradients @ (target - gradients.T @ weights)
        correlation[support] = -np.inf
        best = int(np.argmax(correlation))
        if correlation[best] <= 1e-12 * np.abs(gradients @ target).max():
            break
        support = [*support, best]
        stacked = np.vstack([gradients[support].T, np.sqrt(ridge) * np.eye(len(support))])
        solved, _ = nnls(stacked, np.concatenate([target, np.zeros(len(support))]))
        weights = np.zeros(n)
        weights[support] = solved
        support = [row for row in support if weights[row] > 0]
        if best not in support:
            break
    return support, weights


def objective(gradients, target, weights, ridge):
    """L_sub of the paper."""
    return float(np.sum((target - gradients.T @ weights) ** 2) + ridge * np.sum(weights**2))
