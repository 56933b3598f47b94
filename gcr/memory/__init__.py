"""What is remembered, how it is filled and how it is replayed."""

from gcr.memory.balanced import BalancedReservoir, deal_priorities, offer_balanced, update_losses
from gcr.memory.buffer import Buffer
from gcr.memory.examples import Examples
from gcr.memory.gss_greedy import GssGreedy
from gcr.memory.policy import POLICIES, Policy, Reservoir
from gcr.memory.sampling import SAMPLERS, Coin, Distinct, Sampler, Split

__all__ = [
    "POLICIES",
    "SAMPLERS",
    "BalancedReservoir",
    "Buffer",
    "Coin",
    "Distinct",
    "Examples",
    "GssGreedy",
    "Policy",
    "Reservoir",
    "Sampler",
    "Split",
    "deal_priorities",
    "offer_balanced",
    "update_losses",
]
