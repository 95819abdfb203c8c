"""The documentation as a site: it builds without a warning, and its figures are those measured."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from mkdocs.exceptions import PluginError

from benchmarks.figures import (
    PAGE,
    PICTURE,
    PLOT_FOLDER,
    README,
    RESULTS,
    figures_page,
    picture,
    plots,
)
from benchmarks.readme_table import readme_with_table
from tests.support.paths import ROOT
from tools.docs_links import on_page_markdown
from tools.reference_pages import PAGES, error_classes

CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.acceptance
def test_the_site_builds_with_all_links(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs mkdocs-material: `make setup`")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "lessons" / "2-sum.html").read_text()
    assert "Sum on one switch" in page
    for name, words in {
        "commands": "hopsum controller serve",
        "configuration": "tls-certificate",
        "errors": "OptionsFileError",
        "python": "fat_tree",
    }.items():
        assert words in (tmp_path / "reference" / f"{name}.html").read_text(), name
    assert 'href="../references.html#001"' in (tmp_path / "reference" / "python.html").read_text()
    examples = tmp_path / "examples"
    assert "../examples/first_sum/index.html" in (tmp_path / "lessons/8-by-hand.html").read_text()
    assert (examples / "first_sum/index.html").exists()
    assert "../docs/" not in (tmp_path / "hopsum_torch/index.html").read_text()
    # The search works where the site is opened as a file.
    assert (tmp_path / "search/search_index.js").read_text().startswith("var __index = ")
    # It is read without a network.
    assert not re.findall(r'<(?:script|link)[^>]+(?:src|href)="https?://[^"]+\.(?:js|css)"', page)


@pytest.mark.slow
def test_errors_are_those_of_the_code() -> None:
    names = {each.name: each for each in error_classes()}
    assert {"HopsumError", "InputError", "NetworkError", "VersionError"} <= set(names)
    assert "Finding" not in names
    assert all(each.text for each in names.values())


def test_the_figures_page_is_that_of_the_results() -> None:
    assert PAGE.read_text() == figures_page(), "run `python -m benchmarks.figures`"


def test_the_plots_are_those_of_the_results() -> None:
    made = {path.name: path.read_text() for path in PLOT_FOLDER.glob("*")}
    assert made == plots(), "run `python -m benchmarks.figures`"
    for name, svg in made.items():
        ElementTree.fromstring(svg)
        assert f"](images/figures/{name})" in PAGE.read_text()


def test_the_readmes_picture_is_that_of_the_results() -> None:
    assert PICTURE.read_text() == picture(), "run `python -m benchmarks.figures`"
    ElementTree.fromstring(PICTURE.read_text())
    assert "docs/images/overview.svg" in (ROOT / "README.md").read_text()


def test_the_readmes_table_is_that_of_the_results() -> None:
    readme = README.read_text()
    assert readme == readme_with_table(readme, RESULTS), "run `python -m benchmarks.figures`"


def test_files_that_are_no_pages_are_named_once() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="captures.md"))
    for text, shown in {
        "[p4src/hopsum.p4](../p4src/hopsum.p4)": "`p4src/hopsum.p4`",
        "[`hopsum.p4`](../p4src/hopsum.p4)": "`p4src/hopsum.p4`",
        "[the layout](../p4src/hopsum.p4)": "the layout (`p4src/hopsum.p4`)",
    }.items():
        assert on_page_markdown(text, page) == shown


def test_links_between_pages_of_several_folders() -> None:
    for name, text, shown in (
        ("index.md", "[all](../examples/README.md)", "[all](examples/README.md)"),
        ("how-to/bmv2.md", "[p](../../p4switch/docs/bmv2.md#a)", "[p](../p4switch/docs/bmv2.md#a)"),
        ("examples/README.md", "[one](first_sum/README.md)", "[one](first_sum/README.md)"),
        ("examples/first_sum/README.md", "[p](../../docs/protocol.md)", "[p](../../protocol.md)"),
        (
            "examples/first_sum/README.md",
            "[p](first_sum.py)",
            "p (`examples/first_sum/first_sum.py`)",
        ),
        ("hopsum_scapy/README.md", "[hopsum](../README.md)", "[hopsum](../index.md)"),
        ("protocol.md", "```\n[x](../nowhere)\n```", "```\n[x](../nowhere)\n```"),
    ):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name))
        assert on_page_markdown(text, page) == shown
    with pytest.raises(PluginError, match=r"nowhere\.py: there is no such file"):
        on_page_markdown("[x](../nowhere.py)", page)


def test_links_of_the_documents_lead_to_files() -> None:
    """The files that are no pages of the site too: README, CONTRIBUTING and CHANGELOG."""
    # Those that a build makes.
    made = {ROOT / "docs" / name for name in PAGES}
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    missing = [
        f"{document.name}: {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#\s]+)", CODE.sub("", document.read_text()))
        if "://" not in target
        and not (document.parent / target).exists()
        and (document.parent / target).resolve() not in made
    ]
    assert not missing
