"""What a study says about one column of the members' files."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedlap.domains import real
from fedlap.errors import ConfigError, unknown
from fedlap.sheets.problems import shown

KINDS = ("number", "category")
# What an empty cell means, by the kind of its column.
MISSING_RULES = {"number": ("refuse", "drop", "mean"), "category": ("refuse", "drop", "category")}
MISSING_CATEGORY = "missing"
MOST_COLUMNS = 10_000
MOST_CATEGORIES = 10_000
LONGEST_NAME = 1_000
MOST_SHOWN = 50  # categories that a message lists
# Statistical programs code a missing value as a number near the largest there is; its square is none any more.
LARGEST = 1e100
BOUND = real(f"a number from -{LARGEST:g} to {LARGEST:g}", lambda value: abs(value) <= LARGEST)


@dataclass(frozen=True)
class Column:
    """An input: a number in a range, or one of some categories, and what an empty cell means."""

    name: str
    kind: str
    unit: str = ""
    categories: tuple[str, ...] = ()  # the first is the reference: all its indicators are 0
    minimum: float = -math.inf
    maximum: float = math.inf
    missing: str = "refuse"

    @classmethod
    def parse(cls, name: object, table: Any) -> "Column":
        where = f"columns.{name}"
        name = check_name(name, where)
        if not isinstance(table, dict):
            raise ConfigError(
                f'{where} is {shown(table)}; expected a table such as {{ kind = "number", unit = "years" }}'
            )
        kind = table.get("kind")
        if kind not in KINDS:
            raise ConfigError(f'{where}.kind is {kind!r}; expected "number" or "category"')
        keys = ("kind", "missing", *(("unit", "minimum", "maximum") if kind == "number" else ("categories",)))
        for key in table:
            if key not in keys:
                raise unknown(f"key in [{where}]", key, keys)
        missing = table.get("missing", "refuse")
        if missing not in MISSING_RULES[kind]:
            rules = ", ".join(f'"{rule}"' for rule in MISSING_RULES[kind])
            raise ConfigError(f"{where}.missing is {missing!r}; expected one of {rules} for a {kind}")
        if kind == "category":
            return cls(name, kind, categories=_categories(where, table, missing), missing=missing)
        unit = table.get("unit", "")
        if not isinstance(unit, str) or len(unit) > LONGEST_NAME:
            raise ConfigError(f"{where}.unit is {shown(unit)}; expected text of at most {LONGEST_NAME:,} characters")
        minimum, maximum = _bound(where, table, "minimum", -math.inf), _bound(where, table, "maximum", math.inf)
        if not minimum < maximum:
            raise ConfigError(
                f"{where}: minimum {minimum:g}, maximum {maximum:g}; expected a minimum below the maximum"
            )
        return cls(name, kind, unit=unit, minimum=minimum, maximum=maximum, missing=missing)

    def as_dict(self) -> dict[str, Any]:
        """The table that `parse` reads, without what is left open."""
        table = {"kind": self.kind, "missing": self.missing}
        if self.kind == "category":
            return {**table, "categories": list(self.categories)}
        bounds = {key: getattr(self, key) for key in ("minimum", "maximum") if math.isfinite(getattr(self, key))}
        return {**table, "unit": self.unit, **bounds}

    def expected(self) -> str:
        """In words, what a cell may hold."""
        if self.kind == "category":
            return one_of(self.categories)
        unit = f" in {self.unit}" if self.unit else ""
        low, high = math.isfinite(self.minimum), math.isfinite(self.maximum)
        if low and high:
            return f"a number from {self.minimum:g} to {self.maximum:g}{unit}"
        bound = f", {self.minimum:g} or above" if low else f", at most {self.maximum:g}" if high else ""
        return f"a number{unit}{bound}"


@dataclass(frozen=True)
class Target:
    """What is to be predicted: the column that holds one of the classes."""

    name: str
    classes: tuple[str, ...]
    missing: str = "refuse"

    @classmethod
    def parse(cls, table: dict[str, Any]) -> "Target":
        """The target that a table describes; ConfigError if it does not."""
        for key in table:
            if key not in ("name", "classes", "missing"):
                raise unknown("key in [target]", key, ("name", "classes", "missing"))
        for key in ("name", "classes"):
            if key not in table:
                raise ConfigError(f"target.{key} is missing")
        check_name(table["name"], "target.name")
        missing = table.get("missing", "refuse")
        if missing not in ("refuse", "drop"):
            raise ConfigError(f'target.missing is {missing!r}; expected "refuse" or "drop"')
        return cls(table["name"], distinct_words("target.classes", table["classes"]), missing)

    def as_dict(self) -> dict[str, Any]:
        """The table that `parse` reads."""
        return {"name": self.name, "classes": list(self.classes), "missing": self.missing}

    def expected(self) -> str:
        """In words, what a cell may hold."""
        return one_of(self.classes)


def one_of(words: Sequence[str]) -> str:
    """In words, the texts that a cell may be; of many the first ones."""
    more = f" or {len(words) - MOST_SHOWN:,} more" if len(words) > MOST_SHOWN else ""
    return "one of " + ", ".join(words[:MOST_SHOWN]) + more


def check_name(name: object, where: str) -> str:
    """A column's name as a header would hold it: tables are read without the spaces around their cells."""
    if not isinstance(name, str) or not name or name != name.strip() or not name.isprintable():
        raise ConfigError(f"{where}: the name {name!r}; expected text without spaces around it")
    if len(name) > LONGEST_NAME:
        raise ConfigError(f"{where[:60]}: a name of {len(name):,} characters; expected at most {LONGEST_NAME:,}")
    return name


def distinct_words(where: str, values: object) -> tuple[str, ...]:
    """At least two texts, none empty, no two alike."""
    if not isinstance(values, (list, tuple)) or len(values) < 2:
        raise ConfigError(f'{where} is {values!r}; expected a list of at least two texts, such as ["no", "yes"]')
    if len(values) > MOST_CATEGORIES:
        raise ConfigError(f"{where} has {len(values):,} texts; expected at most {MOST_CATEGORIES:,}")
    seen = set()
    for value in values:
        if not isinstance(value, str):
            raise ConfigError(f'{where} has {value!r}; expected text in quotation marks, "{value}"')
        check_name(value, where)
        if value in seen:
            raise ConfigError(f"{where} has {value!r} twice; expected each once")
        seen.add(value)
    return tuple(values)


def _categories(where, table, missing):
    if "categories" not in table:
        raise ConfigError(f"{where}.categories is missing")
    categories = distinct_words(f"{where}.categories", table["categories"])
    if missing == "category" and MISSING_CATEGORY not in categories:
        raise ConfigError(
            f'{where}.missing is "category" but "{MISSING_CATEGORY}" is not in its categories; '
            f"expected it there, for the rows without a value"
        )
    return categories


def _bound(where, table, key, otherwise):
    value = table.get(key, otherwise)
    if key in table:
        BOUND.check(f"{where}.{key}", value)
    return float(value)
