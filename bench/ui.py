"""The Plan page under twenty users, and beside a 1 GB log: ratios to a single request, in one run.

Each user turns a slider as a hand does: a question, the answer, a short rest (50 to 150 ms), the next value.
Only loopback, 20 users, 15 questions each.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

import httpx

USERS, QUESTIONS = 20, 15
COMMAND = (
    "python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --trust-remote-code "
    "--mem-fraction-static 0.88 --cuda-graph-max-bs 128"
)


def question(value: float, *, full: bool = False) -> dict[str, object]:
    return {
        "command": COMMAND, "gpu": "8x RTX PRO 6000", "version": "0.5.9", "full": full,
        "set": {"mem_fraction_static": value},
    }  # fmt: skip


async def once(client: httpx.AsyncClient, value: float) -> float:
    begin = time.perf_counter()
    reply = await client.post("/api/plan", json=question(value))
    reply.raise_for_status()
    return time.perf_counter() - begin


async def user(client: httpx.AsyncClient, seed: int) -> list[float]:
    rng = random.Random(seed)
    took = []
    await asyncio.sleep(rng.random() * 0.2)
    for _ in range(QUESTIONS):
        took.append(await once(client, round(rng.uniform(0.5, 0.95), 3)))
        await asyncio.sleep(rng.uniform(0.05, 0.15))
    return took


def big_log(path: Path, size: int) -> None:
    line = b"[2026-02-25 14:40:20 TP0] Decode batch, #running-req: 17, #token: 60120, token usage: 0.37\n"
    block = line * (1_000_000 // len(line))
    with path.open("wb") as stream:
        while stream.tell() < size:
            stream.write(block)


async def measure(address: str, log: Path) -> None:
    at_once = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]  # as browsers do
    transport = httpx.AsyncHTTPTransport(socket_options=at_once)
    async with httpx.AsyncClient(base_url=address, timeout=120, transport=transport) as client:
        for _ in range(10):
            await once(client, 0.8)
        alone = median([await once(client, 0.5 + n / 100) for n in range(40)])
        print(f"one request alone                    {alone * 1e3:6.1f} ms (median of 40)")
        took = [t for one in await asyncio.gather(*(user(client, n) for n in range(USERS))) for t in one]
        p95 = quantiles(took, n=20)[-1]
        print(
            f"{USERS} users with rests of 50-150 ms, p95  {p95 * 1e3:6.1f} ms = {p95 / alone:.1f} x (goal 10)"
        )
        begin = time.perf_counter()
        reading = asyncio.create_task(client.post("/api/why", json={"logs": [str(log)]}))
        beside = []
        while not reading.done() and len(beside) < 2000:
            beside.append(await once(client, 0.5 + len(beside) % 40 / 100))
        await reading
        size = log.stat().st_size / 1e9
        shown = f"{median(beside) * 1e3:6.1f} ms = {median(beside) / alone:.1f} x"
        seconds = time.perf_counter() - begin
        print(f"beside a {size:.1f} GB log                 {shown} ({len(beside)} in its {seconds:.1f} s)")


def main() -> None:
    size = int(os.environ.get("ULLAGE_BENCH_BYTES", 1_000_000_000))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "big.log"
        big_log(log, size)
        words = [sys.executable, "-m", "ullage", "ui", "--port", "0", "--root", folder]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            asyncio.run(measure(found[0], log))
        finally:
            server.terminate()
            server.wait(20)


if __name__ == "__main__":
    main()
