r"""Normalizes mathematical notation to one form of LaTeX, without evaluating it.

``normalize_latex`` takes LaTeX with or without delimiters, Unicode and plain notations ("2*sqrt(3)", "3 1/2", "1.5e3")
and returns LaTeX that a grammar can parse completely: ``2\cdot\sqrt{3}``, ``\frac{7}{2}``, ``1.5\times 10^{3}``.
Unknown notation is kept, so that the grammar raises an error instead of parsing a part.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator

MAX_CHARS = 2_000

_SUPERSCRIPT = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b\u207f", "0123456789-n")
_SYMBOLS = {
    "\u2212": "-", "\u2013": "-", "\u2014": "-", "\uff0d": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ",
    "\u22c5": r"\cdot ", "\u00f7": "/", "\u221e": r"\infty ", "\u2264": r"\le ", "\u2a7d": r"\le ", "\u2265": r"\ge ",
    "\u2a7e": r"\ge ", "\u2260": r"\neq ", "\u00b1": r"\pm ", "\u222a": r"\cup ", "\u2229": r"\cap ",
    "\u2208": r"\in ", "\u2205": r"\emptyset ", "\u2248": r"\approx ", "\u03c0": r"\pi ", "\u211d": r"\mathbb{R}",
    "\u2124": r"\mathbb{Z}", "\u2044": "/", "\u00b0": r"^{\circ}", "\u2032": "'", "\u2019": "'", "\u00a0": " ",
    "\u2026": r"\ldots ", "\u27e8": r"\langle ", "\u27e9": r"\rangle ", "\u2219": r"\cdot ", "\u2217": "*",
}  # fmt: skip
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp"
_GREEK = "alpha|beta|gamma|delta|epsilon|theta|lambda|mu|phi|omega|sigma|rho|tau"
_SPACES = re.compile(
    r"(?<!\\)\\(?:[,;:! ]|quad(?![A-Za-z])|qquad(?![A-Za-z])|thinspace(?![A-Za-z]))|~"
    r"|\\(?:hspace|phantom|vspace)\*?\{[^{}]*\}"
)
_THOUSANDS = re.compile(
    r"(?<![\d.,])\d{1,3}(?:(?P<part>\{,\}|,\\!|\\,|\\!|\\:|\\;|\\ |~|,| )(?:\\!)?\d{3})"
    r"(?:(?P=part)(?:\\!)?\d{3})*(?![\d]|,\d)"
)
_BRACED = re.compile(r"(?<![\d.])\d{1,3}(?:(?:\{,\}|,\\!|\\,|\\!|~)(?:\\!)?\d{3})+(?!\d)")
_FENCES = ((r"\[", r"\]"), (r"\(", r"\)"), ("$$", "$$"), ("$", "$"), ("**", "**"), ("`", "`"))
_STYLES = re.compile(r"\\(?:mathbf|mathit|mathsf|mathcal|boldsymbol|bm|pmb|underline|mathbin|mathop|ensuremath)\s*\{")
_TEXTS = re.compile(r"\\(?:text(?:bf|it|rm|normal|sf|tt)?|mathrm|mbox|hbox|operatorname\*?|rm)\s*\{")
_DIGITS = r"(?:\d+(?:\.\d*)?|\.\d+)"


def normalize_latex(text: str) -> str:
    """The text in one form of LaTeX; empty if it is longer than ``MAX_CHARS``."""
    if len(text) > MAX_CHARS or re.fullmatch(r"\s*0[xX][0-9A-Fa-f]+\s*", text):
        return ""
    text = _unicode(strip_delimiters(text))
    for step in (_spaced, _commands, _plain_notation, _decimals, _arguments, _mixed):
        text = step(text)
    return re.sub(r"\s+", " ", text).strip()


def strip_delimiters(text: str) -> str:
    """Remove math delimiters, boxes, emphasis and a final period around the complete text."""
    before = None
    while before != text:
        before, text = text, _without_stop(text.strip())
        for opening, closing in _FENCES:
            inner = text[len(opening) : len(text) - len(closing)]
            fenced = text.startswith(opening) and text.endswith(closing) and len(text) > len(opening + closing)
            if fenced and opening not in inner:
                text = inner
        text = _unboxed(text)
    if text.count("$") - text.count(r"\$") >= 2 and (text.count("$") - text.count(r"\$")) % 2 == 0:
        text = re.sub(r"(?<!\\)\$", " ", text)
    return text


def _without_stop(text: str) -> str:
    if text.endswith(("...", r"\,", r"\;", r"\:")):
        return text
    return text.rstrip(".,;:").rstrip()


def _unboxed(text: str) -> str:
    for command in (r"\boxed", r"\fbox", r"\text", r"\displaystyle", ""):
        if text.startswith(command + "{") and closing_brace(text, len(command)) == len(text) - 1:
            inner = text[len(command) + 1 : -1]
            if command != r"\text" or not re.search(r"[A-Za-z]{2}", inner):
                return inner
    return text


def closing_brace(text: str, at: int) -> int:
    """Position of the brace that closes the one at ``at``; -1 if there is none."""
    depth = 0
    for mark in re.finditer(r"\\[\s\S]|[{}]", text[at:]):
        depth += {"{": 1, "}": -1}.get(mark[0], 0)
        if depth == 0 and mark[0] == "}":
            return at + mark.start()
    return -1


_OPENS = r"\\begin\{[a-z]+\*?\}|\\\{|\\langle|\\lfloor|\\lceil|[(\[{]"
_CLOSES = r"\\end\{[a-z]+\*?\}|\\\}|\\rangle|\\rfloor|\\rceil|[)\]}]"


def split_top_level(text: str, separators: str) -> list[str]:
    """Split a text at a pattern outside brackets, braces and environments."""
    depth, start, parts = 0, 0, []
    for mark in re.finditer(rf"(?P<open>{_OPENS})|(?P<close>{_CLOSES})|(?P<separator>{separators})", text):
        if mark["separator"] is None:
            depth += 1 if mark["open"] else -1
        elif depth == 0:
            parts.append(text[start : mark.start()].strip())
            start = mark.end()
    return [*parts, text[start:].strip()]


def _unicode(text: str) -> str:
    raised = "[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b\u207f]+"
    text = re.sub(raised, lambda m: "^{" + m[0].translate(_SUPERSCRIPT) + "}", text)
    text = re.sub(r"\u221a\s*(?:\(([^()]*)\)|(\d+|\w))", lambda m: rf"\sqrt{{{m[1] or m[2]}}}", text)
    text = re.sub("[\u00bc-\u00be\u2150-\u215e]", _vulgar, text)
    text = "".join(_SYMBOLS.get(char, char) for char in text)
    return unicodedata.normalize("NFKC", text)


def _vulgar(match: re.Match[str]) -> str:
    above, below = unicodedata.normalize("NFKC", match[0]).split("\u2044")
    return rf" {above}/{below}" if match.start() and match.string[match.start() - 1].isdigit() else f"{above}/{below}"


def _spaced(text: str) -> str:
    """Join thousands, replace spacing commands by spaces, remove sizes and styles."""
    text = text.replace("\n", " ")
    text = re.sub(r"\\(?:lbrace|\{)", r"\\{", re.sub(r"\\(?:rbrace|\})", r"\\}", text))
    text = _BRACED.sub(lambda m: re.sub(r"[^\d]", "", m[0]), text)
    text = re.sub(r"\{,\}", ",", text)
    if not re.search(r"[(\[{]", re.sub(r"(?:frac|sqrt|text\w*|math\w+|boxed|\^|_)\s*\{", "", text)):
        text = _THOUSANDS.sub(lambda m: re.sub(r"[^\d]", "", m[0]), text)
    text = re.sub(r"\\(left|right|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.(?!\d)", "", text)
    text = re.sub(r"\\(?:displaystyle|textstyle|limits|nolimits|left|right|[bB]igg?[lrm]?)(?![A-Za-z])", "", text)
    return _SPACES.sub(" ", text)


_NAMES = tuple(
    (re.compile(rf"\\(?:{names})(?![A-Za-z])"), name)
    for names, name in (
        ("[dtc]frac", r"\\frac"), ("leqslant|leq", r"\\le"), ("geqslant|geq", r"\\ge"), (r"ne|not\s*=", r"\\neq"),
        ("lt", "<"), ("gt", ">"), ("varnothing|O", r"\\emptyset"), ("lvert|rvert|vert|mid", "|"), ("div", "/"),
        ("dots|cdots|ldots", r"\\ldots "), ("ast", "*"),
        ("lg", r"\\log_{10} "),
        (r"mathbb\s*R|R|reals|Reals", r"\\mathbb{R}"),
    )
)  # fmt: skip
_DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])")


def _commands(text: str) -> str:
    """Replace synonymous commands by one name."""
    for command, name in _NAMES:
        text = command.sub(name, text)
    text = re.sub(r"(?<!\.)\.\.\.(?!\.)", r"\\ldots ", text)
    text = re.sub(r"\\overline\s*\{\s*([A-Z]{1,4})\s*\}", r"\1", text)
    text = _DEGREES.sub(r"^{\\circ}", text)
    text = _replaced(text, _STYLES, _styled)
    return _replaced(text, _TEXTS, _text_command).replace(r"\%", "%")


def _styled(inner: str) -> str:
    return inner if len(inner) < 2 or inner.isdigit() or "\\" in inner else rf"\text{{{inner}}}"


def _text_command(inner: str) -> str:
    plain = inner.strip()
    if re.fullmatch(_FUNCTIONS, plain):
        return rf"\{plain} "
    if plain in ("i", "e", "d"):
        return plain
    return inner if not re.search(r"[^\W\d_]", plain) else rf"\text{{{plain}}}"


def _replaced(text: str, command: re.Pattern[str], replace: Callable[[str], str]) -> str:
    """Replace every command with its braces by ``replace(content)``."""
    parts, at = [], 0
    for match in command.finditer(text):
        end = closing_brace(text, match.end() - 1)
        if match.start() < at or end < 0:
            continue
        parts += [text[at : match.start()], replace(text[match.end() : end])]
        at = end + 1
    return "".join(parts) + text[at:]


def _plain_notation(text: str) -> str:
    """Convert plain-text notation outside ``\\text``."""
    return "".join(part if part.startswith(r"\text{") else _plain_part(part) for part in _parts_around_texts(text))


def _parts_around_texts(text: str) -> Iterator[str]:
    at = 0
    for match in re.finditer(r"\\text\{[^{}]*\}", text):
        yield text[at : match.start()]
        yield match[0]
        at = match.end()
    yield text[at:]


def _plain_part(text: str) -> str:
    text = text.replace("**", "^").replace("<=", r"\le ").replace(">=", r"\ge ").replace("!=", r"\neq ")
    text = re.sub(r"(?<!\\)\bsqrt\b\s*", r"\\sqrt", text)
    text = re.sub(r"(?<![\\A-Za-z])(?:infinity|infty|inf|oo)(?![A-Za-z])", r"\\infty ", text)
    text = re.sub(rf"(?<![\\A-Za-z])(pi|{_GREEK})(?![A-Za-z])", r"\\\1 ", text)
    text = re.sub(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])", r"\\\1 ", text)
    text = re.sub(r"(?<=[)\]])\s*(?:U|u|union)\s*(?=[(\[])", r"\\cup ", text)
    text = re.sub(r"(?<=\d)\s*[xX]\s*(?=\d)", r"\\times ", text)
    text = re.sub(rf"(?<![\w.\\])({_DIGITS})[eE]([-+]?\d+)(?!\w)", lambda m: rf"{m[1]}\times 10^{{{int(m[2])}}}", text)
    text = re.sub(r"(?<!\\)\bmod\b", r"\\bmod", text)
    return re.sub(r"([A-Za-z])('+)", lambda m: m[1] + "_{" + "prime" * len(m[2]) + "}", text.replace("*", r"\cdot "))


def _decimals(text: str) -> str:
    """Convert repeating decimals to fractions; complete other decimals to digits on both sides of the point."""
    text = re.sub(r"(\d*)\.(\d*)\s*\\(?:overline|bar|dot)\s*\{?\s*(\d+)\s*\}?", _repeating, text)
    text = re.sub(r"(\d*)\.(\d+)\s*\\ldots\s*", _unending, text)
    text = re.sub(r"(?<![\d.])\.(?=\d)", "0.", text)
    return re.sub(r"(?<=\d)\.(?!\d)", "", text)


def _repeating(match: re.Match[str]) -> str:
    return _repeating_fraction(match[1] or "0", match[2], match[3])


def _repeating_fraction(integer_part: str, head: str, tail: str) -> str:
    below = 10 ** len(head) * (10 ** len(tail) - 1)
    return rf"\frac{{{int(integer_part + head + tail) - int(integer_part + head)}}}{{{below}}}"


def _unending(match: re.Match[str]) -> str:
    """Convert 0.333... to a third: the shortest ending that repeats at least twice, with at least three digits."""
    digits = match[2]
    for size in range(1, len(digits) // 2 + 1):
        tail, repeats = digits[-size:], max(2, -(-3 // size))
        if digits.endswith(tail * repeats):
            head = digits
            while head.endswith(tail):
                head = head[:-size]
            return _repeating_fraction(match[1] or "0", head, tail)
    return rf"{match[1] or 0}.{digits}"


def _arguments(text: str) -> str:
    """Add braces around the arguments of fractions, roots and powers: ``\\frac12``, ``\\sqrt2``, ``10^-3``,
    ``2^(n+1)``.
    """
    text = re.sub(r"\\sqrt\s*\(((?:[^()]|\([^()]*\))*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\sqrt\s*(\[[^\[\]]*\])?\s*(\d|[A-Za-z]|\\[A-Za-z]+)", r"\\sqrt\1{\2}", text)
    text = re.sub(r"\\frac\s*([^\s{\\])\s*([^\s{\\])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac\s*([^\s{\\])\s*(?=\{)", r"\\frac{\1}", text)
    text = re.sub(r"(\\frac\s*\{[^{}]*\})\s*([^\s{\\])", r"\1{\2}", text)
    text = re.sub(r"(\\frac\s*\{[^{}]*\})\s*(\\[A-Za-z]+)", r"\1{\2}", text)
    text = re.sub(r"_\s*(\d)(?=\s*[\d\\])", r"_{\1}", text)
    text = re.sub(r"\^\s*([-+]?\d+|-[A-Za-z])(?![}])", r"^{\1}", text)
    return re.sub(r"\^\s*\(((?:[^()]|\([^()]*\))*)\)", r"^{\1}", text)


def _mixed(text: str) -> str:
    r"""Convert mixed numbers to fractions; an integer before an improper fraction multiplies it."""
    number = r"(?<![\w.}^_])(\d+)"
    text = re.sub(rf"{number}\s*\\frac\s*\{{\s*(\d+)\s*\}}\s*\{{\s*(\d+)\s*\}}", _mixed_fraction, text)
    return re.sub(rf"{number}\s+(\d+)\s*/\s*(\d+)(?![\d.])", _mixed_fraction, text)


def _mixed_fraction(match: re.Match[str]) -> str:
    integer, above, below = int(match[1]), int(match[2]), int(match[3])
    if above >= below:
        return rf"{integer}\cdot\frac{{{above}}}{{{below}}}"
    return rf"\frac{{{integer * below + above}}}{{{below}}}"
