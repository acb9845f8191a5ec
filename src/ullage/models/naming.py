"""Names of models as people write them, word by word: which row of the catalogue a name means.

"<Qwen2.5-72B>", "Qwen2.5-7B quantised", "gemma-4-26B-AWQ", "owner/Llama3-8B-Chinese-Chat", "Kimi-Linear".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from msgspec import Struct

#: words of storage, of training, of description: they change no shape
_STORAGE = re.compile(
    r"(?:nv|mx)?fp\d+|bf16|f16|int\d(?:mix)?|w\d+[aw]\d+|[248]-?bits?|bits?|bpw|\d(?:\.\d+)?bpw|awq|gptq|marlin|auto|round"
    r"|autoround|bnb|bitsandbytes|nf4|unsloth|gguf|exl[23]|hqq|aqlm|quark|mlx|torchao|quanti[sz]ed|quant|dynamic|static|block"
    r"|tensor|channel|per|kv|i?q\d|ud|mtp|nextn|modelopt|ct|mixed|qat|xl|[kmsl]|moe|only|experts?|online|checkpoint|group\d*|g\d+|sym|asym"
)
_NOISE = frozenset(
    "instruct it chat base hf pt model models thinking reasoning preview exp experimental uncensored"
    " abliterated heretic derestricted"
    " dense hybrid linear-attention class weights series family card original converted the of and a with rl"
    " sft dpo final latest main"
    " tuned finetuned finetune merged rebase copy local test".split()
)
#: words that make another model of a name: what has one is not what lacks it
_DISTINCT = frozenset(
    "flash pro air mini nano micro tiny small medium large super ultra next lite scout maverick vl omni audio"
    " vision ocr"
    " asr tts distill eagle eagle2 eagle3 draft drafter speculator dflash dflash2 dspark medusa assistant lora"
    " adapter embedding"
    " reranker reward guard reap pruned lightning linear max plus turbo edge".split()
)
_BITS = re.compile(r"\b([248])[-_ ]bits?\b")
_SIZE = re.compile(r"e?\d+(?:\.\d+)?[bmt]|\d+x\d+b")
_ACTIVE = re.compile(r"a\d+(?:\.\d+)?b")
_DATE = re.compile(r"\d{4}|\d{6}")
#: "v2" behind a word of storage counts the copies, not the models
_REVISION = re.compile(r"v?\d(?:\.\d)?")
_VERSION = re.compile(r"[vkmr]?\d+(?:\.\d+)*[a-z]?")
_WHOLE = re.compile(
    r"e?\d.*|a\d+(?:\.\d+)?b|w\d+[aw]\d+|[a-z]\d[\w.]*|(?:nv|mx)?fp\d+|bf16|int\d\w*|exl\d|nf4|eagle\d?|dflash\d?|i?q\d"
)


class Words(Struct, frozen=True):
    """``raw``: every word of a name; ``core``: those that name the model."""

    raw: frozenset[str]
    core: frozenset[str]


@lru_cache(maxsize=4096)
def words(name: str) -> Words:
    """The words of a name, letters and their numbers apart: "Qwen3.8-27B-NVFP4" -> qwen 3.8 27b nvfp4."""
    found: list[str] = []
    core: list[str] = []
    stored = False
    for piece in re.split(r"[^a-z0-9.]+", _BITS.sub(r"\1bit", name.lower()[:256])):
        piece = piece.strip(".")
        apart = None if _WHOLE.fullmatch(piece) else re.fullmatch(r"([a-z]{2,})(\d.*)", piece)
        for word in apart.groups() if apart else [piece] if piece else []:
            found.append(word)
            storage = _STORAGE.fullmatch(word) is not None
            if not storage and word not in _NOISE and not (stored and _REVISION.fullmatch(word)):
                core.append(word)
            stored = stored or storage
    return Words(frozenset(found), frozenset(core))


def nearest(name: str, rows: Mapping[str, Words], shape: Callable[[str], str]) -> str | None:
    """The row that ``name`` means; None where it names no model, or several that differ. ``shape`` tells
    the shape of a row."""
    asked = words(name)
    if not any(word.isalpha() and len(word) > 1 for word in asked.core) or len(asked.core) < 2:
        return None
    near = [(row, has) for row, has in rows.items() if not asked.core.isdisjoint(has.core)]
    for fits in (_same, _shorter, _longer, _family):
        found = [(row, rank) for row, has in near if (rank := fits(asked.core, has.core)) is not None]
        if found:
            best = max(rank for _, rank in found)
            kept = {row: rows[row] for row, rank in found if rank == best}
            return _one(kept, asked.raw, shape)
    return None


def _one(rows: Mapping[str, Words], raw: frozenset[str], shape: Callable[[str], str]) -> str | None:
    if len({shape(row) for row in rows}) > 1:
        return None
    return max(sorted(rows, key=len), key=lambda row: len(rows[row].raw & raw))


def _same(asked: frozenset[str], has: frozenset[str]) -> int | None:
    return 0 if asked == has else None


def _shorter(asked: frozenset[str], has: frozenset[str]) -> int | None:
    """The name leaves out sizes or dates of the row: "gemma-4-26B" of gemma-4-26B-A4B."""
    more = has - asked
    open_ = all(_SIZE.fullmatch(word) or _ACTIVE.fullmatch(word) or _DATE.fullmatch(word) for word in more)
    return -len(more) if asked < has and open_ else None


def _longer(asked: frozenset[str], has: frozenset[str]) -> int | None:
    """The name is that of a row and more: a fine-tune of it. No other size, release or kind of model."""
    has = has - {word for word in has - asked if _DATE.fullmatch(word)}
    more = asked - has
    if not has < asked or len(has) < 2 or more & _DISTINCT:
        return None
    sized = any(_SIZE.fullmatch(word) for word in has)
    for word in more:
        if (_SIZE.fullmatch(word) and sized) or _ACTIVE.fullmatch(word):
            return None
        if _VERSION.fullmatch(word) and not _DATE.fullmatch(word) and not _SIZE.fullmatch(word):
            return None
    exact = any(_SIZE.fullmatch(word) or _ACTIVE.fullmatch(word) or _VERSION.fullmatch(word) for word in has)
    return len(has) if exact else None


def _family(asked: frozenset[str], has: frozenset[str]) -> int | None:
    """A family and a size: "Qwen 80B"."""
    sized = any(_SIZE.fullmatch(word) for word in asked)
    return -len(has - asked) if sized and asked < has and not (has - asked) & _DRAFTS else None


_DRAFTS = frozenset("eagle eagle2 eagle3 speculator dflash assistant vl omni distill".split())
