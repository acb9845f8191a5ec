"""The pool holds fewer tokens than the advertised context, so long requests are refused.

What you see: "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens)" with a limit
far below --context-length, or "Request length is longer than the KV cache pool size or the max context
length".

What misleads: --context-length was set high enough, and the server started without a warning.

What is true: the limit is min(context_len - 1, max_total_num_tokens - 1) less a few tokens. When the pool is
smaller than the context, the pool decides. --context-length only declares a limit; it reserves nothing.

What helps: more KV memory (more GPUs, a higher fraction where it fits, fp8 KV cache), or a context length
that says what the pool can hold. --allow-auto-truncate cuts the prompt instead of refusing it.
"""

from __future__ import annotations

import re

from ullage.core.finding import Case, Finding
from ullage.engines.sglang.causes._terms import advice, checked, count, fraction, lines
from ullage.engines.sglang.causes.loader_memory_residue import tiny

_REFUSED = re.compile(r"Input length \((\d+) tokens\) exceeds the maximum allowed length \((\d+) tokens\)")
_LESS = 6  # max_req_len is one less than the context, max_req_input_len five less than that (scheduler.py)
_LONGER = re.compile(r"longer than the KV cache pool size|Out of memory even after retracting all other")


def test(case: Case) -> Finding | None:
    refused, longer = _REFUSED.search(case.log + "\n" + case.text), _LONGER.search(case.log + "\n" + case.text)
    if refused is None and longer is None:
        return None
    allowed = int(refused[2]) if refused else None
    context = count(case, "context_len") or case.deployment.launch.integer("context_length")
    tokens = count(case, "kv_tokens")
    # a request longer than the model's context: the pool has no part in it
    if allowed is not None and context is not None and allowed >= context - 64:
        return None
    if allowed is not None and context is None and tokens is None and (allowed + _LESS) % 1024 == 0:
        return None  # a context length less what is kept: pools are hardly ever of such a round size
    if allowed is None and tokens is not None and context is not None and tokens >= context:
        return None
    sure = allowed is not None and (context is not None or tokens is not None) and not tiny(case)
    return Finding(
        cause="max-len-exceeds-kv", certainty="certain" if sure else "likely", weight=30, phase="serving",
        summary=f"The KV pool holds only about {allowed or tokens or 0:,} tokens, fewer than the context length"
        + (f" of {context:,}" if context else "") + "; longer requests are refused.",
        explanation="The limit for one request is the smaller of context length and pool, less a few tokens. "
        "--context-length declares a length and reserves nothing."
        + (f" What ended the server afterwards ({case.root.message[:80]}) comes from handling this refusal."
           if case.root is not None else ""),
        evidence=lines(case, [_REFUSED if refused else _LONGER]),
        fixes=(
            checked(case, {"kv_cache_dtype": "fp8_e4m3"}, "twice the tokens in the same pool"),
            *([checked(case, {"mem_fraction_static": round(min(0.96, f + 0.02), 3)}, "a larger pool")]
              if (f := fraction(case)) is not None and f < 0.95 else []),
            advice("truncates instead of refusing", "possible", allow_auto_truncate=True),
        ),
    )  # fmt: skip
