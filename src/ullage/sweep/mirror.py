"""The modules of the engines and of ``plan`` once more, under built-ins that follow a ``Number``.

The same files, loaded a second time beside the first: ``plan`` itself is not touched. What differs is what
their code finds under the names int, float, min, max, sum and range, and under math and functools; for plain
numbers these do what they always do.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import math
import operator
import threading
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from ullage.sweep.number import Follower, NotHashable, Number, plain
from ullage.sweep.search import searching

#: what is loaded again; the rest of ullage is data and reading, and serves as it is
AGAIN = ("ullage.core", "ullage.engines", "ullage.planning")


#: functions that look for a number by halving; they are followed as one operation
SEARCHES = {"ullage.engines.vllm.kv_fit": "bisect"}


def whole(value: Any = 0, *base: Any) -> Any:
    """int()"""
    return math.trunc(value) if type(value) is Number else int(value, *base)


def real(value: Any = 0.0) -> Any:
    """float()"""
    if type(value) is not Number:
        return float(value)
    return Number(float(value.value), value.counted(), value.follower)


class _Type(type):
    """A name for int or float that can still be asked whether something is one."""

    of: type
    make: Callable[..., Any]

    def __call__(cls, *args: Any) -> Any:
        return cls.make(*args)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.of)

    def __or__(cls, other: Any) -> Any:
        return cls.of | (other.of if isinstance(other, _Type) else other)

    def __ror__(cls, other: Any) -> Any:
        return other | cls.of

    def __getattr__(cls, name: str) -> Any:
        return getattr(type.__getattribute__(cls, "of"), name)


def _named(of: type, make: Callable[..., Any]) -> _Type:
    return _Type(of.__name__, (), {"of": of, "make": staticmethod(make)})


def span(*ends: Any) -> range:
    """range(); of an end that is followed only the number of steps up to it is pinned."""
    start, end, step = (0, *ends, 1) if len(ends) == 1 else (*ends, 1)[:3]
    if type(end) is not Number or type(start) is Number or type(step) is Number or step < 1:
        return range(*(operator.index(end) for end in ends))
    steps = operator.index(most((end - start + (step - 1)) // step, 0))
    return range(start, start + steps * step, step)


def least(*values: Any, **options: Any) -> Any:
    """min()"""
    return _extreme("min", min, values, options)


def most(*values: Any, **options: Any) -> Any:
    """max()"""
    return _extreme("max", max, values, options)


def _extreme(name: str, function: Callable[..., Any], values: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if len(values) == 2 and not options:
        first, second = values
        if type(first) is Number:
            return first.arithmetic(name, second)
        return second.arithmetic(name, first) if type(second) is Number else function(first, second)
    items = list(values[0]) if len(values) == 1 else list(values)
    if "key" in options or not any(type(item) is Number for item in items):
        return function(items, **options)
    known = [item for item in items if type(item) is not Number]
    followed = [item for item in items if type(item) is Number]
    found = followed[0]
    for item in [*followed[1:], *([function(known)] if known else [])]:
        found = found.arithmetic(name, item)
    return found


def total(values: Iterable[Any], start: Any = 0) -> Any:
    """sum(); comparisons of one number with several constants count together: how many do not exceed it."""
    items = list(values)
    limits: dict[int, list[Number]] = {}
    for item in items:
        if type(item) is Number and (subject := _limited(item)) is not None:
            limits.setdefault(subject, []).append(item)
    grouped = {subject: same for subject, same in limits.items() if len(same) >= FEW}
    counted = {id(item) for same in grouped.values() for item in same}
    rest = sum((item for item in items if id(item) not in counted), start)
    return sum((_count(subject, same) for subject, same in grouped.items()), rest)


#: fewer comparisons are added one by one
FEW = 4


def _limited(item: Number) -> int | None:
    """The node that ``item`` asks to be at least a constant; None where it is something else."""
    operations = item.follower.graph.operations
    asked = operations[item.node]
    if not item.is_truth or asked.name != "ge" or operations[asked.arguments[1]].name != "constant":
        return None
    return asked.arguments[0]


def _count(subject: int, items: list[Number]) -> Any:
    operations = items[0].follower.graph.operations
    limits = sorted(float(operations[operations[item.node].arguments[1]].constant) for item in items)  # type: ignore[arg-type]
    value = sum(bool(item.value) for item in items)
    return items[0].made(value, "count", subject, constant=tuple(limits))


def _erf(value: Any) -> Any:
    return (
        value.made(math.erf(value.value), "erf", value.counted()) if type(value) is Number else math.erf(value)
    )


def _is_finite(value: Any) -> bool:
    return math.isfinite(plain(value))  # inputs are finite, and so is what is made of them


def _lru_cache(maxsize: Any = 128, typed: bool = False) -> Any:
    """functools.lru_cache; what is followed goes past it."""
    if callable(maxsize):
        return _lru_cache()(maxsize)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        stored = functools.lru_cache(maxsize, typed)(function)

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            return stored(*args, **named) if _storable((args, *named.values())) else function(*args, **named)

        return call

    return decorate


def _cache(function: Callable[..., Any]) -> Any:
    return _lru_cache(None)(function)


class _Following(threading.local):
    """Who follows a plan in this thread."""

    follower: Follower | None = None


FOLLOWING = _Following()


def _storable(key: object) -> bool:
    """Whether a cache may keep ``key``: not where a number in it is being followed."""
    follower = FOLLOWING.follower
    if follower is None:
        return True
    follower.caching = True
    try:
        hash(key)
    except NotHashable:
        return False
    except TypeError:
        return True  # the cache itself will say so
    finally:
        follower.caching = False
    return True


def _stand_in(module: ModuleType, **names: Any) -> ModuleType:
    found = ModuleType(module.__name__)
    found.__dict__.update(module.__dict__)
    found.__dict__.update(names)
    return found


class Mirror:
    """Modules loaded again, by name."""

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}
        self.instead: dict[str, ModuleType] = {
            "math": _stand_in(math, erf=_erf, isfinite=_is_finite),
            "functools": _stand_in(functools, lru_cache=_lru_cache, cache=_cache),
            "importlib": _stand_in(importlib, import_module=self.import_module),
        }
        self.builtins: dict[str, Any] = {
            **vars(builtins), "__import__": self.find, "int": _named(int, whole), "float": _named(float, real),
            "min": least, "max": most, "sum": total, "range": span,
        }  # fmt: skip

    def module(self, name: str) -> ModuleType:
        """The second instance of ``name``, loaded when it is first asked for."""
        found = self.modules.get(name)
        return found if found is not None else self.load(name)

    def load(self, name: str) -> ModuleType:
        importlib.import_module(name)  # data tables look up the names of their types there
        parent, _, child = name.rpartition(".")
        package = self.module(parent) if mirrored(parent) else None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(name)
        module = importlib.util.module_from_spec(spec)
        module.__dict__["__builtins__"] = self.builtins
        self.modules[name] = module
        spec.loader.exec_module(module)
        if name in SEARCHES:
            setattr(module, SEARCHES[name], searching(getattr(module, SEARCHES[name])))
        if package is not None:
            setattr(package, child, module)
        return module

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        return self.module(name) if mirrored(name) else importlib.import_module(name, package)

    def find(
        self,
        name: str,
        scope: Any = None,
        local: Any = None,
        names: tuple[str, ...] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """__import__()"""
        if name in self.instead and level == 0:
            return self.instead[name]
        if name == "ullage" and names:
            return self.package(names)
        if not mirrored(name):
            return builtins.__import__(name, scope, local, names or (), level)
        module = self.module(name)
        for child in names or ():
            if not hasattr(module, child) and importlib.util.find_spec(f"{name}.{child}") is not None:
                self.module(f"{name}.{child}")
        return module

    def package(self, names: tuple[str, ...]) -> ModuleType:
        """``from ullage import engines``: the package itself, with the second instances in it."""
        found = _stand_in(importlib.import_module("ullage"))
        for child in names:
            found.__dict__[child] = self.import_module(f"ullage.{child}")
        return found


def mirrored(name: str) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in AGAIN)
