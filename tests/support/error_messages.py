"""Every error message that the package can raise, read from its sources: what docs/messages.md must explain.

A message here is what is wrong, without the place before it (``model.wcodec, tensor 'a', byte 64:``) and without the
advice in parentheses after it; whatever is filled in when it is raised is ``…``.
``python tests/support/error_messages.py`` prints them all.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GAP = "…"

# Names of kinds in Rust, and the exceptions that Python makes of them (_errors.py).
RUST_KINDS = {
    "format": "FormatError",
    "corrupt": "CorruptError",
    "unsupported": "UnsupportedError",
    "input": "InputError",
    "device": "DeviceError",
    "io": "FileError",
}
CLASSES = {
    "WcodecError": "WcodecError",
    "FormatError": "FormatError",
    "CorruptError": "CorruptError",
    "UnsupportedError": "UnsupportedError",
    "InputError": "InputError",
    "TensorNotFoundError": "InputError",
    "DeviceError": "DeviceError",
    "FileError": "FileError",
    "FileMissingError": "FileError",
    "OutputExistsError": "FileError",
    "FilePermissionError": "FileError",
    # Python's own, where the package raises them.
    "ValueError": "Python",
    "TypeError": "Python",
    "RuntimeError": "Python",
    "AttributeError": "Python",
    "ImportError": "Python",
    "IndexError": "Python",
    "KeyError": "Python",
    "ArgumentTypeError": "Command line",
}

# Messages that cannot reach anybody, and why.
NEVER = {
    "cannot create the output: …": "always because it exists, which has a text of its own",
    "no such word": "clap lets no other words through",
}

# Helpers that make an error of their arguments: what is wrong and what to do.
HELPERS = ("refuse", "_refuse")

# Functions that say in their results why something is not done; messages and reports quote them.
REASONS = {
    "pyext/python/wcodec/_models/find.py": ("_not_chosen", "_tied_together", "_beside", "_of_model", "_vectors"),
    "pyext/python/wcodec/_models/kinds.py": ("_others", "_no_weight", "_not_values", "_beside", "_not_own"),
    "pyext/python/wcodec/_models/replace.py": ("_reasons",),
    "codec/src/gpu/nvcomp/family.rs": ("decide", "check_driver"),
}

# Texts that no rule finds: the file, the code that has the text, and the message.
ELSEWHERE = [
    ("codec/src/error.rs", '"the output exists already"', "FileError", "the output exists already"),
    ("pyext/python/wcodec/_api/doctor.py", 'f"it cannot be imported: {error} (', "Reason", "it cannot be imported: …"),
    ("pyext/python/wcodec/_api/doctor.py", '"there is no GPU"', "Reason", "there is no GPU"),
    ("pyext/python/wcodec/cli.py", '"wcodec: interrupted"', "Command line", "interrupted"),
    ("pyext/python/wcodec/cli.py", 'f"wcodec: ended by {signal}"', "Command line", "ended by …"),
    ("pyext/python/wcodec/cli.py", '"internal error", f"{type(error)', "Command line", "internal error: …: …"),
    ("tui/src/stats/error.rs", '"the reference has no tensor', "Inspector", "the reference has no tensor of this name"),
    ("tui/src/stats/error.rs", '"its shape in the reference', "Inspector", "its shape in the reference is …"),
    ("tui/src/views/speed.rs", '"no GPU: {why}"', "Inspector", "no GPU: …"),
    ("tui/src/workers/stats.rs", '"no thread for statistics: {e}"', "Inspector", "no thread for statistics: …"),
    ("tui/src/workers/timing.rs", '"the thread for timings ended"', "Inspector", "the thread for timings ended"),
    ("tui/src/terminal.rs", '"internal error: {}"', "Inspector", "internal error: …"),
    ("codec/src/verify.rs", '"not in the source"', "Report", "not in the source"),
    ("codec/src/verify.rs", '"not in the container"', "Report", "not in the container"),
    (
        "codec/src/verify.rs",
        '"in the rest of its model, {place}, it is not',
        "Report",
        "in the rest of its model, …, it is not what the source has",
    ),
    ("codec/src/verify.rs", '"{} {:?} in the source, {} {:?} here"', "Report", "… in the source, … here"),
    (
        "codec/src/verify.rs",
        "\"tied to '{target}', from which",
        "Report",
        "tied to '…', from which it differs in the source",
    ),
    (
        "codec/src/verify.rs",
        '"byte {at} of the tensor differs',
        "Report",
        "byte … of the tensor differs from the source",
    ),
    ("codec/src/verify.rs", '"in the source: {}"', "Report", "in the source: …"),
    (
        "codec/src/verify.rs",
        '"the symbol at row {row}, column {col} is',
        "Report",
        "the symbol at row …, column … is …, and the source gives …",
    ),
    ("codec/src/verify.rs", '"scale {at} is {a}, and', "Report", "scale … is …, and the source gives …"),
    ("pyext/src/gpu/verify.rs", '"the GPU decodes {} bytes', "Report", "the GPU decodes … bytes of …, the CPU …"),
    ("pyext/src/gpu/verify.rs", '"GPU and CPU differ in', "Report", "GPU and CPU differ in … of … …, first at …"),
]

_DOCTOR_DETAIL = "WcodecError(f\"{coder}: {tensor['detail']} (report this, with the output of the command)\")"

# Sources whose errors of these classes get their advice in one place, ``Error::of_container``, with the file's name.
CONTAINER = re.compile(
    r"codec/src/(container|decode|coder|scheme)[/.]|codec/src/(tensor|extract|file/input|stored|gpu/plan)\.rs"
)
OF_CONTAINER = ("FormatError", "CorruptError")
# Source whose errors of these classes get their advice in ``legacy::decode``: that of legacy blobs.
LEGACY = "codec/src/legacy.rs"

# Places whose text is another message's, by file and code: why nothing is lost, and the messages that change their
# class there.
PASSED_ON: dict[tuple[str, str], tuple[str, list[str]]] = {
    ("pyext/python/wcodec/_gpu/devices.py", "DeviceError(problem)"): (
        "DeviceInfo::supported or torch_problem says it",
        [],
    ),
    ("pyext/python/wcodec/_api/model.py", "AttributeError(name)"): ("Python's own way to say it", []),
    ("pyext/python/wcodec/_api/doctor.py", _DOCTOR_DETAIL): ("of a report", []),
    ("pyext/python/wcodec/_calibrate/file.py", "ValueError(reason)"): ("what contradicts, in load's own message", []),
    ("pyext/python/wcodec/_plan/file.py", "ValueError(reason)"): ("what contradicts, in load's own message", []),
    ("codec/src/coder/plane/encode/tiles.rs", "Error::input(e.message().to_owned())"): (
        "the checks of a file's numbers, of an option here",
        [
            "tile width … is not a multiple of 64 from 64 to 1024",
            "… matrices of … x … are too large",
            "tables of coder … have … bits, not …",
        ],
    ),
    ("codec/src/coder/plane/encode/zstd.rs", "Error::input(e.message().to_owned())"): (
        "the check of a file's number, of an option here",
        ["zstd chunks have 1 to … bytes, not …"],
    ),
    ("codec/src/encode.rs", "Error::input(e.message().to_owned())"): (
        "the check of a file's number, of an option here",
        ["blocks of scales have a multiple of 16 columns, not …"],
    ),
    ("codec/src/decode/container.rs", "Error::unsupported(e.message())"): ("Coder::from_name says it", []),
    ("codec/src/stored.rs", "upgrade(e.message().to_owned())"): ("Coder::from_name says it", []),
    ("codec/src/decode/tensor.rs", "Error::new(error.kind(),error.message())"): ("the place is added", []),
    ("codec/src/narrow/tiles.rs", "Error::new(e.kind(),e.message())"): ("the place is added", []),
    ("codec/src/scheme/reader.rs", "Error::input(e.to_string())"): (
        "ndarray says it, of shapes that were checked",
        [],
    ),
    ("codec/src/gpu/driver.rs", "Error::device(reason.message)"): ("Unusable::new says it", []),
    ("codec/src/gpu/driver.rs", 'Error::device(format!("{about}: {}",reason.message))'): ("refused says it", []),
}


@dataclass(frozen=True)
class Message:
    """One message: the class that the documentation lists it under, its text, where it is raised, what it advises."""

    kind: str
    text: str
    where: str
    advice: bool = False


@dataclass
class Found:
    """Messages that were read, and places whose text is made elsewhere: the place, the class, and the code."""

    messages: list[Message] = field(default_factory=list)
    open_ends: list[tuple[str, str, str]] = field(default_factory=list)


def core(text: str) -> tuple[str, bool]:
    """A message without place and advice, and whether there was advice."""
    text = re.sub(rf"{GAP}(?:\s*{GAP})*", GAP, " ".join(text.split()))
    text = re.sub(rf"^(?:{GAP}(?:, )?)?(?:(?:layer of )?tensor '{GAP}')?: ", "", text)
    text = re.sub(rf"^{GAP}(?=[a-z])", "", text)
    advice = text.endswith(")") and " (" in text
    if advice:
        depth = 0
        for at in range(len(text) - 1, -1, -1):
            depth += {")": 1, "(": -1}.get(text[at], 0)
            if depth == 0:
                text = text[:at].rstrip()
                break
    return text, advice


# Python

# Advice that stands before what another library says.
_INNER = re.compile(r" \([a-z][^()]*\): ")


def _texts(node: ast.expr | None, scope: dict[str, list[ast.expr]]) -> list[str] | None:
    """Texts that an expression can be, or ``None`` if they are not written here."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(v.value) if isinstance(v, ast.Constant) else GAP for v in node.values)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = (_texts(side, scope) or [GAP] for side in (node.left, node.right))
        return [a + b for a in left for b in right]
    if isinstance(node, ast.IfExp):
        sides = [_texts(side, scope) for side in (node.body, node.orelse)]
        return None if None in sides else [t for side in sides for t in side or []]
    if isinstance(node, ast.Name) and node.id in scope:
        found = [_texts(value, {}) for value in scope[node.id]]
        return None if None in found else [t for texts in found for t in texts or []]
    return None


class _Reader(ast.NodeVisitor):
    def __init__(self, place: str, found: Found, helpers: dict[tuple[str, str], ast.FunctionDef]) -> None:
        self.place, self.found, self.helpers = place, found, helpers
        self.scopes: list[dict[str, list[ast.expr]]] = [{}]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in HELPERS:
            return
        names: dict[str, list[ast.expr]] = {}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Name):
                names.setdefault(inner.targets[0].id, []).append(inner.value)
        self.scopes.append(names)
        self.generic_visit(node)
        self.scopes.pop()
        if node.name in REASONS.get(self.place, ()):
            values = [r.value for r in ast.walk(node) if isinstance(r, ast.Return)] + names.get("why", [])
            for value in values:
                if isinstance(value, ast.Constant | ast.JoinedStr):
                    self.add("Reason", _texts(value, {}) or [], value)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in HELPERS:
            helper = self.helpers.get((self.place, name)) or self.helpers[("", name)]
            self.add("InputError", _by_helper(helper, node, self.scopes[-1]), node)
        elif name in CLASSES and node.args:
            texts = _texts(node.args[0], self.scopes[-1])
            if texts is None and isinstance(node.args[0], ast.Name):
                texts = self.by_function(node.args[0].id)
            if texts is None or any(core(text)[0] == GAP for text in texts):
                code = ast.unparse(ast.Call(node.func, node.args, []))
                self.found.open_ends.append((self.place, CLASSES[name], code))
            else:
                self.add(CLASSES[name], texts, node)
        self.generic_visit(node)

    def by_function(self, name: str) -> list[str] | None:
        """Texts that a variable can be that a function of the same file gave."""
        for value in self.scopes[-1].get(name, []):
            function = self.helpers.get((self.place, getattr(getattr(value, "func", None), "id", "")))
            if function is not None:
                results = [_texts(r.value, {}) for r in ast.walk(function) if isinstance(r, ast.Return)]
                return [text for texts in results for text in texts or []]
        return None

    def add(self, kind: str, texts: list[str], node: ast.AST) -> None:
        for text in texts:
            short, advice = core(text)
            where = f"{self.place}:{getattr(node, 'lineno', 0)}"
            self.found.messages.append(Message(kind, short, where, advice or bool(_INNER.search(text))))


def _by_helper(helper: ast.FunctionDef, call: ast.Call, scope: dict[str, list[ast.expr]]) -> list[str]:
    """The helper's template with what a caller gives it."""
    names = [a.arg for a in helper.args.args if a.arg != "self"]
    given = {name: (_texts(value, scope) or [GAP])[0] for name, value in zip(names, call.args, strict=False)}
    template = next(n for n in ast.walk(helper) if isinstance(n, ast.JoinedStr))
    parts = []
    for value in template.values:
        if isinstance(value, ast.Constant):
            parts.append(str(value.value))
        else:
            inner = value.value if isinstance(value, ast.FormattedValue) else value
            parts.append(given.get(inner.id, GAP) if isinstance(inner, ast.Name) else GAP)
    return ["".join(parts)]


def python_messages(found: Found) -> None:
    trees = {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "pyext/python/wcodec").rglob("*.py"))
    }
    helpers: dict[tuple[str, str], ast.FunctionDef] = {}
    for place, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                helpers[place, node.name] = node
                if node.name in HELPERS and node.args.args[0].arg == "self":
                    helpers["", node.name] = node
    for place, tree in trees.items():
        _Reader(place, found, helpers).visit(tree)


# Rust


@dataclass(frozen=True)
class Token:
    kind: str  # word, text, mark
    text: str
    line: int


_TOKEN = re.compile(
    r"""
    (?P<skip>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<raw>b?r(?P<hash>\#*)".*?"(?P=hash))
  | (?P<text>b?"(?:\\.|[^"\\])*")
  | (?P<char>b?'(?:\\u\{[0-9a-fA-F]+\}|\\.|[^'\\])')
  | (?P<life>'\w+)
  | (?P<word>\w+)
  | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "'": "'", "0": "\0", "r": "\r"}


def _unescaped(literal: str) -> str:
    body = literal[literal.index('"') + 1 : -1]
    body = re.sub(r"\\\n\s*", "", body)
    body = re.sub(r"\\u\{([0-9a-fA-F]+)\}", lambda m: chr(int(m[1], 16)), body)
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), body)


def tokens(source: str) -> list[Token]:
    """Words, literals and marks, without comments and without what only tests see."""
    out: list[Token] = []
    line = 1
    for match in _TOKEN.finditer(source):
        kind, text = match.lastgroup or "", match[0]
        if match["raw"] is not None:
            out.append(Token("text", text[text.index('"') + 1 : text.rindex('"')], line))
        elif kind == "text":
            out.append(Token("text", _unescaped(text), line))
        elif kind in ("char", "life"):
            out.append(Token("mark", text, line))
        elif kind != "skip":
            out.append(Token(kind, text, line))
        line += text.count("\n")
    return _without_tests(out)


def _close(code: Sequence[Token], at: int) -> int:
    """The index of the bracket that closes the one at ``at``."""
    depth = 0
    for i in range(at, len(code)):
        if code[i].kind == "mark":
            depth += (code[i].text in "([{") - (code[i].text in ")]}")
            if depth == 0:
                return i
    raise AssertionError(f"line {code[at].line}: brackets do not match")


def _without_tests(code: list[Token]) -> list[Token]:
    out: list[Token] = []
    i = 0
    while i < len(code):
        if [t.text for t in code[i : i + 3]] == ["#", "[", "cfg"]:
            end = _close(code, i + 1)
            words = {t.text for t in code[i:end]}
            if "test" in words and "not" not in words:
                i = end + 1
                while code[i].text != "{" and code[i].text != ";":
                    i = _close(code, i) + 1 if code[i].text in ("(", "[") and code[i].kind == "mark" else i + 1
                i = _close(code, i) + 1 if code[i].text == "{" else i + 1
                continue
        out.append(code[i])
        i += 1
    return out


def _template(text: str) -> str:
    text = re.sub(r"(?<!\{)\{(?!\{)[^{}]*\}", GAP, text)
    return text.replace("{{", "{").replace("}}", "}")


def _arguments(code: Sequence[Token], opening: int) -> list[tuple[int, int]]:
    """The bounds of a call's arguments."""
    end, out, begin, i = _close(code, opening), [], opening + 1, opening + 1
    while i < end:
        mark = code[i].text if code[i].kind == "mark" else ""
        if mark and mark in "([{":
            i = _close(code, i)
        elif mark == ",":
            out.append((begin, i))
            begin = i + 1
        i += 1
    return out + ([(begin, end)] if begin < end else [])


class _Crate:
    """The files of one crate: helpers are looked up in all of them."""

    def __init__(self, folder: Path) -> None:
        paths = [p for p in sorted(folder.rglob("*.rs")) if p.name != "tests.rs" and "tests" not in p.parts[:-1]]
        self.files = {p.relative_to(ROOT).as_posix(): tokens(p.read_text(encoding="utf-8")) for p in paths}
        # Calls of helpers with something that is not written there.
        self.unread: list[tuple[str, str]] = []

    def calls(self, name: str, only: str | None = None) -> Iterator[tuple[str, list[Token], int]]:
        """The opening brackets of calls of a function or closure."""
        for place, code in self.files.items():
            if only in (None, place):
                for i in range(len(code) - 1):
                    if (code[i].text, code[i + 1].text) == (name, "(") and code[i].kind == "word":
                        if not i or code[i - 1].text != "fn":
                            yield place, code, i + 1

    def texts(self, place: str, code: list[Token], begin: int, end: int, depth: int = 0) -> list[str] | None:
        """Texts that the expression can be, or ``None`` if they are not found."""
        while begin < end and code[begin].text == "&":
            begin += 1
        if begin >= end or depth > 4:
            return None
        first = code[begin]
        if first.kind == "text":
            return [first.text]
        if first.text in ("format", "concat") and code[begin + 1].text == "!":
            spans = _arguments(code, begin + 2)
            if first.text == "concat":
                return ["".join((self.texts(place, code, *span, depth + 1) or [GAP])[0] for span in spans)]
            template = self.texts(place, code, *spans[0], depth + 1)
            return template and [_template(t) for t in template]
        if first.text in ("if", "match"):
            return self.branches(place, code, begin, end, depth)
        plain = [t.text for t in code[begin:end]]
        if first.kind == "word" and (
            len(plain) == 1
            or plain[1:]
            in (
                [".", "into", "(", ")"],
                [".", "to_owned", "(", ")"],
                [".", "to_string", "(", ")"],
                [".", "clone", "(", ")"],
            )
        ):
            return self.variable(place, code, begin, depth)
        return None

    def branches(self, place: str, code: list[Token], begin: int, end: int, depth: int) -> list[str] | None:
        """Texts that stand where ``if`` and ``match`` have a value."""
        out: list[str] = []
        for i in range(begin, end):
            before = code[i - 1].text
            arrow = before == ">" and code[i - 2].text == "="
            if (before == "{" or arrow) and (code[i].kind == "text" or code[i].text == "format"):
                found = self.texts(place, code, i, end, depth + 1)
                out += found or []
        return out or None

    def variable(self, place: str, code: list[Token], at: int, depth: int) -> list[str] | None:
        name = code[at].text
        for i in range(at - 1, 0, -1):
            if code[i].text != name or code[i].kind != "word":
                continue
            if code[i - 1].text == "let" and code[i + 1].text in ("=", ":"):
                begin = next(k for k in range(i, len(code)) if code[k].text == "=") + 1
                k = begin
                while code[k].text != ";":
                    k = _close(code, k) + 1 if code[k].kind == "mark" and code[k].text in "([{" else k + 1
                return self.texts(place, code, begin, k, depth + 1)
            if code[i - 1].text == "|" and code[i + 1].text in ("|", ":", ","):
                if code[i - 2].text == "=" and code[i - 4].text == "let":
                    return self.passed(code[i - 3].text, 0, place, depth)
                return None
            if code[i + 1].text == ":" and code[i - 1].text in ("(", ","):
                opening, level = i, 0
                while level >= 0:
                    opening -= 1
                    if code[opening].kind == "mark":
                        level += (code[opening].text in ")]") - (code[opening].text in "([")
                head = opening - 1
                if code[head].text == ">":
                    head = max(k for k in range(head) if code[k].text == "<") - 1
                if head > 0 and code[head - 1].text == "fn":
                    number = sum(a <= i for a, _ in _arguments(code, opening)) - 1
                    inherent = code[opening + 1].text in ("self", "&", "mut") and "self" in [
                        t.text for t in code[opening + 1 : opening + 4]
                    ]
                    return self.passed(code[head].text, number - inherent, None, depth)
        return None

    def passed(self, function: str, number: int, only: str | None, depth: int) -> list[str] | None:
        """Texts that callers give a helper."""
        out: list[str] = []
        for place, code, opening in self.calls(function, only):
            spans = _arguments(code, opening)
            if number < len(spans):
                found = self.texts(place, code, *spans[number], depth + 1)
                if found is None:
                    self.unread.append((place, f"{function}({_joined(code[slice(*spans[number])])})"))
                out += found or []
        return out or None


def _advised(code: Sequence[Token], closing: int) -> bool:
    """Whether ``.advice(…)`` follows the constructor."""
    i = closing + 1
    while i + 2 < len(code) and code[i].text == ".":
        if code[i + 1].text == "advice":
            return True
        if code[i + 2].text != "(":
            return False
        i = _close(code, i + 2) + 1
    return False


def _joined(code: Sequence[Token]) -> str:
    return "".join(f'"{t.text}"' if t.kind == "text" else t.text for t in code)


def _constructor(code: Sequence[Token], i: int) -> tuple[str, int, int] | None:
    """The class of the error that is made here, which argument is its message, and the opening bracket."""
    words = [t.text for t in code[i : i + 5]]
    if len(words) < 5 or words[1:3] != [":", ":"] or words[4] != "(":
        return None
    if words[0] == "Unusable" and words[3] == "new":
        return "DeviceError", 0, i + 4
    if words[:1] == ["Error"] and words[3] == "missing":
        return "FileError", 0, i + 4
    place = code[i - 3].text if i > 2 and code[i - 1].text == ":" else "crate"
    if words[0] != "Error" or place not in ("wcodec", "crate", "error"):
        return None
    if words[3] == "new":
        return "WcodecError", 1, i + 4
    return (RUST_KINDS[words[3]], 0, i + 4) if words[3] in RUST_KINDS else None


def rust_messages(found: Found) -> None:
    for folder in ("codec/src", "pyext/src", "tui/src"):
        crate = _Crate(ROOT / folder)
        for place, code in crate.files.items():
            for i in range(len(code)):
                made = _constructor(code, i)
                if made is None:
                    continue
                kind, number, opening = made
                closing = _close(code, opening)
                texts = crate.texts(place, code, *_arguments(code, opening)[number])
                if texts is None or any(core(t)[0] == GAP for t in texts):
                    found.open_ends.append((place, kind, _joined(code[i : closing + 1])))
                    continue
                for text in texts:
                    by_system = code[i + 3].text == "io"
                    short, advice = core(f"cannot {text}: {GAP}" if by_system else text)
                    # The operating system's errors get their advice by their number, and the driver's as an argument.
                    advice = advice or _advised(code, closing) or by_system or code[i].text == "Unusable"
                    advice = advice or place == LEGACY and kind != "InputError"
                    advice = advice or kind in OF_CONTAINER and CONTAINER.match(place) is not None
                    found.messages.append(Message(kind, short, f"{place}:{code[i].line}", advice))
            if folder == "tui/src":
                inspector_messages(crate, place, code, found)
            for name in REASONS.get(place, ()):
                begin = next(i for i in range(len(code)) if (code[i].text, code[i + 1].text) == ("fn", name))
                body = next(i for i in range(begin, len(code)) if code[i].text == "{")
                for i in range(body, _close(code, body)):
                    if [t.text for t in code[i : i + 3]] == ["Err", "(", "format"]:
                        for text in crate.texts(place, code, i + 2, _close(code, i + 1)) or []:
                            found.messages.append(Message("Reason", core(text)[0], f"{place}:{code[i].line}", True))
        found.open_ends += [(place, "", text) for place, text in crate.unread]


def inspector_messages(crate: _Crate, place: str, code: list[Token], found: Found) -> None:
    """The inspector's own, which are plain text: in ``Err(…)`` and its like, and made by closures for ``map_err``."""
    for i in range(4, len(code)):
        if code[i].kind != "text" and [t.text for t in code[i : i + 2]] != ["format", "!"]:
            continue
        back = [t.text for t in code[i - 12 : i]]
        # Closures for map_err are often made before.
        closure = back[-1] == "|" and not {"map_err", "gone", "wrong", "terminal"}.isdisjoint(back)
        call = back[-1] == "(" and (
            back[-2] in ("Err", "ok_or", "fail", "other") or back[-5:-1] == ["Report", ":", ":", "Error"]
        )
        if closure or call:
            for text in (t for t in crate.texts(place, code, i, len(code)) or [] if core(t)[0] != GAP):
                found.messages.append(Message("Inspector", core(text)[0], f"{place}:{code[i].line}", True))


@functools.cache
def found() -> Found:
    """Everything that is raised anywhere; open ends are those that nothing here explains."""
    out = Found()
    python_messages(out)
    rust_messages(out)
    for place, _, kind, text in ELSEWHERE:
        out.messages.append(Message(kind, *core(text)[:1], place, True))
    left = []
    for place, kind, code in out.open_ends:
        reason = PASSED_ON.get((place, code))
        if reason is None:
            left.append((place, kind, code))
            continue
        out.messages += [Message(kind, text, place, True) for text in reason[1]]
    out.open_ends = left
    out.messages = [m for m in out.messages if m.text not in NEVER]
    return out


if __name__ == "__main__":
    everything = found()
    for message in sorted(everything.messages, key=lambda m: (m.kind, m.where)):
        print(message.kind, message.text, message.where, "" if message.advice else "no advice", sep=" | ")
    for end in everything.open_ends:
        print("unexplained", *end, sep=" | ")
