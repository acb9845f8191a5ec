"""``ullage mcp``."""

from __future__ import annotations

import sys

import click

from ullage.cli.help import foot
from ullage.cli.listening import bound, folder
from ullage.core.errors import InputError
from ullage.core.loopback import is_loopback, netloc, own_hosts

EXAMPLES = foot(
    """\
ullage mcp                        a client starts it and speaks over stdio
ullage mcp --root ~/logs --root /data/models
ullage mcp --http --port 8788     prints the address
ullage mcp --allow-run            the client may launch servers""",
    {0: "the client has gone, or ended with Ctrl-C"},
    "mcp.md",
)
_EXTRA = "needs one more package; hint: pip install 'ullage[mcp]'"


@click.command("mcp", epilog=EXAMPLES)
@click.option(
    "--root", "roots", multiple=True, metavar="FOLDER",
    help="A folder whose logs, models and files may be read (default: the current one).",
)  # fmt: skip
@click.option("--http", "over_http", is_flag=True, help="Serve streamable HTTP instead of stdio.")
@click.option("--listen", default="127.0.0.1", metavar="ADDRESS", show_default=True,
              help="Address of --http; beyond loopback a token is asked for.")  # fmt: skip
@click.option("--port", default=8788, metavar="PORT", show_default=True, type=click.IntRange(0, 65535),
              help="Port of --http; 0 takes a free one.")  # fmt: skip
@click.option("--hub", is_flag=True, help="Ask the model hub for models that are not known here.")
@click.option(
    "--allow-run",
    is_flag=True,
    help="Also tools that launch servers and stop them: a client can then run commands as you.",
)
def command(roots: tuple[str, ...], over_http: bool, listen: str, port: int, hub: bool, allow_run: bool) -> int:
    """Give plans, diagnoses and runs to coding agents as tools (Model Context Protocol)."""
    folders = [folder(root) for root in roots or (".",)]
    try:
        import anyio

        from ullage.mcp import server
    except ImportError as error:
        raise InputError(_EXTRA, where="ullage mcp") from error
    host = server.Host(folders, hub=hub, allow_run=allow_run)
    if over_http:
        _http(host, listen, port, allow_run)
    elif sys.stdin.isatty():
        raise InputError("a client speaks to it over stdin", where="ullage mcp", hint="or serve with --http")
    else:
        anyio.run(server.stdio, host)
    return 0


def _http(host: object, listen: str, port: int, allow_run: bool) -> None:
    import secrets

    import anyio

    from ullage.mcp import http, server

    assert isinstance(host, server.Host)
    socket, port = bound(listen, port)
    token = None if is_loopback(listen) and not allow_run else secrets.token_urlsafe(24)
    click.echo(f"ullage mcp: http://{netloc(listen, port)}{http.PATH}  (Ctrl-C ends it)")
    if token:
        click.echo(f"each request needs: Authorization: Bearer {token}")
    sys.stdout.flush()
    own = None if listen in ("0.0.0.0", "::") else own_hosts(listen, port)
    anyio.run(http.serve, host, socket, own, token)
