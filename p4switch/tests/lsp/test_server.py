"""`p4switch lsp`, spoken to by a client over standard input and output."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.machine import PATIENCE

pytest.importorskip("pygls", reason="needs pygls (p4switch[lsp])")

from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

TYPES = """typedef bit<48> mac_t;
header ethernet_t { mac_t destination; mac_t source; bit<16> kind; }
"""
PROGRAM = """#include <core.p4>
#include <v1model.p4>
#include "types.p4"
struct headers { ethernet_t ethernet; ethernet_t[2] more; }
struct meta_t { bit<WIDTH> next_hop; }
parser P(packet_in b, out headers hdr, inout meta_t m, inout standard_metadata_t sm) {
    state start { b.extract(hdr.ethernet); transition done; }
    state done { transition accept; }
}
control V(inout headers hdr, inout meta_t m) { apply { } }
control I(inout headers hdr, inout meta_t m, inout standard_metadata_t sm) {
    action forward(bit<9> port) {
        sm.egress_spec = port;
    }
    table routes {
        key = { hdr.ethernet.destination : exact; }
        actions = { forward; NoAction; }
    }
    apply {
        routes.apply();
        m.next_hop = 1;
    }
}
control E(inout headers hdr, inout meta_t m, inout standard_metadata_t sm) { apply { } }
control D(packet_out b, in headers hdr) { apply { b.emit(hdr.ethernet); } }
V1Switch(P(), V(), I(), E(), V(), D()) main;
"""


class Server:
    """A running server, and what it has published."""

    def __init__(self) -> None:
        self.client = LanguageClient("editor", "1")
        self.published: asyncio.Queue[lsp.PublishDiagnosticsParams] = asyncio.Queue()

        @self.client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def diagnostics(params: lsp.PublishDiagnosticsParams) -> None:
            self.published.put_nowait(params)

    async def start(self) -> None:
        command = ["-m", "p4switch.cli.main", "lsp", "-D", "WIDTH=12"]
        await self.client.start_io(sys.executable, *command)
        await self.client.initialize_async(
            lsp.InitializeParams(capabilities=lsp.ClientCapabilities(), process_id=None)
        )
        self.client.initialized(lsp.InitializedParams())

    async def stop(self) -> None:
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()


class Editor:
    """An open file."""

    def __init__(self, server: Server, folder: Path) -> None:
        (folder / "types.p4").write_text(TYPES)
        self.path = folder / "router.p4"
        self.path.write_text(PROGRAM)
        self.uri = self.path.as_uri()
        self.text = PROGRAM
        self.client = server.client
        self.published = server.published

    async def open(self) -> list[str]:
        document = lsp.TextDocumentItem(self.uri, "p4", 1, self.text)
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(document))
        return await self.diagnostics()

    async def diagnostics(self) -> list[str]:
        """What the server next says of the file: severity, line from 1, and message."""
        found = await self.published.get()
        assert found.uri == self.uri
        return [
            f"{each.severity.name if each.severity else ''} {each.range.start.line + 1}: "
            f"{each.message}"
            for each in found.diagnostics
        ]

    async def change(self, old: str, new: str) -> list[str]:
        self.text = self.text.replace(old, new, 1)
        self.client.text_document_did_change(
            lsp.DidChangeTextDocumentParams(
                lsp.VersionedTextDocumentIdentifier(2, self.uri),
                [lsp.TextDocumentContentChangeWholeDocument(self.text)],
            )
        )
        return await self.diagnostics()

    def place(self, text: str, after: int = 0) -> lsp.TextDocumentPositionParams:
        """The place `after` characters into the first occurrence of a text."""
        index = self.text.index(text) + after
        line = self.text.count("\n", 0, index)
        position = lsp.Position(line, index - self.text.rfind("\n", 0, index) - 1)
        return lsp.TextDocumentPositionParams(lsp.TextDocumentIdentifier(self.uri), position)

    async def hover(self, text: str, after: int = 0) -> str | None:
        at = self.place(text, after)
        found = await self.client.text_document_hover_async(
            lsp.HoverParams(at.text_document, at.position)
        )
        if found is None:
            return None
        assert isinstance(found.contents, lsp.MarkupContent)
        return found.contents.value.removeprefix("```p4\n").removesuffix("\n```")

    async def definition(self, text: str, after: int = 0) -> tuple[str, int, int] | None:
        at = self.place(text, after)
        found = await self.client.text_document_definition_async(
            lsp.DefinitionParams(at.text_document, at.position)
        )
        if found is None:
            return None
        assert isinstance(found, lsp.Location)
        start = found.range.start
        return found.uri.rpartition("/")[2], start.line + 1, start.character + 1

    async def completion(self, text: str, after: int) -> dict[str, str | None]:
        at = self.place(text, after)
        found = await self.client.text_document_completion_async(
            lsp.CompletionParams(at.text_document, at.position)
        )
        assert isinstance(found, list)
        return {item.label: item.detail for item in found}


Steps = Callable[[Editor], Awaitable[None]]
Edited = Callable[[Steps], None]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[asyncio.Runner, Server]]:
    """A server, and the loop that it is spoken to in."""
    with asyncio.Runner() as runner:
        server = Server()
        runner.run(asyncio.wait_for(server.start(), PATIENCE))
        yield runner, server
        runner.run(asyncio.wait_for(server.stop(), PATIENCE))


@pytest.fixture
def edited(running: tuple[asyncio.Runner, Server], tmp_path: Path) -> Edited:
    """Run the steps of an editor; all files have one server."""
    runner, server = running

    async def session(steps: Steps) -> None:
        editor = Editor(server, tmp_path)
        async with asyncio.timeout(PATIENCE):
            assert await editor.open() == []
            await steps(editor)

    return lambda steps: runner.run(session(steps))


def test_errors_and_warnings_as_one_types(edited: Edited) -> None:
    async def steps(editor: Editor) -> None:
        assert await editor.change("m.next_hop = 1;", "m.next = 1; bit<8> x; y = 2;") == [
            "Error 21: 'meta_t' has no field 'next'; did you mean 'next_hop'?",
            "Error 21: nothing is called 'y' here",
            "Warning 21: variable 'x' is not used",
        ]
        assert await editor.change("m.next = 1; bit<8> x; y = 2;", "m.next_hop =") == [
            "Error 22: expected an expression, found '}'"
        ]
        assert await editor.change("m.next_hop =", "") == []

    edited(steps)


def test_hover_shows_types(edited: Edited) -> None:
    async def steps(editor: Editor) -> None:
        assert await editor.hover("next_hop = 1", 3) == "bit<12> next_hop"
        assert await editor.hover("forward; NoAction") == "action forward(bit<9> port)"
        assert await editor.hover("routes.apply") == (
            "table routes {\n    hdr.ethernet.destination : exact;\n}"
        )
        assert await editor.hover("ethernet_t ethernet", 2) == (
            "header ethernet_t {\n    bit<48> destination;\n    bit<48> source;\n"
            "    bit<16> kind;\n}"
        )
        assert await editor.hover("action forward", 8) == "action forward(bit<9> port)"
        assert await editor.hover("apply {") is None

    edited(steps)


def test_definitions(edited: Edited) -> None:
    async def steps(editor: Editor) -> None:
        assert await editor.definition("forward; NoAction") == ("router.p4", 12, 12)
        assert await editor.definition("NoAction;") == ("core.p4", *(await core(editor)))
        assert await editor.definition("destination :") == ("types.p4", 2, 27)
        assert await editor.definition("port;") == ("router.p4", 12, 27)
        assert await editor.definition("done;") == ("router.p4", 8, 11)
        assert await editor.definition("apply {") is None

    async def core(editor: Editor) -> tuple[int, int]:
        from p4switch.frontend.source.preprocessor import SYSTEM_INCLUDES

        text = (SYSTEM_INCLUDES / "core.p4").read_text().split("\n")
        line = next(number for number, each in enumerate(text, 1) if "action NoAction" in each)
        return line, text[line - 1].index("NoAction") + 1

    edited(steps)


def test_names_are_completed(edited: Edited) -> None:
    async def steps(editor: Editor) -> None:
        await editor.change("m.next_hop = 1;", "hdr.ethernet.")
        members = await editor.completion("hdr.ethernet.\n", len("hdr.ethernet."))
        assert members["source"] == "bit<48> source"
        assert "setValid" in members
        assert "hdr" not in members
        await editor.change("hdr.ethernet.\n", "hdr.more[0].\n")
        members = await editor.completion("hdr.more[0].\n", len("hdr.more[0]."))
        assert "kind" in members
        await editor.change("hdr.more[0].\n", "r\n")
        names = await editor.completion("r\n    }", 1)
        assert names["routes"] == "table routes"
        assert names["forward"] == "action forward(bit<9> port)"
        assert names["mark_to_drop"] is not None
        assert "port" not in names
        inside = await editor.completion("sm.egress_spec = port", len("sm.egress_spec = "))
        assert inside["port"] == "bit<9> port"

    edited(steps)
