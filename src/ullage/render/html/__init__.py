"""Reports as one HTML page: opens offline, prints well, is what people attach to an issue."""

from ullage.render.html.pages import diff, fragment, page, plan, run_fragment, spec, spec_fragment, why

__all__ = ["diff", "fragment", "page", "plan", "run_fragment", "spec", "spec_fragment", "why"]
