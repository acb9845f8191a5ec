"""What the types of a campaign file cannot say: what is wrong with it, and at which key."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ullage.core.errors import CommandError, InputError
from ullage.lab.campaign import durations
from ullage.lab.campaign.file import (
    BASELINE,
    DRIFT,
    MOST_APPROACHES,
    Benchmark,
    Campaign,
    Change,
    Interval,
    Limits,
    Space,
    Where,
)  # fmt: skip

Fault = tuple[str, tuple[str | int, ...], str | None]


def faults(c: Campaign) -> Iterator[Fault]:
    """What the types cannot say."""
    yield from _launch_faults(c)
    if c.approaches and c.space:
        yield "a campaign has approaches or a space, not both", ("space",), None
    if not c.approaches and not c.space:
        yield "nothing to try: approaches or a space is needed", (), "ullage campaign init writes an example"
    if len(c.approaches) > MOST_APPROACHES:
        yield f"more than {MOST_APPROACHES} approaches", ("approaches",), "use a space"
    names: set[str] = {BASELINE, DRIFT}
    for i, approach in enumerate(c.approaches):
        if approach.name in names:
            yield (
                f"{approach.name!r} is taken",
                ("approaches", i, "name"),
                "each name once; baseline is ullage's",
            )
        if not approach.anything:
            yield "changes nothing: flags, env, image, build or launch is needed", ("approaches", i), None
        names.add(approach.name)
        yield from _change_faults(approach, ("approaches", i))
    yield from _change_faults(c.baseline, ("baseline",))
    if c.space:
        yield from _space_faults(c.space)
    yield from _benchmark_faults(c.benchmark)
    yield from _length_faults(c)
    yield from _where_faults(c.where)


def _launch_faults(c: Campaign) -> Iterator[Fault]:
    from ullage.planning.plan import engine_of

    launches: list[tuple[str, tuple[str | int, ...]]] = [(c.launch, ("launch",))]
    launches += [(a.launch, ("approaches", i, "launch")) for i, a in enumerate(c.approaches) if a.launch]
    for text, path in launches:
        try:
            engine_of(text).parse(text, c.engine_version)
        except (CommandError, InputError) as error:
            yield error.what, path, error.hint


def _change_faults(change: Change, path: tuple[str | int, ...]) -> Iterator[Fault]:
    for flag in change.flags:
        if not re.fullmatch(r"-{0,2}[A-Za-z][A-Za-z0-9_.-]*", flag):
            yield "is no flag's name", (*path, "flags", flag), 'such as max-num-seqs or "--tp"'


def _space_faults(space: Space) -> Iterator[Fault]:
    if not space.flags and not space.env:
        yield "an empty space: flags or env is needed", ("space",), None
    for group, axes in (("flags", space.flags), ("env", space.env)):
        for name, axis in axes.items():
            path = ("space", group, name)
            if isinstance(axis, list):
                if not axis:
                    yield "no values to choose from", path, "[1, 2, 4]"
                elif len({repr(value) for value in axis}) < len(axis):
                    yield "a value stands there twice", path, None
            else:
                yield from _interval_faults(axis, path, space.sampler)
    if space.sampler != "grid" and space.trials is None:
        yield "is missing", ("space", "trials"), "how many launches may be measured"


def _interval_faults(axis: Interval, path: tuple[str | int, ...], sampler: str) -> Iterator[Fault]:
    if axis.low > axis.high:
        yield "low is above high", path, None
    if axis.step is not None and axis.step <= 0:
        yield "a step must be above 0", (*path, "step"), None
    if axis.log and (axis.low <= 0 or axis.step is not None):
        yield "log needs low above 0 and no step", (*path, "log"), None
    if sampler == "grid" and axis.step is None:
        yield "a grid needs a step or a list of values", path, "[0.7, 0.8, 0.9]"


def _benchmark_faults(b: Benchmark) -> Iterator[Fault]:
    if b.kind == "command" and not b.command:
        yield "is missing", ("benchmark", "command"), "the command, with {url} or {port} in it"
    if b.kind == "command" and not b.metrics:
        yield (
            "is missing",
            ("benchmark", "metrics"),
            'output_throughput: {json: "path.in.result"} or {regex: ".."}',
        )
    if b.kind != "command" and b.command:
        yield "is for kind: command", ("benchmark", "command"), "args are the flags of a known benchmark"
    for name, source in b.metrics.items():
        path = ("benchmark", "metrics", name)
        if (source.json is None) == (source.regex is None):
            yield "json or regex is needed, one of them", path, None
        if source.regex is not None:
            yield from _regex_faults(source.regex, (*path, "regex"))


def _regex_faults(text: str, path: tuple[str | int, ...]) -> Iterator[Fault]:
    try:
        groups = re.compile(text).groups
    except (re.error, OverflowError, RecursionError) as error:
        yield f"not a regular expression: {error}", path, None
        return
    if groups != 1:
        yield f"has {groups} groups", path, "one group: the number"


def _length_faults(c: Campaign) -> Iterator[Fault]:
    for name in Limits.__struct_fields__:
        value = getattr(c.limits, name)
        if value is not None and not _is_length(value):
            yield f"not a length of time: {str(value)[:40]!r}", ("limits", name), '"90s", "20m", "1h30m"'
    if not _is_length(c.where.slurm.time):
        yield "not a length of time", ("where", "slurm", "time"), '"4h"'


def _is_length(value: str | float) -> bool:
    try:
        durations.seconds(value)
    except ValueError:
        return False
    return True


def _where_faults(where: Where) -> Iterator[Fault]:
    if where.kind == "ssh" and not where.hosts:
        yield "is missing", ("where", "hosts"), "names as ssh knows them"
    if where.kind != "ssh" and where.hosts:
        yield "is for kind: ssh", ("where", "hosts"), None
    if where.gpus is not None and len(set(where.gpus)) < len(where.gpus):
        yield "a GPU is named twice", ("where", "gpus"), None
    if where.gpus is not None and where.gpus_each and where.side_by_side * where.gpus_each > len(where.gpus):
        yield (f"{where.side_by_side} side by side on {where.gpus_each} GPUs each need more than the "
               f"{len(where.gpus)} named", ("where", "side_by_side"), None)  # fmt: skip
