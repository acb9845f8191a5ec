"""Runs and campaigns for the page: what is kept of them, read anew each time it asks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ullage.core.errors import UllageError

#: files that are looked at for campaigns below the roots, and how deep
MOST_FILES, DEEPEST = 5000, 3
MOST_RUNS = 500


def runs_of(name: str) -> dict[str, Any]:
    """Every run that is kept, the newest first; or one of them whole."""
    from ullage.lab.records import Store
    from ullage.render import html, run_text

    store = Store()
    try:
        if name:
            folder = store.get(name)
            record = folder.read()
            if record is None:
                return {"error": f"{name[:100]}: holds no record"}
            return {
                "name": record.name,
                "html": html.run_fragment(record, str(folder.log)),
                "live": folder.locked,
            }
        found = [record for _, record in store.records()][: -MOST_RUNS - 1 : -1]
    except UllageError as error:
        return {"error": error.line}
    return {
        "runs": [
            {
                "name": record.name, "when": run_text.when(record.created_at),
                "outcome": run_text.outcome(record),
                "live": record.outcome == "running", "command": " ".join(record.command.split())[:300],
                "engine": " ".join(filter(None, (record.engine, record.version))),
            }
            for record in found
        ]
    }  # fmt: skip


def campaigns_in(roots: Sequence[str]) -> dict[str, Any]:
    """The campaign files below ``roots``, by their first key."""
    from ullage.lab.campaign.file import load

    found = []
    for path in _candidates(roots):
        try:
            found.append({"file": str(path), "name": load(path).name})
        except UllageError as error:
            found.append({"file": str(path), "name": path.stem, "error": error.line})
    return {"campaigns": found}


def _candidates(roots: Sequence[str]) -> Iterator[Path]:
    """YAML files that have the keys of a campaign, a few folders deep, hidden ones left out."""
    seen = 0
    for root in dict.fromkeys(roots):
        for folder, folders, names in os.walk(root):
            deep = len(Path(folder).relative_to(root).parts)
            folders[:] = sorted(n for n in folders if not n.startswith(".")) if deep < DEEPEST else []
            for name in sorted(names):
                seen += 1
                if seen > MOST_FILES:
                    return
                path = Path(folder) / name
                if path.suffix in (".yaml", ".yml") and _is_campaign(path):
                    yield path


def _is_campaign(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            head = stream.read(1 << 16)
    except OSError:
        return False
    return b"launch:" in head and (b"approaches:" in head or b"space:" in head) and b"benchmark:" in head


def campaign_of(path: str) -> dict[str, Any]:
    """A campaign's report as the page shows it."""
    from ullage.lab.campaign import report
    from ullage.lab.campaign.file import load
    from ullage.lab.campaign.storage import shown_place
    from ullage.lab.campaign.study import open_study
    from ullage.render import campaign_html

    try:
        loaded = load(Path(path))
        study = open_study(loaded, create=False)
        found = report.build(loaded, study.experiments(), study.about(), shown_place(study.place))
    except UllageError as error:
        return {"error": error.line}
    except ImportError:
        return {"error": "campaigns need more packages; hint: pip install 'ullage[lab]'"}
    return {"name": found.name, "status": found.status, "live": found.status == "unfinished",
            "html": campaign_html.fragment(found)}  # fmt: skip
