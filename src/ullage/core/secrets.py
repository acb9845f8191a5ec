"""Secrets that people's logs and commands hold: taken out before anything is kept, shown or written."""

from __future__ import annotations

from ullage.core.patterns import lazy

HIDDEN = "***"
#: a text without one of these holds none of the patterns below: the check that every line pays for
_SIGNS = lazy(
    r"hf_|sk-|[Bb]earer|api[-_ ]?key|API_KEY|TOKEN|SECRET|[Pp]assw|PASSW|secret|_token|ACCESS_KEY|://[^/\s]*@"
)
_NAMES = (
    r"(?:[A-Z][A-Z0-9_]*)?(?:TOKEN|API_KEY|ACCESS_KEY|SECRET|SECRET_KEY|PASSWORD|PASSWD)|"
    r"(?:[a-z]+_)*(?:api_key|hf_token|auth_token|access_token|secret_key|client_secret|password|passwd)"
)
_PATTERNS = (
    (lazy(r"\bhf_[A-Za-z0-9]{20,}\b"), f"hf_{HIDDEN}"),
    (lazy(r"\bsk-[A-Za-z0-9_-]{12,}"), f"sk-{HIDDEN}"),
    (lazy(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/-]{6,}=*"), rf"\1{HIDDEN}"),
    (
        lazy(r"(--(?:[a-z]+-)*(?:api-key|token|password)(?:=|\s+))(?!-)(?:\"[^\"]*\"|'[^']*'|\S+)"),
        rf"\1{HIDDEN}",
    ),
    (
        lazy(rf"(?<![A-Za-z0-9_])((?:{_NAMES})['\"]?\s*[=:]\s*\[?\s*)(?!None\b|null\b|False\b|True\b)"
                   r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s'\",)\]}]+)"),
        rf"\1'{HIDDEN}'",
    ),
    (lazy(r"(://)[^/\s:@]+(?::[^/\s@]*)?@"), rf"\1{HIDDEN}@"),
)  # fmt: skip
_SECRET_NAME = lazy(rf"(?:{_NAMES})\Z")


def masked(text: str) -> str:
    """``text`` without the tokens, keys and passwords that it holds."""
    if _SIGNS.search(text) is None:
        return text
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def is_secret(name: str) -> bool:
    """True if a setting or variable of this name holds a secret."""
    return _SECRET_NAME.match(name.replace("-", "_")) is not None
