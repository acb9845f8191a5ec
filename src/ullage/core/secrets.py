"""Secrets that people's logs and commands hold: taken out before anything is kept, shown or written."""

from __future__ import annotations

from typing import Any

from ullage.core.patterns import lazy

HIDDEN = "***"
#: a text without one of these, and without FIRST at its start, holds none of the patterns below: the check that
#: every line pays for
SIGNS = (
    "hf_", "sk-", "earer", "EARER", "uthorization", "pi_key", "pi-key", "pikey", "piKey", "APIKEY", "_KEY",
    "TOKEN", "SECRET", "ecret", "assw", "PASS", "assphrase", "AUTH", "_PWD", "h_token", "s_token", "n_token",
    "h-token", "s-token", "n-token", "--token", "sToken", "nToken", "hToken", " token:", " token=",
    " token :", " Token:", "\ntoken", "\nToken", "\rtoken", "(token=", "(token:", "{token=", "{token:",
    ",token=", ",token:", '"token"', "'token'", "redential", "CREDENTIAL", "ccess_key", "ccess-key",
    "ccessKey", "rivate_key", "rivate-key", "rivateKey", "@", "?", "&", "ghp_", "gho_", "ghu_", "ghs_",
    "ghr_", "github_pat_", "glpat-", "nvapi-", "xox", "AKIA", "ASIA", "eyJ",
)  # fmt: skip
FIRST = ("token", "Token")
_NAMES = (
    r"(?:[A-Z][A-Z0-9_]*)?(?:TOKEN|API_?KEY|ACCESS_KEY|SECRET|SECRET_KEY|PRIVATE_KEY|PASSWORD|PASSWD|PASSPHRASE|"
    r"CREDENTIALS?)|"
    r"(?:[a-z]+[_-])*(?:api[_-]?key|hf[_-]token|auth[_-]token|access[_-]token|session[_-]token|secret[_-]key|"
    r"(?:secret[_-])?access[_-]key|private[_-]key|client[_-]secret|secret|password|passwd|passphrase|credentials?)|"
    r"apiKey|(?:access|auth|session)Token|(?:secret)?[aA]ccessKey|secretAccessKey|clientSecret|privateKey"
)
#: names of variables that often hold a secret, and sometimes a switch
_WEAK = r"[A-Z][A-Z0-9_]*_(?:KEY|PASS|AUTH|PWD)"
#: behind a name: its closing quote, an end of colour, = or :
_IS = r"\\*['\"]?(?:\x1b\[[0-9;]*m)*\s*[=:]\s*"
_VALUE = r"(?:\\+\"[^\"\n]*?\\+\"|\"[^\"\n]*\"|'[^'\n]*'|[^\s'\",)\]}\\]+)"
_BEHIND_FLAG = r"(?!-)(?:\"[^\"]*\"|'[^']*'|\S+)"
_PATTERNS = (
    (lazy(r"\bhf_[A-Za-z0-9]{20,}\b"), f"hf_{HIDDEN}"),
    (lazy(r"\bsk-[A-Za-z0-9_-]{12,}"), f"sk-{HIDDEN}"),
    (lazy(r"\b(?:gh[pousr]_|github_pat_|glpat-|nvapi-|xox[abprs]-|A[KS]IA)[A-Za-z0-9_-]{12,}"), HIDDEN),
    (lazy(r"\beyJ[\w-]{10,}\.eyJ[\w-]+\.[\w-]*"), HIDDEN),
    (lazy(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/-]{6,}=*"), rf"\1{HIDDEN}"),
    (lazy(r"(?i)\b(authorization['\"]?\s*[:=]\s*['\"]?(?:basic|token|digest)\s+)[^\s'\"]+"), rf"\1{HIDDEN}"),
    (lazy(r"(://)[^/\s'\"<>]*@"), rf"\1{HIDDEN}@"),
    (
        lazy(r"(?i)([?&](?:[a-z0-9]+[-_])*(?:token|sig|signature|key|apikey|secret|credential|auth|password)=)"
             r"[^&\s'\"#<>]+"),
        rf"\1{HIDDEN}",
    ),
    (
        lazy(r"(--(?:[a-z]+[-_])*(?:api[-_]key|access[-_]key|secret[-_]key|secret|token|password|passwd)(?:=|\s+))"
             rf"{_BEHIND_FLAG}"),
        rf"\1{HIDDEN}",
    ),
    # vLLM's --api-key takes several; a word of small letters is prose, not a second key
    (
        lazy(rf"(--api[-_]key(?:=|\s+){HIDDEN.replace('*', chr(92) + '*')})(?:\s+(?!-)(?=\S*[A-Z0-9])\S+)+"),
        rf"\1 {HIDDEN}",
    ),
    (
        lazy(rf"(?<![A-Za-z0-9_/-])((?:{_NAMES}){_IS})\[(?!\s*\])(?!None\b|null\b)[^\]\n]*\]"),
        rf"\1['{HIDDEN}']",
    ),
    (
        lazy(rf"(?<![A-Za-z0-9_/-])((?:{_NAMES}){_IS})(?!\[|{HIDDEN.replace('*', chr(92) + '*')})"
             rf"(?!None\b|null\b|False\b|True\b){_VALUE}"),
        rf"\1'{HIDDEN}'",
    ),
    (
        lazy(rf"(?<![A-Za-z0-9_-])({_WEAK}=)(?!\d{{1,5}}\b|[Tt]rue\b|[Ff]alse\b|None\b)"
             r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s'\"]{4,})"),
        rf"\1'{HIDDEN}'",
    ),
    (
        lazy(r"(?<![\w.#-])([Tt]oken\\*['\"]?\s*[:=]\s*\\*['\"]?)(?!\d+(?:\.\d+)?[a-z]*\b)"
             r"(?=[^\s'\"]*\d)(?=[^\s'\"]*[A-Za-z])[A-Za-z0-9._~+/=-]{6,}"),
        rf"\1{HIDDEN}",
    ),
)  # fmt: skip
_SECRET_NAME = lazy(rf"(?:{_NAMES})\Z")


def masked(text: str) -> str:
    """``text`` without the tokens, keys and passwords that it holds."""
    if not any(sign in text for sign in SIGNS) and not text.startswith(FIRST):
        return text
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def is_secret(name: str) -> bool:
    """True if a setting or variable of this name holds a secret."""
    return _SECRET_NAME.match(name.replace("-", "_")) is not None


def masked_value(name: str, value: str) -> str:
    """The value of a variable or setting, without the secrets that its name or itself tells of."""
    if is_secret(name):
        return HIDDEN if value else value
    pair = masked(f"{name}={value}")
    if pair == f"{name}='{HIDDEN}'":
        return HIDDEN
    return pair[len(name) + 1 :] if pair.startswith(f"{name}=") else masked(value)


def sealed(value: Any, name: str = "") -> Any:
    """``value`` (texts, lists and mappings of them) without secrets; ``name`` is what it is called."""
    if isinstance(value, str):
        return masked_value(name, value) if name else masked(value)
    if isinstance(value, dict):
        return {key: sealed(each, str(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(sealed(each, name) for each in value) if type(value) in (list, tuple) else value
    return value
