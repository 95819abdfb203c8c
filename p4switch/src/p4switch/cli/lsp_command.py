"""`p4switch lsp`: a language server for editors."""

from __future__ import annotations

from p4switch.cli.options import Defines, Includes, fail, parse_defines


def lsp(defines: Defines = None, includes: Includes = None) -> None:
    """Serve an editor over standard input and output (Language Server Protocol)."""
    try:
        from p4switch.lsp.server import make_server
    except ModuleNotFoundError as error:
        if error.name not in ("pygls", "lsprotocol"):
            raise
        fail("p4switch lsp needs pygls: pip install 'p4switch[lsp]'")
    make_server(includes or [], parse_defines(defines)).start_io()
