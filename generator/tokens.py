"""The tokens of CUDA text: what a compiler sees of it, whatever its comments and layout."""

from __future__ import annotations

import hashlib
import re

_LITERAL = (
    r'(?:u8|[uUL])?R"([^ ()\\\t\v\f\n]{0,16})\((?s:.*?)\)\1"'  # raw string
    r'|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"'
    r"|(?:u8|[uUL])?'(?:\\.|[^'\\\n])+'"
)
_NUMBER = r"\.?\d(?:[eEpP][+-]|'\w|[\w.])*"
_COMMENT = re.compile(rf"//[^\n]*|/\*(?s:.*?)\*/|\b{_NUMBER}|{_LITERAL}")
_TOKEN = re.compile(
    rf"(?m:^[ \t]*\#[^\n]*)|{_NUMBER}|{_LITERAL}|\w+|<<=|>>=|<=>|->\*|\.\.\.|::|\+\+|--|->|<<|>>|&&|\|\||\#\#"
    r"|[-+*/%&|^<>=!]=|\S"
)
_BLANKS = re.compile(r'("(?:\\.|[^"\\])*")|[ \t]+')


def tokens(text: str) -> list[str]:
    """The tokens of CUDA text, in order; a preprocessor line is one token, since its end has a meaning."""
    spliced = text.replace("\\\n", "")
    bare = _COMMENT.sub(lambda found: " " if found[0][:2] in ("//", "/*") else found[0], spliced)
    return [_folded(found[0]) for found in _TOKEN.finditer(bare)]


def token_digest(text: str) -> str:
    """SHA-256 of the tokens: equal for texts that differ only in comments, blanks and line breaks."""
    return hashlib.sha256("\n".join(tokens(text)).encode()).hexdigest()


def _folded(token: str) -> str:
    """A preprocessor line with single blanks; any other token as it is."""
    line = token.lstrip()
    if not line.startswith("#"):
        return token
    return "#" + _BLANKS.sub(lambda found: found[1] or " ", line[1:]).strip()
