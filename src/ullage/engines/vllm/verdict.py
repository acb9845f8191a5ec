"""vLLM's checks in their order: free memory, a positive budget, one full request, a state for each sequence."""

from __future__ import annotations

from msgspec.structs import replace

from ullage.core.deployment import Budget, Deployment, likely
from ullage.core.run import Phase
from ullage.core.units import GIB, Band
from ullage.engines.vllm.kv_plan import KvPlan
from ullage.engines.vllm.ledgers import ledgers
from ullage.engines.vllm.load_peak import ONLINE, load_peak, while_loading
from ullage.engines.vllm.options import since
from ullage.engines.vllm.outside import before_baseline
from ullage.engines.vllm.pool import bytes_per_token, kv_plans, kv_stages, kv_tokens
from ullage.engines.vllm.readings import Term, printed, smallest
from ullage.engines.vllm.settings import Settings, settings
from ullage.engines.vllm.terms import Terms, formula, rule, terms


def budget(deployment: Deployment) -> Budget:
    """The verdict, the formula with its numbers, the pool, its tokens, and a ledger for each rank."""
    deployment = printed(deployment)
    s = settings(deployment)
    t = terms(deployment, s)
    plans = kv_plans(deployment, s, t.pool.band if t.pool else None)
    base = Budget(
        formula=formula(s, t), rule=rule(s), pool_bytes=t.pool.band if t.pool else None,
        bytes_per_token=bytes_per_token(deployment, s), kv_tokens=kv_tokens(deployment, s, t, plans),
        ledgers=ledgers(deployment, s, t), missing=missing(deployment, s, t),
        warnings=(*warnings(s, t), *host_memory(deployment, s)),
    )  # fmt: skip
    return with_peak(judged(base, deployment, s, t, plans), deployment, t)


def with_peak(found: Budget, deployment: Deployment, t: Terms) -> Budget:
    """A budget that says what loading holds for a moment, where that decides or is near the whole GPU."""
    peak, weights = load_peak(deployment), unread_weights(t)
    if peak is None or peak.low <= 0 or weights is None or t.total is None:
        return found
    most, total = (weights.band.value + peak.value) / GIB, t.total.band.value / GIB
    kept = weights.band.value / GIB
    if found.fails_at == "weights" and weights.band.low <= t.total.band.high:
        told = f"{kept:.2f} + {peak.value / GIB:.2f} = {most:.2f} GiB"
        return replace(
            found, formula=told, rule=ONLINE.form(deployment.launch.release).source, pool_bytes=None,
            kv_tokens=None, ledgers=while_loading(found.ledgers, peak),
        )  # fmt: skip
    if most < 0.8 * total:
        return found
    return replace(found, warnings=(
        *found.warnings, f"loading holds up to {most:.1f} GiB: 16-bit weights that are quantised online",
    ))  # fmt: skip


def judged(
    base: Budget, deployment: Deployment, s: Settings, t: Terms, plans: tuple[KvPlan, KvPlan, KvPlan] | None
) -> Budget:
    """The verdict: the engine's checks in their order. "unsure" where the band reaches across a limit."""
    checks = (
        free_check(deployment, s, t), load_check(deployment, t), pool_check(s, t, plans),
        fit_check(deployment, s, t, plans), states_check(deployment, s, plans),
    )  # fmt: skip
    for phase, cause, verdict in (check for check in checks if check is not None):
        if verdict == "fails":
            return replace(base, verdict="fails", fails_at=phase, cause=cause)
    if t.pool is None or any(check is not None and check[2] == "unsure" for check in checks):
        return base
    fits = any(check is not None and check[1] == "max-len-exceeds-kv" for check in checks)
    return replace(base, verdict="starts") if fits else base


Check = tuple[Phase, str, str]


def against(have: Band, need: Band) -> str:
    """ "fails" where ``have`` is likely below ``need``, "starts" where it likely is not, else "unsure"."""
    over = Band(have.value - need.value, have.low - need.high, have.high - need.low)
    return likely(over.chance_above(-1e-9))


def free_check(deployment: Deployment, s: Settings, t: Terms) -> Check | None:
    """Free memory at the start must reach the share, or the start is refused (V1, 0.9.1 on). Where nothing
    tells what is free, only a share beyond what an idle GPU has counts: its total less the context, and on GPUs
    that share the host's memory what is free of it."""
    if t.requested is None or s.core == "V0" or not since(s.release, "0.9.1"):
        return None
    free = smallest(deployment, "free_at_start_gib")
    if free is not None:
        return "init", "free-memory-below-request", against(free.value.band.scaled(GIB), t.requested.band)
    idle = idle_bytes(deployment, s)
    beyond = idle is not None and s.release is not None and t.requested.band.low > idle.high
    return ("init", "free-memory-below-request", "fails") if beyond else None


def idle_bytes(deployment: Deployment, s: Settings) -> Band | None:
    """Bytes free on a GPU that nothing else uses, once the engine has its context."""
    gpu = deployment.machine.gpu if deployment.machine else None
    if s.unified:
        return gpu.free_bytes if gpu else None
    if s.total is None:
        return None
    taken = before_baseline(s)
    return Band(s.total.value - taken.value, s.total.low - taken.high, s.total.high - taken.low)


def unread_weights(t: Terms) -> Term | None:
    """The weights where no line shows them: a log that shows them is past their loading."""
    weights = next((term for term in t.held if term.name == "weights"), None)
    return None if weights is None or weights.certainty == "observed" else weights


def load_check(deployment: Deployment, t: Terms) -> Check | None:
    """Weights larger than the whole GPU, with what loading takes beside them for a moment, end in an
    out-of-memory while loading, whatever the share."""
    weights = unread_weights(t)
    if weights is None or t.total is None:
        return None
    peak = load_peak(deployment) or Band(0.0, 0.0, 0.0)
    total = t.total.band
    if weights.band.low + peak.low > total.high:
        return "weights", "weights-exceed-gpu", "fails"
    near = peak.low > 0 and weights.band.value + peak.value > total.low
    return "weights", "weights-exceed-gpu", "unsure" if near else "starts"


def pool_check(s: Settings, t: Terms, plans: tuple[KvPlan, KvPlan, KvPlan] | None) -> Check | None:
    """The budget must be positive, from 0.29.0 larger than one block."""
    if t.pool is None:
        return None
    least = plans[0].block_bytes if plans and since(s.release, "0.29.0") else 0
    pool = t.pool.band
    return "kv_pool", "budget-below-weights", likely(pool.chance_above(least))


def needed(deployment: Deployment) -> Band | None:
    shown = deployment.reading("needed_kv_gib")
    return shown.scaled(GIB) if shown else None


def fit_check(
    deployment: Deployment, s: Settings, t: Terms, plans: tuple[KvPlan, KvPlan, KvPlan] | None
) -> Check | None:
    """One request of max_model_len must fit; an engine that chooses the length never fails here."""
    shown = needed(deployment)
    if t.pool is None or t.pool.band.value <= 0:
        return None
    if shown is not None:
        return "kv_pool", "max-len-exceeds-kv", against(t.pool.band, shown)
    if "kv_tokens" in deployment.readings and s.core == "V1":
        return "kv_pool", "max-len-exceeds-kv", "starts"  # printed after the check has passed
    if plans is not None:
        alike = len({one.fits for one in plans}) == 1
        fits = "starts" if plans[0].fits else "fails"
        verdict = fits if alike else likely(t.pool.band.chance_above(plans[0].needed))
        return "kv_pool", "max-len-exceeds-kv", verdict if s.length_given or verdict == "starts" else "unsure"
    token = bytes_per_token(deployment, s)
    if token is None or not s.max_model_len or s.auto_fit:
        return None
    verdict = against(t.pool.band, token.scaled(s.max_model_len))
    return "kv_pool", "max-len-exceeds-kv", verdict if s.length_given or verdict != "fails" else "unsure"


def states_check(
    deployment: Deployment, s: Settings, plans: tuple[KvPlan, KvPlan, KvPlan] | None
) -> Check | None:
    """Hybrid models with full graphs need a block for each of max_num_seqs sequences: from 0.20.0 on the engine
    says so, 0.17.0 to 0.19.1 die while they capture ("device kernel image is invalid",
    vllm-project/recipes#551); before, a captured size beyond the blocks ends in a CUDA error."""
    model = deployment.model
    hybrid = model is not None and any(layer.state for layer in model.layers)
    shown = deployment.reading("mamba_blocks")
    if not hybrid and shown is None:
        return None
    if not s.full_graphs or (shown is None and plans is None):
        return None
    if "graphs_gib" in deployment.readings:
        return None  # the capture has been: the check had passed
    blocks = shown or Band(*(one.blocks for one in plans or ()))
    most = s.max_num_seqs if since(s.release, "0.17.0") else min(s.max_num_seqs, max(s.graph_sizes, default=0))
    asked = deployment.reading("max_num_seqs") or Band(most, most, most)
    return "graph_capture", "mamba-blocks-below-max-num-seqs", against(blocks, asked)


def missing(deployment: Deployment, s: Settings, t: Terms) -> tuple[str, ...]:
    """What would be needed for a sure answer."""
    lacking = list(t.missing)
    if deployment.model is None:
        lacking.append("the model's shape (config.json)")
    elif kv_stages(deployment, s) is None and bytes_per_token(deployment, s) is None:
        lacking.append("the layout of this model's KV cache")
    if s.max_model_len is None:
        lacking.append("max_model_len")
    return tuple(lacking)


def warnings(s: Settings, t: Terms) -> tuple[str, ...]:
    """What was assumed."""
    out = [f"not counted: {what}" for what in s.unknown]
    if s.release is None:
        out.append("the release is not known: the newest rules are used")
    return tuple(out)


def host_memory(deployment: Deployment, s: Settings) -> tuple[str, ...]:
    """What the launch takes of the host's memory: pinned KV blocks (for all ranks of TP together), weights kept
    there (for each GPU), V0's swap space (for each GPU, 4 GiB unless said; config/cache.py,
    config/offload.py)."""
    launch, ranks = deployment.launch, s.cache.tp * s.cache.pp
    swap = launch.number("swap_space") if launch.get("swap_space") is not None else 4.0
    uses = (
        ("--kv-offloading-size", launch.number("kv_offloading_size") or 0.0),
        ("--cpu-offload-gb", (launch.number("cpu_offload_gb") or 0.0) * ranks),
        ("--swap-space", (swap or 0.0) * ranks if s.core == "V0" else 0.0),
    )
    return tuple(f"{flag}: {size:g} GiB of the host's memory" for flag, size in uses if 0 < size < 1e6)
