"""Private details of logs and commands (hosts, addresses, users, folders), taken out of what is passed on.

Secrets (core/secrets) never reach a report. These do, since their owner wants to see them; what is attached to
a public issue goes through here. A name keeps its number throughout: host-1 is the same machine on every line.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from ullage.core.secrets import masked as without_secrets

T = TypeVar("T")
_LOCAL = frozenset({"localhost", "0.0.0.0", "127.0.0.1", "::1", "::", "none", "null", "auto", "root"})
#: sites that a report may name: they say nothing about who wrote it
_PUBLIC = (
    "huggingface.co",
    "github.com",
    "pytorch.org",
    "docs.vllm.ai",
    "docs.sglang.ai",
    "nvidia.com",
    "readthedocs.io",
)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?=[\da-fA-F:]*\d)[\da-fA-F]{0,4}(?::[\da-fA-F]{0,4}){2,7}(?![\w:])")
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")
_UUID = re.compile(
    r"(?<![\w-])(?:GPU-|MIG-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![\w-])"
)
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}(?!\w)")
_ENDINGS = (
    "com|net|org|edu|gov|cloud|local|localdomain|internal|intranet|lan|corp|home|cluster|svc|cn|de|uk|fr|jp|kr|eu|"
    "ru|ch|us|tech|dev|xyz|site|host"
)
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_ASKED_FOR = (
    "host|dist-init-addr|nccl-init-addr|master-addr|node-ip|data-parallel-address|disaggregation-\\w+-addr"
)
_SET = (
    "host|hostname|node_ip|nodename|dist_init_addr|nccl_init_addr|master_addr|data_parallel_address|MASTER_ADDR|"
    "HOSTNAME|VLLM_HOST_IP"
)
#: where a host's name stands: each pattern's group is the name
_HOSTS = (
    re.compile(rf"[a-z][a-z0-9+.-]{{1,12}}://(?:[^/\s@\"']*@)?({_NAME})"),
    re.compile(rf"(?<![\w.-])--(?:{_ASKED_FOR})[ =]+['\"]?({_NAME})"),
    re.compile(rf"(?<![\w-])(?:{_SET})['\"]?\s*[=:]\s*['\"]?(?:tcp://)?({_NAME})"),
    re.compile(rf"(?m)^(?:\S*\s)?({_NAME}):\d+:\d+ \[\d+\] (?:NCCL|transport|misc|init|proxy)"),
    re.compile(r"\[([A-Za-z][A-Za-z0-9.-]*)\]:\d{2,5}\b"),
    re.compile(rf"(?<![\w.@/-])((?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+(?:{_ENDINGS}))(?![\w.(=-])"),
    re.compile(r"(?<![\w.-])(?:ssh|scp|rsync)\s+(?:-\S+\s+)*(?:[\w.-]+@)?([A-Za-z][\w-]*(?:\.[\w-]+)*)"),
    re.compile(r"(?<![\w.-])[a-z_][\w-]{0,30}@([A-Za-z][\w-]*(?:\.[\w-]+)*)(?=[:\s]|$)"),
)
_USERS = (
    re.compile(r"(?:/home|/Users|[A-Za-z]:\\+Users\\+)[/\\]*([A-Za-z0-9_][\w.-]*)"),
    re.compile(r"(?<![\w-])(?:USER|LOGNAME|USERNAME)=['\"]?([A-Za-z0-9_][\w.-]*)"),
    re.compile(r"(?<![\w.+-])([a-z_][\w-]{0,30})@[A-Za-z][\w.-]*(?=[:\s]|$)"),
)  # fmt: skip
_PATH = re.compile(r"(?<![\w./\\~$*-])(?:~|[A-Za-z]:)?(?:[/\\][\w.@+=%-]+){2,}[/\\]?")
#: first folders that are the system's own or an interface of the server, the same everywhere
_KEPT = frozenset(
    "v1 v2 health metrics generate ping version tokenize dev proc sys get_model_info server_info openai".split()
)
_CODE = re.compile(
    r"(?:site|dist)-packages[/\\](.+)|[/\\]((?:sglang|vllm|torch|flashinfer|transformers|triton|ray)[/\\].+\.\w+)"
)
#: words that a host's pattern may catch and that are none
_WORDS = frozenset("str int true false tcp http https file self server client the and not".split())


class Masker:
    """Takes private details out of texts; the names it has learned hold for all that it is given after that."""

    def __init__(self, files: Iterable[str] = ()) -> None:
        named = {file: re.split(r"[/\\\\]", file)[-1] for file in files}
        self._names = {file: name for file, name in named.items() if name and file != name}
        self._counts: dict[str, int] = {}
        self._pattern: tuple[int, re.Pattern[str]] = (0, re.compile(r"(?!)"))

    def learn(self, text: str) -> None:
        """Note the hosts and users that ``text`` names, so that they go wherever they stand."""
        for host in (name for pattern in _HOSTS for name in pattern.findall(text)):
            if _is_host(host):
                self._name(host.rstrip(".-"), "host")
        for user in (name for pattern in _USERS for name in pattern.findall(text)):
            if user.lower() not in _LOCAL and user not in ("git", "shared"):
                self._name(user, "user")

    def mask(self, text: str) -> str:
        """``text`` without secrets, addresses, folders and the names learned."""
        text = self._known().sub(lambda m: self._names[m[0]], without_secrets(text))
        text = _MAIL.sub(lambda m: self._name(m[0], "mail"), text)
        text = _UUID.sub(lambda m: self._name(m[0], "id"), text)
        text = _MAC.sub(lambda m: self._name(m[0], "id"), text)
        text = _PATH.sub(_folder, text)
        text = _IPV4.sub(lambda m: self._address(m[0]), text)
        return _IPV6.sub(lambda m: self._address(m[0]), text)

    def _address(self, text: str) -> str:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        return text if address.is_loopback or address.is_unspecified else self._name(text, "address")

    def _name(self, text: str, kind: str) -> str:
        if text not in self._names:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[text] = f"{kind}-{self._counts[kind]}"
        return self._names[text]

    def _known(self) -> re.Pattern[str]:
        """The names learned as one pattern, made anew only where there are new ones."""
        if self._pattern[0] != len(self._names):
            names = sorted(self._names, key=len, reverse=True)
            found = re.compile(rf"(?<![\w-])(?<![^/]/)(?:{'|'.join(map(re.escape, names))})(?![\w-])")
            self._pattern = (len(self._names), found)
        return self._pattern[1]


def _is_host(name: str) -> bool:
    low = name.rstrip(".-").lower()
    if len(low) < 3 or low in _LOCAL or low in _WORDS or re.fullmatch(r"[\d.]+", low):
        return False
    return not any(low == site or low.endswith(f".{site}") for site in _PUBLIC)


def _folder(found: re.Match[str]) -> str:
    """The end of a path: the package's part of a source file, else the last name."""
    path = found[0]
    parts = [part for part in re.split(r"[/\\]", path) if part]
    if parts[0] in _KEPT and not path.startswith("~"):
        return path
    code = _CODE.search(path)
    return f"…/{(code[1] or code[2]) if code else parts[-1]}"


def texts(found: object) -> Iterator[str]:
    """Every text in a struct, tuple, list or dict, keys included, however deep."""
    if isinstance(found, str):
        yield found
    elif isinstance(found, msgspec.Struct):
        for name in found.__struct_fields__:
            yield from texts(getattr(found, name))
    elif isinstance(found, dict):
        for key, value in found.items():
            yield from texts(key)
            yield from texts(value)
    elif isinstance(found, list | tuple | set | frozenset):
        for item in found:
            yield from texts(item)


def masked(found: T, files: Iterable[str] = ()) -> T:
    """``found`` (a report) with the private details of all its texts taken out; of ``files`` the names stay."""
    masker = Masker(files)
    for text in texts(found):
        masker.learn(text)
    result: T = _each(found, masker.mask)
    return result


def renamed(found: T, names: Mapping[str, str]) -> T:
    """``found`` with each of the paths ``names`` called by its name in all texts."""
    if not names:
        return found
    pattern = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))
    result: T = _each(found, lambda text: pattern.sub(lambda m: names[m[0]], text))
    return result


def _each(found: Any, change: Callable[[str], str]) -> Any:
    """``found`` with every text of it, however deep, changed."""
    if isinstance(found, str):
        return change(found)
    if isinstance(found, msgspec.Struct):
        fields = {name: getattr(found, name) for name in found.__struct_fields__}
        return msgspec.structs.replace(found, **{k: _each(v, change) for k, v in fields.items()})
    if isinstance(found, dict):
        return {_each(key, change): _each(value, change) for key, value in found.items()}
    if isinstance(found, list | tuple | set | frozenset):
        return type(found)(_each(item, change) for item in found)
    return found
