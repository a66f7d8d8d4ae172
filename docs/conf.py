"""Settings of Sphinx, which builds the documentation: the pages of this folder, and the reference made from docstrings.

    make docs            # into target/docs; or: sphinx-build -W --keep-going -n docs target/docs

Nothing is fetched. Links from a page to files of the repository that are no pages (notebooks, sources) lead to the
repository's web page where Cargo.toml or pyproject.toml names one; otherwise the file's path stands there as text.
"""

from __future__ import annotations

import builtins
import functools
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import wcodec
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

DOCS = Path(__file__).parent.resolve()
REPOSITORY = DOCS.parent

project = "wcodec"
copyright = "the authors of wcodec"
version = release = wcodec.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
# A page that is one document on GitHub too, and a page of these: see docs/format.md.
INCLUDED = {REPOSITORY / "codec/FORMAT.md": "format"}

# Headings are link targets, by the names that GitHub gives them.
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
autodoc_type_aliases = {name: name for name in ("Calibration", "ProgressCallback", "Rules", "Source", "Tensors")}
autodoc_class_signature = "mixed"
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
# Classes that users construct. Functions return the others, so the reference leaves their constructors out.
MADE_BY_USERS = ("Encoder", "Decoder", "GpuDecoder", "HostDecoder", "WCodecModel")
# Spelling of annotations in the reference: private names of the sources, and the text in place of each.
WRITTEN = {
    r"TypeAliasForwardRef\('(\w+)'\)": r"\1",
    r"\b_Path\b": "str | PathLike[str]",
    r"\brunning\.StepCallback\b": "Callable[[int, int], object]",
}

nitpicky = True
# Documented by others, whose inventories are not fetched.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|numpy|np|npt|matplotlib|transformers|collections\.abc|os)\..*"),
    # As sources import them: from collections.abc, numpy, torch, matplotlib.
    ("py:class", r"(ArrayLike|Iterable|Iterator|Mapping|Sequence|Tensor|TorchDtype|Axes|Figure|PathLike|Unpack)"),
]

html_theme = "furo"
html_title = f"wcodec {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["wcodec.css"]
html_search_scorer = str(DOCS / "search_scorer.js")
exclude_patterns = ["images"]


@functools.cache
def _web_page() -> str | None:
    """The repository's address, if the project's files name one."""
    for name in ("Cargo.toml", "pyproject.toml"):
        found = re.search(
            r'^\s*repository\s*=\s*"(https://[^"]+)"', (REPOSITORY / name).read_text(encoding="utf-8"), re.M | re.I
        )
        if found:
            return found[1].removesuffix("/").removesuffix(".git")
    return None


def _link_to_repository(app: Sphinx, doctree: nodes.document) -> None:
    """Gives links to files that are no pages an end: see the module's documentation."""
    here = Path(app.env.doc2path(app.env.docname)).resolve().parent
    for node in [*doctree.findall(addnodes.download_reference), *doctree.findall(addnodes.pending_xref)]:
        if node.get("reftype") != "myst":
            continue
        path, _, anchor = unquote(node["reftarget"]).partition("#")
        if node.get("refdomain") == "doc":
            # Any Markdown file counts as a page, by its path without the ending.
            path, anchor = os.path.join(app.srcdir, path) + ".md", node["reftargetid"]
        target = Path(os.path.normpath(here / path))
        if not path or not target.exists() or target.is_relative_to(DOCS) and target.suffix == ".md":
            continue
        if target in INCLUDED:
            node["reftarget"] = INCLUDED[target]
        elif target.is_relative_to(REPOSITORY):
            _replace(node, target, anchor)


def _replace(node: nodes.Element, target: Path, anchor: str | None) -> None:
    path, web = target.relative_to(REPOSITORY).as_posix(), _web_page()
    if web is not None:
        address = f"{web}/{'tree' if target.is_dir() else 'blob'}/main/{path}" + (f"#{anchor}" if anchor else "")
        node.replace_self(nodes.reference("", "", *node.children, refuri=address, internal=False))
    elif target.stem in node.astext():
        node.replace_self(node.children)
    else:
        node.replace_self([*node.children, nodes.Text(" ("), nodes.literal("", path), nodes.Text(")")])


def _sign(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """The signature as the reference shows it."""
    if what in ("class", "exception") and name.rpartition(".")[2] not in MADE_BY_USERS:
        return "", None
    for pattern, text in WRITTEN.items():
        signature = signature and re.sub(pattern, text, signature)
        returned = returned and re.sub(pattern, text, returned)
    return signature, returned


def _leave_builtins(app: Sphinx, doctree: nodes.document) -> None:
    """Sphinx would look for ``bytes`` among the attributes of that name."""
    for node in [*doctree.findall(addnodes.pending_xref)]:
        if node.get("refdomain") == "py" and hasattr(builtins, node.get("reftarget", "")):
            spelled_twice = any(isinstance(child, addnodes.pending_xref_condition) for child in node.children)
            node.replace_self(nodes.Text(node["reftarget"]) if spelled_twice else node.children)


def _find_documented(app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, text: nodes.Element) -> Any:
    """A class that an annotation names as its module imports it, where the reference has it under its public name."""
    if node.get("refdomain") != "py":
        return None
    domain: Any = env.get_domain("py")
    name = node.get("reftarget", "").rpartition(".")[2]
    found = {
        (obj.docname, obj.node_id): full
        for full, obj in domain.objects.items()
        if full.rpartition(".")[2] == name and obj.objtype in ("class", "exception", "data") and not obj.aliased
    }
    if len(found) != 1:
        return None
    (page, place), full = next(iter(found.items()))
    return make_refnode(app.builder, node["refdoc"], page, place, text, full)


def setup(app: Sphinx) -> dict[str, Any]:
    # Before Sphinx copies downloads.
    app.connect("doctree-read", _link_to_repository, priority=0)
    app.connect("doctree-read", _leave_builtins)
    app.connect("autodoc-process-signature", _sign)
    app.connect("missing-reference", _find_documented)
    return {"parallel_read_safe": True}
