"""HTML pages, read for tests: whether they are well formed, and what stands in their tables."""

from html.parser import HTMLParser

VOID = {"meta", "br", "col"}


class Page(HTMLParser):
    """The elements of a page: [(name, attributes, path of names above it)], and its tables by caption."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.tables, self.texts = [], [], {}, []
        self._rows = self._caption = None
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, name, attributes):
        attributes = dict(attributes)
        self.elements.append((name, attributes, tuple(self.open)))
        if name not in VOID:
            self.open.append(name)
        if name == "table":
            self._rows, self._caption = [], ""
        elif name == "tr" and self._rows is not None:
            self._rows.append([])
        elif name in ("td", "th") and self._rows is not None:
            self._rows[-1].append(["", None])
        elif name == "data" and self._rows is not None:
            self._rows[-1][-1][1] = float(attributes["value"])

    def handle_endtag(self, name):
        assert self.open and self.open[-1] == name, f"</{name}> closes {self.open[-1:]}"
        self.open.pop()
        if name == "table":
            self.tables.setdefault(self._caption, []).append(self._rows)
            self._rows = None

    def handle_data(self, text):
        self.texts.append((text, tuple(self.open)))
        if self._rows is not None and self.open:
            if self.open[-1] == "caption":
                self._caption += text
            elif self._rows and self._rows[-1]:
                self._rows[-1][-1][0] += text

    @property
    def said(self):
        """What a reader sees, but for pictures."""
        return " ".join(text for text, path in self.texts if "style" not in path and "svg" not in path)

    def numbers(self, caption, place=0):
        """The numbers of a table, with all their digits, by the heading of the row."""
        return {row[0][0]: [number for _, number in row[1:]] for row in self.tables[caption][place][1:]}

    def within(self, name, inner):
        """How many elements of a name stand in each of another, in order."""
        counts = []
        for each, _, path in self.elements:
            if each == name:
                counts.append(0)
            elif each == inner and path and path[-1] == name:
                counts[-1] += 1
        return counts
