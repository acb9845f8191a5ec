"""A benchmark for tests: a few requests, one after the other, and a line of JSON. Nothing but the standard library.

LOAD_HANG=1: never ends, with a child that ignores SIGTERM. LOAD_FAIL=1: exits with 3. LOAD_REQUESTS=N.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
import urllib.request


def main(url: str) -> None:
    if os.environ.get("LOAD_FAIL"):
        print("load: told to fail")
        sys.exit(3)
    if os.environ.get("LOAD_HANG"):
        os.fork()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    body = json.dumps({"model": "m", "prompt": "1", "max_tokens": 1}).encode()
    times = []
    for _ in range(int(os.environ.get("LOAD_REQUESTS") or 5)):
        began = time.perf_counter()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=60).read()
        times.append(time.perf_counter() - began)
    print("load: done")
    # the server's latency is what is looked at; the machine's own jitter stays below it
    print(
        json.dumps(
            {"request_throughput": len(times) / sum(times), "median_e2el_ms": statistics.median(times) * 1e3}
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
