"""The pages by real clicks and keys."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from .conftest import wait_until

FOUNDING = Path(__file__).parents[2] / "examples" / "founding"
COMMAND = (
    "python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --trust-remote-code "
    "--mem-fraction-static 0.88 --cuda-graph-max-bs 128"
)
DROP = """([selector, name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name));
  for (const kind of ["dragenter", "dragover", "drop"])
    document.querySelector(selector).dispatchEvent(new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer: data }));
}"""


def drop(page: Any, selector: str, path: Path) -> None:
    page.evaluate(DROP, [selector, path.name, base64.b64encode(path.read_bytes()).decode()])


def planned(page: Any, site: str, command: str = COMMAND) -> None:
    page.goto(f"{site}/plan")
    page.fill("#command", command)
    page.fill("#gpu", "8x RTX PRO 6000")
    page.fill("#version", "0.5.9")
    page.click("button.go")
    page.wait_for_selector("#report .verdict")


def test_the_founding_logs_are_dropped_and_explained(page: Any, site: str) -> None:
    page.goto(f"{site}/")
    assert page.url.endswith("/why")
    drop(page, "#drop-baseline", FOUNDING / "baseline.log")
    page.wait_for_selector("#baseline-name:text('baseline.log')")
    drop(page, "#drop-log", FOUNDING / "fewer-channels.log")
    page.wait_for_selector("#report .verdict.crashed")
    said = page.inner_text("#report")
    for part in ("76.85 %", "21.78 - 94.08 x (1 - 0.55) = -20.56 GiB", "--mem-fraction-static 0.88", "decides"):
        assert part in said
    assert "/tmp" not in said
    page.wait_for_selector("#lines li.root")
    assert page.locator("#lines li.root").count() == 1
    assert "Scheduler hit an exception" in page.inner_text("#lines li.root")
    place = page.locator("#report .lines button.at", has_text="fewer-channels.log:44")
    place.click()
    page.wait_for_selector("#lines li.now .n:text('44')")
    assert page.evaluate("document.activeElement.id") == "lines"


def test_a_log_by_its_path_and_by_keys_alone(page: Any, site: str) -> None:
    page.goto(f"{site}/why")
    page.focus("#log-path")
    page.keyboard.type(str(FOUNDING / "custom-all-reduce-050.log"))
    page.keyboard.press("Enter")
    page.wait_for_selector("#report .verdict.crashed")
    page.focus("#line")
    page.keyboard.type("5")
    page.keyboard.press("Enter")
    page.wait_for_selector("#lines li.now .n:text-is('5')")


def test_what_may_not_be_read_is_said_in_one_line(page: Any, site: str) -> None:
    page.goto(f"{site}/why")
    page.fill("#log-path", "/etc/passwd")
    page.click("button.go")
    page.wait_for_selector("#error:visible")
    assert "outside the folders" in page.inner_text("#error")
    assert page.is_hidden("#answer")


def test_a_slider_changes_verdict_command_and_address(page: Any, site: str) -> None:
    planned(page, site)
    assert "It will start" in page.inner_text("#report h1")
    page.focus("#knob-mem_fraction_static")
    for _ in range(40):
        page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#report .verdict.fails")
    wait_until(lambda: "--mem-fraction-static 0.68 " in page.input_value("#command"))
    assert page.input_value("#knob-mem_fraction_static") == "76"
    assert "--mem-fraction-static 0.68" in page.inner_text("#line")
    again = page.context.new_page()
    again.goto(page.url)
    again.wait_for_selector("#report .verdict.fails")
    assert "0.68" in again.input_value("#command")


def test_another_model_and_a_copied_command(page: Any, site: str) -> None:
    planned(page, site)
    page.fill("#model", "Qwen/Qwen3-32B")
    page.keyboard.press("Tab")
    wait_until(lambda: "--model-path Qwen/Qwen3-32B" in page.input_value("#command"))
    page.wait_for_selector("#report .title:has-text('Qwen3-32B')")
    page.click("#copy-line")
    page.wait_for_selector("#copy-line:text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()").startswith("ullage plan --gpu '8x RTX PRO 6000'")


def test_a_command_that_is_none_is_said(page: Any, site: str) -> None:
    page.goto(f"{site}/plan")
    page.fill("#command", "ls -l")
    page.click("button.go")
    page.wait_for_selector("#error:visible")
    assert "neither SGLang nor vLLM" in page.inner_text("#error")


def test_a_hostile_log_is_text(page: Any, site: str, tmp_path: Path) -> None:
    lines = (FOUNDING / "fewer-channels.log").read_text().splitlines()
    evil = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> \u202egnol \x1b[31m"
    lines[52] += evil
    lines.insert(20, evil + "x" * 10_000_000)
    path = tmp_path / "<b>evil<b>.log"
    path.write_text("\n".join(lines))
    page.goto(f"{site}/why")
    page.set_input_files("#log", str(path))
    page.wait_for_selector("#report .verdict.crashed", timeout=60_000)
    page.wait_for_selector("#lines li.root")
    assert page.title() != "owned"
    assert page.locator("#report script, #report img, #report b, #lines script, #lines img").count() == 0
    assert "‹U+202E›" in page.inner_text("#lines")
    assert "bytes in this line" in page.inner_text("#lines")


def opened(page: Any, site: str, name: str) -> None:
    """The page ``name`` with everything on it that it can show."""
    if name == "plan":
        planned(page, site)
        page.wait_for_selector("#knobs:visible")
    elif name == "why":
        page.goto(f"{site}/why")
        page.set_input_files("#baseline", str(FOUNDING / "baseline.log"))
        page.wait_for_selector("#baseline-name:text('baseline.log')")
        page.set_input_files("#log", str(FOUNDING / "fewer-channels.log"))
        page.wait_for_selector("#lines li.root")
    elif name == "spec":
        judged(page, site)
    elif name == "runs":
        page.goto(f"{site}/runs")
        page.click("#list tr:has-text('crash') a")
        page.wait_for_selector("#report .verdict")
    else:
        page.goto(f"{site}/campaigns")
        page.wait_for_selector("#report svg")


def judged(page: Any, site: str) -> None:
    page.goto(f"{site}/spec")
    page.fill(
        "#command",
        f"{COMMAND} --speculative-algorithm EAGLE3 --speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3",
    )
    given = {
        "gpu": "8x RTX PRO 6000",
        "version": "0.5.9",
        "accept_length": "2.04-2.28",
        "allreduce_us": "246",
        "measured": "batch=1,tok_s=89.5",
    }
    for field, value in given.items():
        page.fill(f"#{field}", value)
    page.click("button.go")
    page.wait_for_selector("#report .verdict")


def test_the_founding_speculation_cannot_pay(page: Any, site: str) -> None:
    judged(page, site)
    said = page.inner_text("#report")
    assert "It cannot pay at batch 1" in said
    assert "122 x 42 KiB at 246 µs" in said
    assert page.locator("#report svg.chart").count() == 2
    again = page.context.new_page()
    again.goto(page.url)
    again.wait_for_selector("#report .verdict")
    assert again.input_value("#allreduce_us") == "246"


def test_a_run_that_crashed_leads_to_its_log(page: Any, site: str) -> None:
    page.goto(f"{site}/runs")
    page.wait_for_selector("#list tr")
    assert page.locator("#list tr").count() == 6
    page.click("#list tr:has-text('crash') a")
    page.wait_for_selector("#report .verdict.fails")
    assert "the server ended with code 3" in page.inner_text("#report")
    page.click("#report a[href^='/why']")
    page.wait_for_selector("#report .verdict")
    assert page.input_value("#log-path").endswith("server.log")


def test_a_campaign_shows_effects_and_what_is_ruled_out(page: Any, site: str) -> None:
    page.goto(f"{site}/campaigns")
    page.wait_for_selector("#report svg")
    said = page.inner_text("#report")
    for part in ("Effect on request_throughput", "slow", "Confounded", "Ruled out", "refused", "crashed"):
        assert part in said


PAGES = ["why", "plan", "spec", "runs", "campaigns"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(browser: Any, site: str, name: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    # axe is put into the page by a script of its own, which the page's policy would refuse
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    opened(page, site, name)
    found = axe.Axe().run(page).response["violations"]
    context.close()
    assert [
        (v["id"], v["nodes"][0]["html"][:120]) for v in found if v["impact"] in ("serious", "critical")
    ] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_shows_the_page_without_scrolling_sideways(browser: Any, site: str, name: str) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page = context.new_page()
    opened(page, site, name)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    context.close()
