"""What people write between the words of a command: a placeholder of several words, an aside in brackets, a
remark ("with MTP 2")."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

#: words that begin a remark and are never a flag's value
_REMARKS = frozenset("with plus and but using under without where".split())
_MOST = 12


def without_prose(words: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """(the command without remarks, its remarks); several where a word ends in a semicolon."""
    current: list[str] = []
    for word in words:
        if word.endswith(";") and len(word) > 1 and not word.startswith(("{", "[", "'", '"')):
            current.append(word[:-1])
            yield _plain(current)
            current = []
        else:
            current.append(word)
    if current:
        yield _plain(current)


def joined(words: list[str]) -> list[str]:
    """ "<Qwen3.6-27B" "INT4>" in one word; "(GPTQ" "4" "bit)" with the model in front of it, else left out."""
    found: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        end = _closing(words, at)
        if end is None:
            found.append(word)
            at += 1
            continue
        whole = " ".join(words[at : end + 1])
        if word.startswith("<"):
            found.append(whole)
        elif found and len(found) > 1 and (found[-2] == "serve" or found[-2] in ("--model", "--model-path")):
            found[-1] = f"{found[-1]} {whole}"
        at = end + 1
    return found


def _closing(words: list[str], at: int) -> int | None:
    """Where the placeholder or the aside that begins at ``at`` ends; None where none begins there."""
    word = words[at]
    close = {"<": ">", "(": ")"}.get(word[:1])
    if close is None or len(word) < 2 or not (word[1].isalnum()):
        return None
    if close == ">" and close in word:
        return None
    for end in range(at, min(len(words), at + _MOST)):
        if words[end].endswith(close) and (close == ")" or end > at):
            return end
        if words[end].startswith("--"):
            return None
    return None


def _plain(words: list[str]) -> tuple[list[str], list[str]]:
    """Without remarks: from a word such as "with", which no flag takes, to the next flag. And the remarks."""
    kept: list[str] = []
    remarks: list[list[str]] = []
    skip = False
    for i, word in enumerate(words):
        if re.match(r"--?[A-Za-z]", word):
            skip = False
        elif i > 1 and not skip and word.lower() in _REMARKS and not re.match(r"--?[A-Za-z]", words[i - 1]):
            skip = True
            remarks.append([])
        (remarks[-1] if skip else kept).append(word)
    return kept, [" ".join(remark) for remark in remarks]
