"""HTML as text that cannot be mistaken: whatever is not markup already is escaped where it enters."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

from fedlap.regression.summary import number

VOID = {"meta", "br", "col"}  # elements that have no end
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a browser that obeys it loads nothing and runs nothing


class Markup(str):
    """Text that is HTML; all other text is escaped on its way into an element."""


def escaped(content: object) -> Markup:
    """A text as HTML that shows it."""
    return content if isinstance(content, Markup) else Markup(html.escape(str(content)))


def joined(parts: Iterable[object]) -> Markup:
    """Several contents, one after the other."""
    return Markup("".join(escaped(part) for part in parts))


def tag(name: str, /, *contents: object, **attributes: object) -> Markup:
    """An element. Attributes are written with _ for -, and `class_` for class; those that are None are left out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{said}>" if name in VOID else f"<{name}{said}>{joined(contents)}</{name}>")


def value(x: float, shown: str | None = None) -> Markup:
    """A number as people read it, with all its digits for a machine."""
    x = float(x)
    return tag("data", number(x) if shown is None else shown, value=repr(x)) if math.isfinite(x) else Markup("–")


def count(x: float) -> Markup:
    """A number of things; a fraction of one only where weights have made it."""
    return value(x, f"{x:,.0f}" if math.isfinite(x) and float(x).is_integer() else f"{x:,.2f}")


def paragraphs(sentences: Iterable[str]) -> Markup:
    """A paragraph each."""
    return joined(tag("p", sentence) for sentence in sentences)


def table(caption: str, columns: Sequence[object], rows: Iterable[Sequence[object]], kind: str | None = None) -> Markup:
    """A table: the first cell of a row is its heading. A wide one can be moved sideways on a screen."""
    head = tag("tr", *(tag("th", column, scope="col") for column in columns))
    body = [tag("tr", tag("th", row[0], scope="row"), *(_cell(each) for each in row[1:])) for row in rows]
    inner = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body), class_=kind)
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _cell(content: object) -> Markup:
    if isinstance(content, Markup) and content.startswith("<td"):
        return content
    return tag("td", content, class_=None if isinstance(content, Markup) else "text")


def facts(pairs: Mapping[str, object]) -> Markup:
    """Names and what they are, as a list."""
    return tag("dl", *(joined([tag("dt", name), tag("dd", each)]) for name, each in pairs.items()))


def section(name: str, title: str, *contents: object) -> Markup:
    """A part of the page that a link can lead to."""
    return tag("section", tag("h2", title, id=name), *contents, aria_labelledby=name)


def document(title: str, lead: str, sections: Mapping[str, object]) -> str:
    """A whole page that needs nothing beside it: a header with links to its sections, and these."""
    style = resources.files("fedlap.regression.report").joinpath("style.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    links = [tag("li", tag("a", text, href=f"#part-{place}")) for place, text in enumerate(sections, 1)]
    contents = tag("nav", tag("ol", *links), aria_label="Contents")
    header = tag("header", tag("h1", title), tag("p", lead, class_="lead"), contents)
    parts = [section(f"part-{place}", text, part) for place, (text, part) in enumerate(sections.items(), 1)]
    body = tag("body", header, tag("main", *parts))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"
