"""The algebra of speculation: acceptance, tokens a round, time a round, and when it pays. Pure functions.

Words: k draft tokens are proposed in a round; a verify pass has k + 1 rows a request; L tokens come out of it
on average, the bonus token included (1 <= L <= k + 1). Times are in any one unit. After arXiv 2211.17192.
"""

from __future__ import annotations

from collections.abc import Sequence

#: halvings of an interval: beyond the precision of a float
_HALVINGS = 60


def expected_length(positions: Sequence[float]) -> float:
    """Tokens a round, L = 1 + sum of a_i: a_i is the share of rounds in which positions 1 .. i are all
    accepted.

    >>> round(expected_length((0.645, 0.393, 0.240)), 3)
    2.278
    """
    return 1.0 + sum(positions)


def positions_of(alpha: float, k: int) -> tuple[float, ...]:
    """a_i = alpha ** i for k positions: each is accepted with probability ``alpha`` once those before it
    are."""
    return tuple(alpha**i for i in range(1, k + 1))


def alpha_of(length: float, k: int) -> float:
    """The constant conditional acceptance with which k draft tokens give ``length`` tokens a round:
    (1 - alpha^(k+1)) / (1 - alpha) = L, by bisection. 0 for lengths up to 1, 1 from k + 1 on.

    >>> round(alpha_of(2.687, 3), 3)
    0.739
    """
    if k <= 0 or length <= 1:
        return 0.0
    if length >= k + 1:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if expected_length(positions_of(middle, k)) < length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def extended(positions: Sequence[float], k: int) -> tuple[float, ...]:
    """The first k of ``positions``; those that were not measured go on with the last conditional acceptance
    (with the mean one where only one is known, it is the same): a_{i+1} = a_i x a_n / a_{n-1}."""
    found = list(positions[:k])
    if not found:
        return (0.0,) * k
    before = positions[-2] if len(positions) > 1 else 1.0
    ratio = min(1.0, positions[-1] / before) if before > 0 else 0.0
    while len(found) < k:
        found.append(found[-1] * ratio)
    return tuple(found)


def speedup(length: float, baseline: float, speculative: float) -> float:
    """L x T_1 / T_spec: how many times faster each request gets its tokens. Both times of the same batch."""
    return length * baseline / speculative


def break_even_length(baseline: float, speculative: float, gain: float = 1.0) -> float:
    """Tokens a round that speculation must exceed to be ``gain`` times as fast: g x T_spec / T_1.

    30 ms of all-reduce and 11.2 ms of the rest against a step of 11.17 ms need 3.69; three rows give at most 3.
    """
    return gain * speculative / baseline


def break_even_call(length: float, baseline: float, rest: float, count: int, gain: float = 1.0) -> float | None:
    """What each of ``count`` all-reduces of a verify pass may take: (L x T_1 / g - O) / A, where O is the round
    without them. None where even all-reduces that take no time would not do."""
    if count <= 0:
        return None
    allowed = (length * baseline / gain - rest) / count
    return allowed if allowed >= 0 else None


def cap(k: int) -> int:
    """The most tokens that a round of k drafts can give: all of them and the bonus."""
    return k + 1


def distinct_experts(num_experts: int, per_token: int, rows: float) -> float:
    """Experts that ``rows`` tokens touch together, if each draws its own at random: E x (1 - (1 - k / E)^n).

    Routing of real tokens is correlated, so this is an upper estimate (see ``independent_rows``).
    >>> round(distinct_experts(384, 8, 3), 1)
    23.5
    """
    if num_experts <= 0 or per_token <= 0:
        return 0.0
    missed: float = (1.0 - min(1.0, per_token / num_experts)) ** max(0.0, rows)
    return num_experts * (1.0 - missed)


def independent_rows(sequences: int, rows_each: int, between: float, within: float) -> float:
    """How many independent tokens draw as many experts as ``rows_each`` neighbours of each of ``sequences``
    requests. Tokens choose like each other: each request beyond the first counts ``between``, each further
    token of a request ``within``."""
    return (1.0 + max(0, sequences - 1) * between) * (1.0 + max(0, rows_each - 1) * within)


def compute_bound_rows(flops_per_s: float, bytes_per_s: float, bytes_per_param: float) -> float:
    """Rows beyond which a matrix takes longer to multiply than to read: FLOPS x b / (2 x BW)."""
    return flops_per_s * bytes_per_param / (2.0 * bytes_per_s)
