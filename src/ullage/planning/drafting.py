"""How a launch speculates: method, depth, width, and the work of one draft forward."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ullage.comm.layout import layout_of
from ullage.core.deployment import Deployment
from ullage.core.launch import Arg, Launch
from ullage.core.model import Model
from ullage.planning.work import guessed_head, head_work, mtp_work
from ullage.spec.acceptance import Width
from ullage.spec.work import Work

#: words in a method's name that say what drafts: (word, one forward for all, no draft model)
_KINDS = (
    ("ngram", False, True), ("suffix", False, True), ("dflash", True, False), ("medusa", True, False),
    ("dspark", True, False),
)  # fmt: skip
#: methods that use the model's own layer for multi-token prediction
_OWN = ("mtp", "nextn")


#: drafts a round where nothing says
USUAL_DEPTH = 3
#: more than any launch drafts
_MOST = 1024


class Drafting(Struct, frozen=True):
    """The speculation of a launch. ``model`` is the draft's id; None: the target's own layer, or nothing.
    ``tp`` ranks share the draft. ``hidden`` and ``vocabulary`` are the sizes of its rows and of its head.
    ``guessed``: its shape is not known; ``depth_told`` False: neither is its depth."""

    method: str
    width: Width
    model: str | None = None
    tp: int = 1
    work: Work | None = None
    draft: Model | None = None
    hidden: int = 0
    vocabulary: int = 0
    guessed: bool = False
    depth_told: bool = True


class Wish(Struct, frozen=True):
    """What a person asks of a draft beside the launch; None: as the launch says."""

    method: str | None = None
    model: str | None = None
    depth: int | None = None
    topk: int | None = None
    rows: int | None = None


def drafting_of(
    deployment: Deployment, settings: Mapping[str, Arg], wish: Wish | None = None
) -> Drafting | None:
    """How ``deployment`` speculates, by its resolved ``settings`` and what is wished; None: it does not."""
    wish = wish or Wish()
    launch, given = deployment.launch, _object(deployment.launch, "speculative_config")
    method = wish.method or _method(launch, settings, given)
    asked = any(value is not None for value in (wish.model, wish.depth, wish.rows))
    if method is None and not asked:
        return None
    model = wish.model or _text(given.get("model")) or launch.text("speculative_draft_model_path")
    model = model or launch.text("speculative_model")
    name = (method or ("eagle3" if model else "mtp")).lower()
    width, told = _width(launch, settings, given, wish, name)
    tp = _positive(given.get("draft_tensor_parallel_size")) or layout_of(launch).tp
    if model == launch.model and method and "standalone" not in name:
        model = None
    return _with_work(Drafting(name, width, model, tp, depth_told=told), deployment)


def _method(launch: Launch, settings: Mapping[str, Arg], given: Mapping[str, object]) -> str | None:
    setting = settings.get("speculative_algorithm")
    for value in (setting.value if setting else None, launch.get("speculative_algorithm"), given.get("method")):
        if isinstance(value, str) and value and value.upper() != "NONE":
            return value
    if given or launch.text("speculative_model"):
        name = str(given.get("model") or launch.text("speculative_model") or "").lower()
        return next(
            (word for word in ("eagle3", "eagle", "mtp", "ngram", "medusa") if word in name), "draft_model"
        )
    return None


def _width(
    launch: Launch, settings: Mapping[str, Arg], given: Mapping[str, object], wish: Wish, method: str
) -> tuple[Width, bool]:
    """The width of a round, and whether its depth was said."""

    def number(name: str) -> int | None:
        arg = settings.get(name)
        return _positive(arg.value if arg else None) or _positive(launch.get(name))

    tokens = _positive(given.get("num_speculative_tokens")) or number("num_speculative_tokens")
    topk = wish.topk or (None if wish.depth else number("speculative_eagle_topk")) or 1
    rows = wish.rows or (None if wish.depth else number("speculative_num_draft_tokens"))
    parallel, free = next(((p, f) for word, p, f in _KINDS if word in method), (False, False))
    steps = wish.depth or (None if free else number("speculative_num_steps")) or tokens
    if free:  # a match is as long as the width allows, whatever the steps
        steps, topk = steps or (rows - 1 if rows and rows > 1 else None), 1
    depth = steps or USUAL_DEPTH
    if topk <= 1 or not rows:
        rows = depth + 1 if topk <= 1 else min(depth * topk + 1, 64)
    return Width(depth, min(topk, 64), rows, parallel, free), steps is not None


def _with_work(found: Drafting, deployment: Deployment) -> Drafting:
    """The draft's own work: of its catalogue entry, of the target's own layer, or guessed."""
    from msgspec.structs import replace

    target = deployment.model
    if found.width.free or target is None:
        return found
    if found.model is None and any(word in found.method for word in (*_OWN, "eagle")):
        own = mtp_work(deployment)
        if own is not None:
            return replace(found, work=own, tp=layout_of(deployment.launch).tp, hidden=target.hidden_size,
                           vocabulary=target.vocab_size)  # fmt: skip
    draft = _known(found.model)
    work = head_work(draft, deployment, found.tp) if draft is not None else None
    if draft is not None and work is not None:
        return replace(
            found, work=work, draft=draft, hidden=draft.hidden_size, vocabulary=_head_rows(draft, target)
        )
    return replace(found, work=guessed_head(target, found.tp), hidden=target.hidden_size, vocabulary=32_000,
                   guessed=True)  # fmt: skip


def _head_rows(draft: Model, target: Model) -> int:
    """Rows of the draft's head: its own smaller vocabulary where it has one."""
    config = draft.checkpoint.config if draft.checkpoint else {}
    own = config.get("draft_vocab_size")
    return own if isinstance(own, int) and own > 0 else draft.vocab_size or target.vocab_size


def _known(name: str | None) -> Model | None:
    if not name:
        return None
    from ullage.models.load import find

    return find(name)


def _object(launch: Launch, name: str) -> Mapping[str, object]:
    """A setting that is a JSON object; {} where it is none."""
    value: object = launch.get(name)
    if isinstance(value, str) and value.lstrip().startswith("{") and len(value) < 100_000:
        import json

        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST else None
