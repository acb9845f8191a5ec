"""The draft checkpoint does not belong to this target, or is not loaded as the draft it is.

What you see: after the target has loaded, "mat1 and mat2 shapes cannot be multiplied", a size mismatch or a
KeyError for a layer in the draft worker: while its weights load or in its graph capture.

What misleads: graph capture wraps it in memory advice; the quantisation of the target is suspected.

What is true: an EAGLE head is made for one target: its fusion layer takes the target's hidden size (twice, or
three times for EAGLE-3) and its vocabulary. A head for another base has other sizes. A draft whose
config.json declares a full model's architecture is loaded as one.

What helps: the draft trained for exactly this target, with the algorithm it was made for (EAGLE or EAGLE3),
and an architecture name that the engine knows; or no speculation.
"""

from __future__ import annotations

import re

from ullage.core.finding import Case, Finding
from ullage.engines.sglang.causes._terms import advice, draft_begun, proof, speculates

_SHAPES = re.compile(
    r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)"
    r"|size mismatch|must match the (?:size|existing size)|shape '\[[^\]]*\]' is invalid|shape mismatch"
    r"|Expected size \d+ but got size \d+|sizes of tensors must match",
    re.IGNORECASE,
)
_NAMES = re.compile(
    r"KeyError: '[^']*(?:layers?\.|midlayer|fc\.|embed|lm_head|norm|d2t|t2d|hot_token)[^']*'"
    r"|has no attribute '(?:hot_token_id|set_embed\w*|get_embed\w*|lm_head|embed_tokens|midlayer|fc"
    r"|model|capture_aux\w*"
    r"|set_eagle3\w*)'|not found in params_dict|draft[^\n]{0,60}(?:does not match|mismatch|not supported)"
    r"|AssertionError|IndexError|KeyError",
)
#: names that only a draft head has, or is asked for
_OWN = re.compile(
    r"'(?:set_embed_and_head|get_embed_and_head|hot_token_id|set_eagle3\w*|capture_aux_hidden\w*|midlayer[^']*|fc\.\w+)'"
    r"|KeyError: '(?:layers\.\d|d2t|t2d|midlayer)"
)
_DRAFT_FRAMES = re.compile(
    r"speculative/|eagle_?\w*worker|draft|_eagle3?\.py|_nextn\.py|_mtp\.py", re.IGNORECASE
)

#: a draft worker is at work, whatever the log shows of the arguments
_WORKER = re.compile(r"speculative/\w*(?:worker|draft)\w*\.py|:(?:maybe_)?init_draft_worker$", re.MULTILINE)


def test(case: Case) -> Finding | None:
    drafts = speculates(case) or _WORKER.search(case.frames)
    if case.root is None or not drafts or case.phase in ("args", "serving"):
        return None
    framed = bool(_DRAFT_FRAMES.search(case.frames))
    shapes = _SHAPES.search(case.text)
    named = _OWN.search(case.text) or (framed and _NAMES.search(case.text))
    if not (framed or draft_begun(case) or _OWN.search(case.text)) or not (shapes or named):
        return None
    return Finding(
        cause="draft-model-mismatch", certainty="certain" if shapes else "likely", weight=34,
        summary="The draft model does not fit this target: its layers have other sizes or names.",
        explanation=_sizes(shapes) + "An EAGLE head fits only the base it was trained for; memory and "
                                     "the target's "
        "quantisation have no part in it.",
        evidence=proof(case),
        fixes=(
            advice("a draft trained for this very target (same hidden size and vocabulary)"),
            advice("or a launch without speculative decoding, to check the target"),
        ),
    )  # fmt: skip


def _sizes(found: re.Match[str] | None) -> str:
    if found is None or found[2] is None:
        return ""
    return f"The draft's layer takes {found[3]} inputs, it was given {found[2]}. "
