"""Settings as text: TOML and JSON become values here, of bounded size, depth and numbers, or an error in words.

What a file may hold is bounded before it is parsed: parsers recurse into brackets, and take time that grows with the
square of a dotted key's length.
"""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from fedlap.errors import ConfigError

MOST_BYTES = 2**22  # of a TOML file: 10,000 columns with their categories
MOST_JSON_BYTES = 2**26  # a model's card has its covariance in it
DEEPEST = 32  # brackets within brackets, or names of a dotted key; nothing of fedlap's has ten
LONGEST = 10_000  # characters of a text
LARGEST_WHOLE = 2**63 - 1  # TOML promises no more, and so do other programs that read the same file

# Texts and comments of TOML, each to its end or to that of its line or file: what is left of a file is its structure.
QUOTED = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"""|\Z)|'
    r"'''.*?(?:'''|\Z)|"
    r'"(?:[^"\\\n]|\\.)*(?:"|$)|'
    r"'[^'\n]*(?:'|$)|"
    r"#[^\n]*",
    re.DOTALL | re.MULTILINE,
)
NAME = r'[\w"-]++'
DOTTED = re.compile(rf'(?<![\w"-]){NAME}(?:[ \t]*+\.[ \t]*+{NAME}){{{DEEPEST}}}')
HALVES = re.compile("[\ud800-\udfff]")
BRACKETS = re.compile(r"[\[\]{}]")


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file; some editors begin one with a mark. ConfigError whatever is wrong with it."""
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise ConfigError(f"{path}: {size:,} bytes; expected a settings file of at most {MOST_BYTES:,}")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a TOML file ({error})") from error
    return parse_toml(text, path)


def parse_toml(text: str, source: object) -> dict[str, Any]:
    """The values of a text in TOML; ConfigError begins with the source."""
    try:
        _check_structure(text)
        values = tomllib.loads(text)
        check_values(values)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not a TOML file ({error})") from error
    except ValueError as error:
        raise ConfigError(f"{source}: {_limit(error)}") from error
    return values


def read_json(path: Path) -> Any:
    """The values of a JSON file; OSError if it cannot be read, ValueError whatever is wrong with it."""
    with open(path, "rb") as file:
        content = file.read(MOST_JSON_BYTES + 1)
    if len(content) > MOST_JSON_BYTES:
        raise ValueError(f"it is larger than {MOST_JSON_BYTES:,} bytes")
    try:
        values = json.loads(content.decode())
    except RecursionError:
        raise ValueError(f"brackets within brackets; expected at most {DEEPEST}") from None
    except ValueError as error:
        raise ValueError(_limit(error)) from error
    check_values(values)
    return values


def check_values(values: Any) -> None:
    """ValueError unless all numbers, texts and tables within tables are of a size that settings have."""
    waiting: list[tuple[Any, int, str]] = [([values], 0, "the file")]
    while waiting:
        outer, depth, where = waiting.pop()
        if depth > DEEPEST + 1:
            raise ValueError(f"{where}: tables within tables; expected at most {DEEPEST}")
        pairs = outer.items() if isinstance(outer, dict) else ((where, inner) for inner in outer)
        for key, value in pairs:
            _check_value(key, where)
            if isinstance(value, (dict, list)):
                waiting.append((value, depth + 1, key[:60]))
            else:
                _check_value(value, key[:60])


def _check_value(value: Any, where: str) -> None:
    if isinstance(value, str):
        if len(value) > LONGEST:
            raise ValueError(f"{where}: a text of {len(value):,} characters; expected at most {LONGEST:,}")
        if not value.isascii() and HALVES.search(value):
            raise ValueError(f"{where}: a text with half a character in it; expected UTF-8")
    elif type(value) is int and abs(value) > LARGEST_WHOLE:
        raise ValueError(f"{where}: a whole number of {_digits(value)}; expected at most {LARGEST_WHOLE:,}")


def _limit(error: ValueError) -> str:
    """What an error says; in our words where a number has more digits than Python reads."""
    digits = sys.get_int_max_str_digits()
    return f"a whole number of more than {digits} digits" if "int_max_str_digits" in str(error) else str(error)


def _digits(number: int) -> str:
    """How long a whole number is; Python does not write out the longest ones."""
    return f"about {int(number.bit_length() * 0.30103) + 1} digits"


def _check_structure(text: str) -> None:
    """ValueError where brackets or the names of a dotted key go deeper than a parser should be sent."""
    bare = QUOTED.sub('""', text)
    if found := DOTTED.search(bare):
        raise ValueError(f"{found[0][:40]}…: a key of more than {DEEPEST} names; expected fewer dots")
    depth = 0
    for bracket in BRACKETS.finditer(bare):
        depth = depth + 1 if bracket[0] in "[{" else max(depth - 1, 0)
        if depth > DEEPEST:
            line = bare.count("\n", 0, bracket.start()) + 1
            raise ValueError(f"line {line}: brackets within brackets; expected at most {DEEPEST}")
