"""What both engines share when they ask the compatibility rows: a model's weights, draft heads, variables.

EAGLE heads: the fusion layer takes the target's hidden size, the head its vocabulary; read in sglang 0.5.9
(models/llama_eagle3.py) and vllm 0.19.0 (model_executor/models/llama_eagle3.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from packaging.version import Version

from ullage.core.finding import Hazard
from ullage.core.launch import Launch, Value
from ullage.core.model import Model
from ullage.core.patterns import lazy
from ullage.core.tables import load
from ullage.core.versions import Span
from ullage.hardware.compat.software import Ships
from ullage.hardware.compat.subject import between_releases

_BILLIONS = lazy(r"(?<![\w.])(\d{1,4}(?:\.\d{1,2})?)b(?![a-z])", re.IGNORECASE)
_WORDS = ("nvfp4", "mxfp4", "mxfp8", "fp8 block", "fp8", "awq", "gptq", "bitsandbytes")
_INT4 = lazy(r"\bw4a16\b|\bint4\b")


class ShipsTable(Struct, frozen=True, forbid_unknown_fields=True):
    ships: list[Ships]


class VariableTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Variable -> [since, until) of each stretch of releases that reads it; "" is an open side."""

    source: str
    variable: dict[str, list[tuple[str, str]]]


def in_order(found: Iterable[Hazard]) -> list[Hazard]:
    """Each id once, those that stop the launch first."""
    unique: dict[str, Hazard] = {}
    for hazard in found:
        unique.setdefault(hazard.id, hazard)
    return sorted(unique.values(), key=lambda hazard: not hazard.stops)


def ships(package: str) -> list[Ships]:
    """What each release installs; a row holds until the next begins."""
    rows = load(package, "ships.toml", ShipsTable).ships
    following = [row.since for row in rows[1:]] + [None]
    return [
        Ships(row.since, row.torch, row.source, row.flashinfer, until)
        for row, until in zip(rows, following, strict=True)
    ]


def of_model(launch: Launch, model: Model | None) -> dict[str, Value]:
    """ "@attention", "@weights", "@method", "@moe", "@known_model" of a model, as far as it is known."""
    given = (launch.text("quantization") or "").lower().replace("modelopt_fp4", "nvfp4")
    if model is None:
        return {"@weights": _stored(given)}
    mla = model.is_mla
    sparse = any(layer.kind == "mla" and layer.index_dim for layer in model.layers)
    words = (model.quantization or "").lower()
    return {
        "@known_model": True, "@attention": "dsa" if sparse else "mla" if mla else "gqa",
        "@weights": _stored(words or given),
        "@method": _method(words), "@moe": model.num_experts > 0,
    }  # fmt: skip


def _stored(words: str) -> str | None:
    return next((word for word in _WORDS if word in words), "int4" if _INT4.search(words) else None)


def _method(words: str) -> str | None:
    """The engines' name of a quantisation that config.json declares."""
    if words.startswith("modelopt"):
        if "nvfp4" in words or "fp4" in words:
            return "modelopt_fp4"
        return "modelopt_mxfp8" if "mxfp8" in words else "modelopt" if "fp8" in words else None
    first = words.split(" ", 1)[0].replace("-", "_")
    return first or None


def dtype(launch: Launch, model: Model | None) -> str | None:
    """The activations' type: given, else the checkpoint's; None where neither tells."""
    given = launch.text("dtype")
    names = {"half": "float16", "float": "float32"}
    if given and given != "auto":
        return names.get(given, given)
    return model.dtype.lower().removeprefix("torch.") if model is not None and model.dtype else None


def replicated_kv_heads(model: Model | None, ranks: int) -> Iterator[Hazard]:
    """More ranks than KV heads: each head lies on ranks / heads GPUs, so more ranks save no KV memory."""
    heads = {layer.kv_heads for layer in model.layers if layer.kind == "full"} if model else set()
    heads -= {0}
    if model is None or len(heads) != 1 or ranks > 4096:
        return
    count = heads.pop()
    if ranks > count and ranks % count == 0:
        yield Hazard(
            "kv-heads-replicated",
            f"{model.id} has {count} KV head{'s' if count > 1 else ''} and {ranks} ranks share them: each "
            "is kept "
            f"{ranks // count} times, so the KV cache of a GPU is no smaller than at {count}. Data parallel "
            f"attention or replicas hold more tokens.",
            "sglang 0.5.9, configs/model_config.py, and vllm 0.33.0, config/model.py: get_num_kv_heads",
        )  # fmt: skip


def draft(target: Model | None, head: Model | None, head_name: str | None, *, eagle: bool) -> Iterator[Hazard]:
    """A draft that was made for another target: other sizes by its config, else by its name."""
    if head is not None and target is not None:
        yield from _draft_sizes(target, head, eagle=eagle)
    elif eagle and target is not None and head_name:
        yield from _draft_names(target.id, head_name)


def _draft_sizes(target: Model, head: Model, *, eagle: bool) -> Iterator[Hazard]:
    config = head.checkpoint.config if head.checkpoint is not None else {}
    fed = config.get("target_hidden_size")
    width = fed if isinstance(fed, int) and fed > 0 else head.hidden_size
    faults = []
    if eagle and width and target.hidden_size and width != target.hidden_size:
        faults.append(f"it takes hidden states of {width}, the target has {target.hidden_size}")
    if head.vocab_size and target.vocab_size and head.vocab_size != target.vocab_size:
        faults.append(f"its vocabulary is {head.vocab_size:,}, the target's {target.vocab_size:,}")
    if not faults:
        return
    sure = eagle and len(faults[0]) > 0 and "hidden" in faults[0]
    sure = sure and not any("catalogue" in one.source and "shape only" in one.source for one in (target, head))
    yield Hazard(
        "draft-of-another-target",
        f"The draft {head.id} does not belong to {target.id}: {' and '.join(faults)}. Take the head that was "
        f"trained for this very target, or drop speculation.",
        "sglang 0.5.9 and vllm 0.19.0, models/llama_eagle3.py: the layers are built by the head's own sizes",
        certain=sure, stops=sure, phase="graph_capture" if sure else None,
        cause="draft-model-mismatch" if sure else None, message="mat1 and mat2 shapes cannot be multiplied",
    )  # fmt: skip


def _draft_names(target: str, head: str) -> Iterator[Hazard]:
    """Sizes in the names ("70B", "8B"): an EAGLE head bears its target's."""
    wanted, found = (set(_BILLIONS.findall(name[-120:].lower())) for name in (target, head))
    if wanted and found and not wanted & found:
        yield Hazard(
            "draft-named-for-another-target",
            f"By its name the draft {head[-80:]} was made for a {'/'.join(sorted(found))}B model, not for "
            f"{target}. "
            f"An EAGLE head fits only the base it was trained for.",
            "names of the two checkpoints", certain=False,
        )  # fmt: skip


def variables(table: VariableTable, launch: Launch, engine: str, prefixes: tuple[str, ...]) -> Iterator[Hazard]:
    """Variables of the engine that this release does not read: renamed, dropped, not yet there, misspelt."""
    from difflib import get_close_matches

    release = launch.release
    for name in [name for name in launch.env if name.startswith(prefixes)][:100]:
        stretches = table.variable.get(name)
        if stretches is None:
            near = get_close_matches(name[:80], table.variable, n=1, cutoff=0.88)
            if near:
                yield Hazard(
                    "variable-unknown", f"No release of {engine} reads {name[:80]}; did you mean {near[0]}?",
                    table.source, certain=False,
                )  # fmt: skip
        elif release is not None and _unread(release, stretches):
            yield Hazard(
                "variable-not-read",
                f"{engine} {release} does not read {name} ({'; '.join(map(_stretch, stretches))}): it has "
                "no effect.",
                table.source,
            )  # fmt: skip


def _unread(release: Version, stretches: list[tuple[str, str]]) -> bool:
    """True if no stretch holds ``release``; a build between releases may have what the next ones read."""
    if between_releases(release):
        stretches = [("", until) for _, until in stretches]
    return not any(Span(since or None, until or None).holds(release) for since, until in stretches)


def _stretch(limits: tuple[str, str]) -> str:
    since, until = limits
    if not until:
        return f"read from {since.lstrip('≤')} on"
    return f"read before {until}" if since.startswith("≤") else f"read from {since} to before {until}"


def of_environment(env: Mapping[str, str], prefixes: tuple[str, ...]) -> bool:
    """True if any variable could concern the engine, so that its table is worth reading."""
    return any(name.startswith(prefixes) for name in env)
