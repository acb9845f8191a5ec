"""What is known to go wrong with a launch of vLLM: the rows, and what follows from its settings."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.deployment import Deployment
from ullage.core.finding import Hazard
from ullage.core.launch import Launch, Value
from ullage.core.model import Model
from ullage.core.run import Phase
from ullage.core.tables import load
from ullage.engines.runtime import compat as shared
from ullage.engines.vllm.options import (
    as_length,
    config,
    count,
    num_speculative_tokens,
    since,
    size,
    speculative_method,
)
from ullage.hardware import compat
from ullage.hardware.compat import software
from ullage.models.catalogue import find

PACKAGE = "ullage.engines.vllm"
PREFIXES = ("VLLM_",)
_OLD_NAMES = {"TRITON_ATTN_VLLM_V1": "TRITON_ATTN", "FLASH_ATTN_VLLM_V1": "FLASH_ATTN", "TRITON_MLA_VLLM_V1":
              "TRITON_MLA", "FLASHMLA_VLLM_V1": "FLASHMLA", "FLASHINFER_VLLM_V1": "FLASHINFER"}  # fmt: skip
#: what a target's model_type must contain to take an EAGLE-3 head (config/speculative.py, 0.10.2 to 0.15.1)
_EAGLE3 = ("llama", "qwen", "minicpm", "gpt_oss")


def warnings(deployment: Deployment) -> list[Hazard]:
    """Every hazard of the launch, those that stop it first; each id once."""
    launch, model, release = deployment.launch, deployment.model, deployment.launch.release
    asked = compat.subject(launch, model, deployment.machine, release, worked_out(launch, model))
    driver = deployment.reading("driver")
    found = [
        *compat.hazards(compat.table(PACKAGE, "compat.toml"), asked),
        *compat.warnings(launch, model, deployment.machine, release, asked.worked_out),
        *software.hazards(
            asked, software.stack(shared.ships(PACKAGE), release), driver.value if driver else None
        ),
        *shared.replicated_kv_heads(model, size(launch, "tensor")),
        *_draft(launch, model),
        *_batch(launch, model),
        *_context_parallel(launch, model),
        *_length(launch, model),
        *_variables(launch),
    ]
    return shared.in_order(found)


def worked_out(launch: Launch, model: Model | None) -> dict[str, Value]:
    """What the rows call "@...": see hardware/compat/subject.py."""
    tp = size(launch, "tensor")
    kind = (model.model_type if model else None) or ""
    return {
        **shared.of_model(launch, model), "@dtype": shared.dtype(launch, model),
        "@group": tp if tp > 1 else None,
        "@backend": backend(launch), "@speculative": num_speculative_tokens(launch) > 0,
        "@method_of_speculation": speculative_method(launch),
        **{f"@eagle3_{name}": name in kind for name in _EAGLE3},
    }  # fmt: skip


def backend(launch: Launch) -> str | None:
    """The attention backend that is named: a flag (0.13.0..), attention_config, a variable (..0.14.1)."""
    named = launch.text("attention_backend") or config(launch, "attention_config").get("backend")
    if not named and not since(launch.release, "0.15.0"):
        named = launch.env.get("VLLM_ATTENTION_BACKEND")
    if not isinstance(named, str) or not named or named.lower() == "auto":
        return None
    return _OLD_NAMES.get(named.upper(), named.upper())


def _draft(launch: Launch, model: Model | None) -> Iterator[Hazard]:
    """EAGLE heads only: a draft model's vocabulary is compared by vLLM itself."""
    name = config(launch, "speculative_config").get("model") or launch.text("speculative_model")
    method = speculative_method(launch) or ""
    if isinstance(name, str) and name and name != launch.model and method.startswith("eagle"):
        yield from shared.draft(model, find(name), name, eagle=True)


def _refused(name: str, text: str, source: str, message: str, phase: Phase, release: object) -> Hazard:
    """A refusal of what was typed; certain only where the release is known."""
    sure = release is not None
    return Hazard(
        name, text, source, certain=sure, stops=sure, phase=phase if sure else None,
        cause="flag-combination-unsupported" if sure else None, message=message,
    )  # fmt: skip


def _batch(launch: Launch, model: Model | None) -> Iterator[Hazard]:
    tokens, seqs = count(launch, "max_num_batched_tokens"), count(launch, "max_num_seqs")
    if tokens and seqs and tokens < seqs:
        yield _refused(
            "batch-tokens-below-seqs",
            f"--max-num-batched-tokens {tokens:,} is less than --max-num-seqs {seqs:,}: a decode step takes "
            "a token "
            f"of every sequence. vLLM refuses it.",
            "vllm 0.6.0 to 0.33.0, SchedulerConfig", "must be greater than or equal to max_num_seqs", "args",
            launch.release,
        )  # fmt: skip
    length = as_length(launch.get("max_model_len")) or (model.max_context if model else None)
    off = launch.get("enable_chunked_prefill") is False
    if off and tokens and length and length > 0 and tokens < length:
        yield _refused(
            "batch-tokens-below-length",
            f"Without chunked prefill a whole prompt must fit into one step: --max-num-batched-tokens "
            f"{tokens:,} is "
            f"less than the {length:,} tokens of a request. Raise it, lower --max-model-len, or chunk.",
            "vllm 0.6.0 to 0.33.0, SchedulerConfig", "is smaller than max_model_len", "args", launch.release,
        )  # fmt: skip


def _context_parallel(launch: Launch, model: Model | None) -> Iterator[Hazard]:
    """Decode context parallelism of GQA models spreads the copies of a KV head (config/model.py, 0.11.0..)."""
    dcp, tp = count(launch, "decode_context_parallel_size") or 1, size(launch, "tensor")
    heads = max((layer.kv_heads for layer in model.layers), default=0) if model and not model.is_mla else 0
    if dcp > 1 and heads and tp <= heads and since(launch.release, "0.11.0"):
        yield _refused(
            "context-parallel-needs-replicas",
            f"--decode-context-parallel-size spreads the copies of a KV head, and at tensor parallel size "
            f"{tp} the "
            f"{heads} KV heads have none. Raise the tensor parallel size above {heads}, or drop it.",
            "vllm 0.11.0 to 0.33.0, config/model.py, verify_with_parallel_config",
            "greater than the model's total number of KV heads", "args", launch.release,
        )  # fmt: skip


def _length(launch: Launch, model: Model | None) -> Iterator[Hazard]:
    asked, longest = as_length(launch.get("max_model_len")), (model.max_context if model else None)
    if asked and longest and asked > longest and launch.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1":
        yield Hazard(
            "context-beyond-model",
            f"--max-model-len {asked:,} is beyond the {longest:,} tokens that the model knows: positions "
            "past it "
            f"may give NaN or a CUDA error. Give the RoPE scaling with it (--hf-overrides).",
            "vllm 0.6.0 to 0.33.0, VLLM_ALLOW_LONG_MAX_MODEL_LEN", certain=False,
        )  # fmt: skip


def _variables(launch: Launch) -> Iterator[Hazard]:
    if shared.of_environment(launch.env, PREFIXES):
        table = load(PACKAGE, "variables.toml", shared.VariableTable)
        yield from shared.variables(table, launch, "vLLM", PREFIXES)
