"""The asked context is longer than the configuration of the model allows.

What you see: "User-specified max_model_len (N) is greater than the derived max_model_len
(max_position_embeddings=M or model_max_length=... in model's config.json)", as a validation error of
ModelConfig, before anything is loaded.

What misleads: it is taken for a lack of memory, because the same flag cures the memory errors. The variable
that the message names removes the check, not the limit: positions beyond it give wrong text or an illegal
access.

What is true: the checkpoint's config.json allows fewer positions than were asked for. No memory is involved.

What helps: at most the derived length; for a longer context a model or a rope scaling that is made for it,
and only then VLLM_ALLOW_LONG_MAX_MODEL_LEN=1.
"""

from __future__ import annotations

import re

from ullage.core.finding import Case, Finding, Refuted
from ullage.engines.vllm.causes._case import advice, found, ran, says, verbatim

#: config/model.py _get_and_verify_max_len, 0.10.2+; config.py before
_CHECK = re.compile(
    r"max_model_len \((?P<asked>[\d,]+)\) is greater than (?:the derived max_model_len "
    r")?\(?(?:\w+=)?(?P<limit>[\d,]+)?"
)


#: torch inductor's check of an index into a table (positions of the rotary embedding), printed by the kernel
_TABLE = re.compile(r"index out of bounds: 0 <= \w+ < (?P<limit>\d+)")


def test(case: Case) -> Finding | None:
    match = _CHECK.search(case.text) or (_CHECK.search(case.log) if case.phase in (None, "args") else None)
    if match is None and not says(case, r"is greater than the derived max_model_len"):
        return _by_configuration(case) or _beyond_the_table(case)
    asked = _number(match["asked"]) if match else None
    limit = _number(match["limit"]) if match and match["limit"] else None
    return _finding(case, asked, limit, 25)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _by_configuration(case: Case) -> Finding | None:
    """The validation of ModelConfig failed without its message, and the length is beyond the model's limit."""
    asked = case.deployment.launch.integer("max_model_len")
    model = case.deployment.model
    limit = model.max_context if model is not None else None
    rejected = says(case, r"validation errors? for ModelConfig") or ran(case, r":_get_and_verify_max_len$")
    if not rejected or asked is None or limit is None or asked <= limit or says(case, r"Value error, (?!User)"):
        return None
    return _finding(case, asked, limit, 30)


def _beyond_the_table(case: Case) -> Finding | None:
    """A position beyond the model's table under load, where the check of the length had been switched off."""
    asked = case.deployment.launch.integer("max_model_len")
    allowed = case.deployment.launch.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in ("0", "")
    match = _TABLE.search(case.text) or _TABLE.search(case.log)
    if match is None or not allowed or asked is None or asked <= int(match["limit"]):
        return None
    return found(
        case, "max-len-exceeds-model", "likely", 25,
        f"max_model_len {asked:,} was allowed by VLLM_ALLOW_LONG_MAX_MODEL_LEN, but the model's table has "
        f"{int(match['limit']):,} entries; a longer request reads beyond it.",
        "The kernel's own check of the index failed: no memory was refused.", phase=case.phase,
        refuted=[Refuted("memory", "the failing check compares an index with the size of a table")],
        fixes=[advice("what the table holds", "certain", max_model_len=int(match["limit"]))],
    )  # fmt: skip


def _finding(case: Case, asked: int | None, limit: int | None, weight: int) -> Finding:
    what = f"max_model_len {asked:,}" if asked else "max_model_len"
    than = f"the {limit:,} positions" if limit else "the positions"
    fixes = [advice("the model's own limit", "certain", max_model_len=limit)] if limit else []
    return found(
        case, "max-len-exceeds-model", "certain", weight,
        f"{what} is longer than {than} that the model's configuration allows.",
        "The check compares two numbers of the configuration; nothing had been loaded.", phase="args",
        refuted=[Refuted("memory", "no allocation had been made when the check failed")],
        fixes=[
            *fixes,
            verbatim("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1", "only with a rope scaling made for it", "possible"),
        ],
    )  # fmt: skip
