"""An error of a campaign file names the line, the whole key, and what was expected in the words of YAML."""

from __future__ import annotations

import pytest

from ullage.core.errors import InputError
from ullage.lab.campaign.file import Campaign
from ullage.lab.campaign.marks import convert, read

HEAD = "launch: vllm serve m\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("readings:\n  a: 1\n  b: x", "f:4: readings.b: expected a number, got text"),
        ("space:\n  flags:\n    a: [1]\n    b: {low: 1, high: 2, step: {}}",
         "f:5: space.flags.b.step: expected a whole number or a number or nothing, got a mapping"),
        ("benchmark: {metrics: {m: {json: a}, n: {better: up}}}",
         "f:2: benchmark.metrics.n.better: value 'up' is none of: higher, lower"),
        ("where:\n  kind: cloud", "f:3: where.kind: value 'cloud' is none of: local, ssh, ray, slurm"),
        ("approaches: 5", "f:2: approaches: expected a list, got a whole number"),
        ("baseline:\n  flags: [1]", "f:3: baseline.flags: expected a mapping, got a list"),
        ('gpu: "a\\0b"', "f:2: gpu: holds a character that no command can (hint: no NUL, no half of a surrogate pair)"),
    ],
)  # fmt: skip
def test_an_error_names_line_key_and_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        convert(read(HEAD + text, "f"), Campaign)
    assert caught.value.line == said
