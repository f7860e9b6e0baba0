"""Files that are damaged on purpose: sound ones of every kind that a user hands to fedlap, and what is done to them.

The n-th file of a seed is the same wherever the sound files are: what was found bad can be made again.
"""

import io
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# Text: a value, a key or a piece is replaced by one that is hostile to a reader ---------------------------------------

TOKEN = re.compile(r'-?\d[\w.+-]*|"[^"\n]*"|\btrue\b|\bfalse\b|\bnull\b|\[[^\[\]\n]*\]|\{[^{}\n]*\}')
NUMBERS = (
    *("0", "-1", "1e400", "-1e308", "1e-400", "0.1", "nan", "inf", "-inf", "1_000", "2_000_000_000", "007", "0x7f"),
    *(
        "9" * 19,
        "9" * 25,
        "9" * 400,
        "9" * 5000,
        "-" + "9" * 5000,
        "0x" + "f" * 5000,
        "0b" + "1" * 9999,
        "1e" + "9" * 999,
    ),
    *("1000000000000", "1000000000000000", str(2**31), str(2**32), str(2**63), str(2**64), "1.0000000000000000001e1"),
)
TEXTS = (
    *(
        '""',
        '" "',
        '"\\u0000"',
        '"\\ud800"',
        '"none"',
        '"é"',
        '"a\\nb"',
        f'"{"x" * 300_000}"',
        '"../../etc"',
        '"\u202e"',
    ),
    *('"1"', '"nan"', '"[]"', '"~"', '"a ~ b"', '"(a + b + c + d + e) ** 99"', '"I(9**9**9**9)"', f'"{"(" * 900}"'),
    *('"y ~ ' + " * ".join("abcdefghijklmnopqrstuvw") + '"', f'"y ~ {"-" * 5000}x"', f'"y ~ {"a." * 5000}b"'),
)
PLAIN = (  # what might stand there, and goes deeper
    *("1", "2", "0.5", "3.0", "true", "1e6", "100", '"a"', '"north"', '"age"', '"sex"', '"full"', '"fedlap_cov"'),
    *('["a", "b"]', '["north", "south", "west"]', "[3, 4]", '"logistic"', '"number"', '"category"', '"mean"', '"pvi"'),
    *('"dose ~ age << 2"', '"dose ~ I(age @ 2)"', '"dose ~ np.log(age - 90)"', '"dose ~ bs(age, df=4) * sex"'),
    *('"dose ~ C(sex, contr.poly)"', '"dose ~ 0 + sex:age"', '"~ age"', '"poisson"', '"multinomial"', '"binomial"'),
    *('"dose ~ poly(age, 3)"', '"dose ~ np.where(age > 50, 1e300, sex)"', '"log(dose) ~ age"', '"dose ~ 1 / age"'),
)
STRUCTURES = (
    *("[]", "[[]]", "{}", "[{}]", "[1, [2, [3]]]", "[" * 5000, "[" * 500 + "]" * 500, "[" * 20_000 + "]" * 20_000),
    *("null", "true", "1979-05-27T07:32:00Z", "1979-05-27", "07:32:00", "[" + "0," * 50_000 + "0]", '["a", "a"]'),
    *(
        "{a.b.c.d = 1}",
        "{" + "a." * 20_000 + "b = 1}",
        "{a={" * 400 + "}}" * 400,
        '{"a":' * 5000,
        '{"a":' * 90 + "1" + "}" * 90,
    ),
    '["' + '","'.join(map(str, range(30_000))) + '"]',
)
LINES = (
    *(
        "[columns]",
        "[[columns]]",
        "[a.b.c]",
        "[" + ".".join("a" * 5000) + "]",
        ".".join("a" * 100_000) + " = 1",
        "=",
        "[",
        "]",
    ),
    *(
        "\x00",
        "\ufeff",
        "a = 1",
        "[study]",
        "study = 3",
        "columns = [1]",
        'columns = [["a", {}]]',
        "\r",
        "# " + "x" * 99_999,
    ),
    "\n".join(f"k{place}.a.b = 1" for place in range(2000)),
)


def hostile_text(rng: random.Random, text: str) -> str:
    """One change to a text of values."""
    places = list(TOKEN.finditer(text))
    lines = text.split("\n")
    way = rng.randrange(8)
    if way < 4 and places:
        place = rng.choice(places)
        value = rng.choice(rng.choice((NUMBERS, TEXTS, STRUCTURES, PLAIN, PLAIN)))
        return text[: place.start()] + value + text[place.end() :]
    if way == 4 and len(places) > 1:
        place, other = rng.choice(places), rng.choice(places)
        return text[: place.start()] + other[0] + text[place.end() :]
    at = rng.randrange(len(lines))
    if way == 5:
        return "\n".join([*lines[:at], rng.choice(LINES), *lines[at:]])
    if way == 6:
        return "\n".join([*lines[:at], *lines[at + 1 :]])
    return "\n".join([*lines[:at], lines[at], lines[rng.randrange(len(lines))], *lines[at + 1 :]])


def hostile_cells(rng: random.Random, text: str) -> str:
    """One change to a table of commas."""
    rows = [line.split(",") for line in text.split("\n")]
    row = rng.randrange(len(rows))
    cell = rng.randrange(len(rows[row]))
    cells = (
        *NUMBERS,
        *(text.strip('"') for text in TEXTS),
        '"',
        '""',
        "'",
        "\x00",
        "\r",
        "\ufeff",
        "1;2",
        "NA",
        "٣",
        ",",
        "\n",
    )
    way = rng.randrange(5)
    if way < 3:
        rows[row][cell] = rng.choice(cells)
    elif way == 3:
        rows[row] = rows[row] * rng.choice((0, 2, 2000))
    else:
        rows[row], rows[-1 - row] = rows[-1 - row], rows[row]
    return "\n".join(",".join(cells) for cells in rows)


# Bytes ----------------------------------------------------------------------------------------------------------------


def hostile_bytes(rng: random.Random, content: bytes) -> bytes:
    """One change to any file."""
    at, to = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    to = min(to, at + rng.choice((1, 4, 64, 4096)))
    way = rng.randrange(7)
    if way == 0:
        return content[:at]
    if way == 1:
        return content[:at] + content[to:]
    if way == 2:
        return content[:to] + content[at:]
    if way == 3:
        return content[:at] + rng.randbytes(to - at) + content[to:]
    if way == 4:
        return (
            content[:at]
            + rng.choice((b"\x00", b"\xff", b"\x80", b"\n", b"\xed\xa0\x80", b"\xff" * 8, b"\x7f"))
            + content[to:]
        )
    if way == 5:
        return (
            content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
            if at < len(content)
            else b""
        )
    return content + content[at:to]


def changed(rng: random.Random, content: bytes, text: Callable[[random.Random, str], str] | None) -> bytes:
    """A file with one to three changes, of its text or of its bytes."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        if text is not None and rng.random() < 0.75:
            content = text(rng, content.decode(errors="replace")).encode(errors="surrogatepass")
        else:
            content = hostile_bytes(rng, content or b"\n")
    return content


# Formats with an inner structure --------------------------------------------------------------------------------------


def hostile_parquet(rng: random.Random, content: bytes) -> bytes:
    """A Parquet file in which some columns have odd types and values, or whose bytes are changed."""
    import pyarrow
    from pyarrow import parquet

    if rng.random() < 0.4:
        return changed(rng, content, None)
    table = parquet.read_table(io.BytesIO(content))
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(table.num_columns)
        odd = rng.choice(_odd_columns(pyarrow, table.num_rows, rng))
        names = (table.column_names[place], "patient_id", "", "a.b", "age", "x" * 70_000)
        field = pyarrow.field(rng.choice(names), odd.type)
        table = table.set_column(place, field, odd) if rng.random() < 0.7 else table.append_column(field, odd)
    out = io.BytesIO()
    rows, compression = rng.choice((1, 7, 1000)), rng.choice(("snappy", "zstd", "none"))
    try:
        parquet.write_table(table, out, row_group_size=rows, compression=compression)
    except pyarrow.ArrowException:  # some odd values are too odd to be written
        return changed(rng, content, None)
    return out.getvalue() if rng.random() < 0.8 else changed(rng, out.getvalue(), None)


def _odd_columns(pyarrow, rows, rng):
    def of(kind, *values):
        return pyarrow.array([rng.choice(values) for _ in range(rows)], kind)

    def raw(kind, *values):
        return of(pyarrow.int64(), *values).view(kind)

    far = (0, None, 2 ** rng.choice((40, 50, 62)), -(2 ** rng.choice((40, 50, 62))), 1, 999)
    text = of(pyarrow.binary(), b"\xff\xfe", b"male", b"\xed\xa0\x80", None)
    return [
        *(
            raw(pyarrow.timestamp(unit, zone), *far)
            for unit in ("s", "ms", "us", "ns")
            for zone in (None, "UTC", "Mars/Base")
        ),
        *(
            raw(kind, *far)
            for kind in (pyarrow.date64(), pyarrow.time64("ns"), pyarrow.duration("ns"), pyarrow.duration("s"))
        ),
        of(pyarrow.int32(), 0, 2**31 - 1, -(2**31)).view(pyarrow.date32()),
        pyarrow.StringArray.from_buffers(rows, text.buffers()[1], text.buffers()[2], text.buffers()[0]),
        text,
        of(pyarrow.decimal128(38, 0), 10**37, None, 1),
        of(pyarrow.decimal256(76, 2), 10**60, None),
        of(pyarrow.uint64(), 2**64 - 1, 0),
        of(pyarrow.float64(), float("nan"), float("inf"), 1e308, -0.0, None),
        of(pyarrow.float16(), 1.0, None),
        of(pyarrow.bool_(), True, False, None),
        pyarrow.nulls(rows),
        of(pyarrow.list_(pyarrow.int64()), [1, 2], [], None),
        of(pyarrow.struct([("a", pyarrow.timestamp("ns"))]), {"a": 1}, None),
        of(pyarrow.map_(pyarrow.string(), pyarrow.int64()), [("a", 1)], None),
        of(pyarrow.string(), "x" * 200_000, "male", "", None, "\u0000", "50", " 7 "),
        of(pyarrow.string(), "male", "female", None).dictionary_encode(),
        pyarrow.array([b"12345678"] * rows, pyarrow.binary(8)),
    ]


def hostile_safetensors(rng: random.Random, content: bytes) -> bytes:
    """A file of arrays whose header is changed as text, the rest as bytes."""
    size = int.from_bytes(content[:8], "little")
    header, arrays = content[8 : 8 + size], content[8 + size :]
    if rng.random() < 0.6:
        header = hostile_text(rng, header.decode()).encode(errors="surrogatepass")
    elif rng.random() < 0.5:
        other = {
            "F32": rng.choice(("F64", "BF16", "F8_E5M2", "I64", "BOOL", "X")),
            "weights": rng.choice(("precision", "w")),
        }
        for old, new in other.items():
            header = header.replace(old.encode(), new.encode())
    else:
        arrays = hostile_bytes(rng, arrays)
    announced = rng.choice((len(header),) * 4 + (0, 2**40, 2**63))
    return announced.to_bytes(8, "little") + header + arrays


def hostile_card(rng: random.Random, content: bytes) -> bytes:
    """A card with other values in it, still JSON, or with a changed text."""
    if rng.random() < 0.4:
        return changed(rng, content, hostile_text)
    card = json.loads(content)
    for _ in range(rng.choice((1, 1, 2))):
        _replace_one(rng, card)
    return json.dumps(card).encode()


def _replace_one(rng, value):
    """Put another value somewhere into a tree of lists and tables."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(value[key], (dict, list)) and rng.random() < 0.8:
            value = value[key]
            continue
        if isinstance(value, dict) and rng.random() < 0.2:
            del value[key]
        else:
            deep = []
            for _ in range(rng.choice((1, 50, 900))):
                deep = [deep]
            odd = (
                0,
                -1,
                1,
                10**12,
                10**400,
                1e300,
                float("nan"),
                float("inf"),
                "",
                "x",
                "\ud800",
                "x" * 99_999,
                None,
                True,
            )
            value[key] = rng.choice((*odd, [], {}, [[]], {"a": 1}, deep, [1, 2], "C(x)", ["a", {}], [["a", {}]]))
        return


# Kinds ----------------------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """Files of one kind: the name of the sound one, how it is damaged, and how often, beside the others."""

    sound: str
    damage: Callable[[random.Random, bytes], bytes]
    share: int


def _text(rng, content):
    return changed(rng, content, hostile_text)


def _cells(rng, content):
    return changed(rng, content, hostile_cells)


def _bytes(rng, content):
    return changed(rng, content, None)


KINDS = {
    "csv": Kind("north.csv", _cells, 5),
    "parquet": Kind("north.parquet", hostile_parquet, 5),
    "study": Kind("study.toml", _text, 5),
    "regression": Kind("regression.toml", _text, 4),
    "spec": Kind("spec.toml", _text, 4),
    "settings": Kind("settings.toml", _text, 1),
    "policy": Kind("policy.toml", _text, 2),
    "safetensors": Kind("model.safetensors", hostile_safetensors, 3),
    "card": Kind("card.json", hostile_card, 4),
    "regression_card": Kind("regression.json", hostile_card, 4),
    "audit": Kind("audit.jsonl", _text, 2),
    "state": Kind("state.npz", _bytes, 2),
    "message": Kind("message.bin", _bytes, 2),
    "certificate": Kind("server.pem", _bytes, 1),
    "key": Kind("server.key", _bytes, 1),
}


def damaged(samples: Path, seed: int, number: int) -> tuple[str, bytes]:
    """The kind and the content of the file of this number."""
    rng = random.Random(f"{seed}/{number}")
    kinds = list(KINDS)
    kind = rng.choices(kinds, [KINDS[name].share for name in kinds])[0]
    return kind, KINDS[kind].damage(rng, (samples / KINDS[kind].sound).read_bytes())
