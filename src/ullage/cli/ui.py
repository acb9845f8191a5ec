"""``ullage ui``."""

from __future__ import annotations

import secrets
import sys

import click

from ullage.cli.help import foot
from ullage.cli.listening import bound, folder
from ullage.core.errors import InputError
from ullage.core.loopback import is_loopback, netloc, own_hosts

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
    server_socket, port = bound(listen, port)
    token = None if is_loopback(listen) else secrets.token_urlsafe(24)
    address = f"http://{netloc(listen, port)}/" + (f"?token={token}" if token else "")
    app = application(own_hosts(listen, port), [folder(root) for root in roots or (".",)], token)
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="on")
    click.echo(f"ullage ui: {address}  (Ctrl-C ends it)")
    sys.stdout.flush()
    if open_browser:
        click.launch(address)
    uvicorn.Server(config).run(sockets=[server_socket])
    return 0
