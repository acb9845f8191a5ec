"""``ullage ui``."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import sys

import click

from ullage.cli.help import foot
from ullage.core.errors import InputError

EXAMPLES = foot(
    """\
ullage ui
ullage ui --root /var/log/llm --port 9000
ullage ui --listen 10.0.0.5      prints an address with a token""",
    {0: "ended with Ctrl-C"},
    "ui.md",
)
_EXTRA = "needs two more packages; hint: pip install 'ullage[ui]'"


@click.command("ui", epilog=EXAMPLES)
@click.option(
    "--listen",
    default="127.0.0.1",
    metavar="ADDRESS",
    show_default=True,
    help="Address to listen on; beyond loopback a token is asked for.",
)
@click.option(
    "--port",
    default=8787,
    metavar="PORT",
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port; 0 takes a free one.",
)
@click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="FOLDER",
    help="A folder whose logs the page may read by path (default: the current one).",
)
@click.option("--open", "open_browser", is_flag=True, help="Open the page in the browser.")  # fmt: skip
def command(listen: str, port: int, roots: tuple[str, ...], open_browser: bool) -> int:
    """Show plans, diagnoses, campaigns and time ledgers in the browser, on this machine alone."""
    try:
        import uvicorn

        from ullage.web.app import application
    except ImportError as error:
        raise InputError(_EXTRA, where="ullage ui") from error
    server_socket = bound(listen, port)
    port = server_socket.getsockname()[1]
    token = None if loopback(listen) else secrets.token_urlsafe(24)
    name = f"[{listen}]" if ":" in listen else listen
    hosts = [
        f"{host}:{port}" for host in {name, *(("localhost", "127.0.0.1", "[::1]") if loopback(listen) else ())}
    ]
    address = f"http://{name}:{port}/" + (f"?token={token}" if token else "")
    app = application(hosts, roots or (".",), token)
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="on")
    click.echo(f"ullage ui: {address}  (Ctrl-C ends it)")
    sys.stdout.flush()
    if open_browser:
        click.launch(address)
    uvicorn.Server(config).run(sockets=[server_socket])
    return 0


def loopback(address: str) -> bool:
    """True if only this machine reaches the address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def bound(address: str, port: int) -> socket.socket:
    """A socket that listens there. Raises InputError where that cannot be."""
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(kind, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(128)
    except OSError as error:
        made.close()
        hint = "another --port, or 0 for a free one" if error.errno == 98 else None
        raise InputError(
            f"cannot be listened on: {error.strerror or error}", where=f"{address}:{port}", hint=hint
        ) from None
    return made
