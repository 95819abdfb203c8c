"""The Language Server Protocol around documents (pygls)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from p4switch.frontend.source.preprocessor import SYSTEM_INCLUDES
from p4switch.lsp.document import Diagnostic, Document, Name
from p4switch.position import Position

_KINDS = {
    "variable": lsp.CompletionItemKind.Variable,
    "constant": lsp.CompletionItemKind.Constant,
    "action": lsp.CompletionItemKind.Function,
    "function": lsp.CompletionItemKind.Function,
    "table": lsp.CompletionItemKind.Class,
    "type": lsp.CompletionItemKind.Struct,
    "generic": lsp.CompletionItemKind.Interface,
    "method": lsp.CompletionItemKind.Method,
    "field": lsp.CompletionItemKind.Field,
    "member": lsp.CompletionItemKind.EnumMember,
}


def make_server(include_paths: Sequence[Path], defines: Mapping[str, str]) -> LanguageServer:
    """Return a server; `include_paths` and `defines` hold for all files."""
    server = LanguageServer("p4switch", version("p4switch"))
    documents: dict[str, Document] = {}

    def check(uri: str) -> None:
        path = Path(to_fs_path(uri) or uri)
        document = documents.setdefault(uri, Document(path, include_paths, defines))
        text = server.workspace.get_text_document(uri)
        found = [_diagnostic(each) for each in document.update(text.source)]
        server.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(uri, found, text.version)
        )

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        check(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        check(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        documents.pop(params.text_document.uri, None)

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        document = documents.get(params.text_document.uri)
        place = params.position
        text = document.hover(place.line + 1, place.character + 1) if document else None
        if text is None:
            return None
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, f"```p4\n{text}\n```"))

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def definition(params: lsp.DefinitionParams) -> lsp.Location | None:
        document = documents.get(params.text_document.uri)
        place = params.position
        found = document.definition(place.line + 1, place.character + 1) if document else None
        return None if found is None else _location(found)

    @server.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=["."]))
    def completion(params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
        document = documents.get(params.text_document.uri)
        if document is None:
            return []
        place = params.position
        return [_item(each) for each in document.names(place.line + 1, place.character + 1)]

    return server


def _diagnostic(found: Diagnostic) -> lsp.Diagnostic:
    line = found.position.line - 1
    return lsp.Diagnostic(
        lsp.Range(lsp.Position(line, found.position.column - 1), lsp.Position(line, found.end - 1)),
        found.message,
        lsp.DiagnosticSeverity.Error if found.is_error else lsp.DiagnosticSeverity.Warning,
        source="p4switch",
    )


def _location(found: Position) -> lsp.Location | None:
    file = Path(found.file)
    own = SYSTEM_INCLUDES / file.name
    uri = from_fs_path(str(own if not file.exists() and own.exists() else file.absolute()))
    start = lsp.Position(found.line - 1, found.column - 1)
    return None if uri is None else lsp.Location(uri, lsp.Range(start, start))


def _item(name: Name) -> lsp.CompletionItem:
    kind = _KINDS.get(name.kind, lsp.CompletionItemKind.Variable)
    return lsp.CompletionItem(name.name, kind=kind, detail=name.detail)
