"""The nearest of many words: small edit distances first, then the same parts in another order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

MAX_WORD = 80
_COMMON = Counter(dict.fromkeys(("enable", "disable", "max", "num", "no", "use"), 9))


def nearest(word: str, known: Iterable[str]) -> tuple[str | None, bool]:
    """The known word that ``word`` most likely means, and whether it is near enough for a slip."""
    word = word[:MAX_WORD]
    limit = max(1, min(3, (len(word) - 2) // 5))
    letters, found = Counter(word), []
    parts = _parts(word)
    shared: list[tuple[float, str]] = []
    for each in dict.fromkeys(known):
        theirs = _parts(each)
        if parts == theirs:
            found.append((1, each))
        elif abs(len(each) - len(word)) <= limit and _apart(letters, each) <= 2 * limit:
            away = distance(word, each, limit)
            found += [(away, each)] if away <= limit else []
        telling = (parts & theirs) - _COMMON
        if telling:
            shared.append(((parts & theirs).total() / max(parts.total(), theirs.total()), each))
    if found:
        return min(found, key=lambda pair: (pair[0], len(pair[1]), pair[1]))[1], True
    best = max(shared, key=lambda pair: (pair[0], pair[1]), default=(0.0, ""))
    return (best[1], False) if best[0] > 0.5 else (None, False)


def _parts(word: str) -> Counter[str]:
    return Counter(part for part in word.lower().replace("_", "-").split("-") if part)


def _apart(letters: Counter[str], other: str) -> int:
    """Letters that only one of two words has: at most twice their distance."""
    theirs = Counter(other)
    return sum((letters - theirs).values()) + sum((theirs - letters).values())


def distance(a: str, b: str, limit: int) -> int:
    """Insertions, deletions, replacements and swaps of neighbours from ``a`` to ``b``; ``limit`` + 1 where
    there are more."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
        if min(row) > limit:
            return limit + 1
    return row[-1]
