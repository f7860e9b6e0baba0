"""Formulas such as "outcome ~ age + C(sex)": what they need to know of each column, before any data are seen.

A formula is evaluated site by site. So it may only use functions that need one row at a time, as `np.log` does, or
whose state can be agreed on beforehand, as the knots of `bs` can: a mean that each site takes of its own rows would
give every site another model. Nothing else of Python is run.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeGuard

import numpy as np

from fedlap.errors import ConfigError, nearest

ROWWISE = ("I", "log", "log10", "log2", "exp", "exp2")
ROWWISE_NUMPY = ("clip", "round", "where")  # and all of NumPy's elementwise functions
MOMENTS = ("center", "scale", "standardize")
SPLINES = ("bs", "cc", "cr", "cs")
CONTRASTS = ("Diff", "Helmert", "Poly", "Sum", "Treatment")
FUNCTIONS = ("C", "poly", *ROWWISE, *MOMENTS, *SPLINES)
OPERATORS = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
SETTINGS = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.UnaryOp, ast.USub, ast.Load)

PLAIN = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.USub, ast.UAdd)
LONGEST = 10_000  # characters of a formula
MOST_TERMS = 10_000
MOST_KNOTS = 100  # of a spline, and the degree of a polynomial
LARGEST = 1e100  # a number in a formula

# What a formula needs to know of a column, beside its kind.
NUMBER = "number"  # it is computed with
LEVELS = "levels"  # it is written C(...)
MOMENT = "moments"  # its mean and variance
QUANTILES = "quantiles"  # where a spline has its knots
RANGE = "range"  # where a spline or a polynomial ends
CLASSES = "classes"  # the values of an outcome, which are few


@dataclass(frozen=True)
class Parsed:
    """A formula, read."""

    text: str
    left: Any  # formulaic's own, as is the right side; None without an outcome
    right: Any
    outcome: str | None  # the column that the left side is, if it is no more than that
    left_needs: dict[str, set[str]]  # of each column of the left side
    right_needs: dict[str, set[str]]


def library() -> Any:
    """The library of formulas, which is an extra."""
    try:
        import formulaic
        import pandas  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            'formulas need the packages formulaic and pandas, which are not installed here: pip install "fedlap[stats]"'
        ) from error
    return formulaic


def parse(formula: str) -> Parsed:
    """Read a formula; a ConfigError points at what cannot be read."""
    formulaic = library()
    if not isinstance(formula, str) or not formula.strip():
        raise ConfigError(f"the formula is {formula!r}; expected a text such as 'outcome ~ age + C(sex)'")
    if len(formula) > LONGEST:
        raise ConfigError(f"the formula has {len(formula):,} characters; expected at most {LONGEST:,}")
    try:
        if (terms := _most_terms(formulaic.parser.DefaultFormulaParser().get_ast(formula))) > MOST_TERMS:
            _refuse(formula, 0, f"it has up to {terms:.3g} terms; expected at most {MOST_TERMS:,}")
        read = formulaic.Formula(formula)
    except RecursionError:
        raise ConfigError("the formula has brackets or signs within each other that are too many to read") from None
    except formulaic.errors.FormulaicError as error:
        _refuse_syntax(formula, str(error))
    except SyntaxError as error:
        start = formula.find(error.text or "")
        _refuse(formula, max(start, 0) + (error.offset or 1) - 1, "it is no valid expression")
    left, right = getattr(read, "lhs", None), getattr(read, "rhs", read)
    for side in (left, right):
        if side is not None and not isinstance(side, formulaic.SimpleFormula):
            _refuse(formula, formula.find("|"), "it has several parts; expected one right side")
    if left is not None and len(_factors(left)) != 1:
        _refuse(formula, 0, "its left side is more than one column; expected one outcome")
    left_reader, right_reader = _Reader(formula), _Reader(formula)
    for factor in _factors(left or ()):
        left_reader.read(factor)
    for factor in _factors(right):
        right_reader.read(factor)
    if left_reader.functions & {"C", "poly", *MOMENTS, *SPLINES}:
        _refuse(formula, 0, "its left side looks at all rows; expected a column, or a function of single rows")
    functions = left_reader.functions | right_reader.functions
    for name in {**left_reader.needs, **right_reader.needs}:
        if name in functions:
            _refuse(formula, formula.find(name), f"{name!r} is a column and a function; expected two names")
    return Parsed(formula, left, right, left_reader.column, left_reader.needs, right_reader.needs)


def _most_terms(tree: Any) -> float:
    """At most so many terms are made of a formula, counted before they are: a * b * c stands for seven."""
    waiting, order = [tree], []
    while waiting:
        order.append(waiting.pop())
        waiting += getattr(order[-1], "args", ())
    counts: dict[int, float] = {}
    for node in reversed(order):  # what is inside comes first
        inner = [counts[id(each)] for each in getattr(node, "args", ())]
        symbol = node.operator.symbol if inner else ""
        if symbol in ("**", "^"):
            power = str(node.args[-1])
            short = power.isdigit() and len(power) == 1
            counts[id(node)] = inner[0] ** int(power) if short else max(inner[0], 3.0) ** 10
        elif symbol in ("*", ":", "/", "in") and len(inner) == 2:
            counts[id(node)] = sum(inner) + inner[0] * inner[1]
        else:
            counts[id(node)] = sum(inner) or 1.0
    return counts[id(tree)]


def call_of(expression: str) -> ast.Call | None:
    """The call that an expression is, if it is one."""
    node = ast.parse(expression, mode="eval").body
    return node if isinstance(node, ast.Call) else None


def argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    """An argument of a call by its place or its name; None if it is not given."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    return call.args[place] if place < len(call.args) else named.get(name)


def identifier(column: str) -> str:
    """What formulaic calls a column inside of expressions, where names must be Python's."""
    if column.isidentifier():
        return column
    name = re.sub(r"\W", "_", column)
    return f"_{name}" if name[:1].isdigit() else name


def _factors(side: Any) -> list[Any]:
    return [factor for term in side for factor in term.factors]


class _Reader:
    """Notes what the expressions of one side need, and refuses what cannot be agreed on."""

    def __init__(self, formula: str) -> None:
        self.formula = formula
        self.needs: dict[str, set[str]] = {}
        self.functions: set[str] = set()
        self.column: str | None = None  # the column that the last expression was
        self.names: dict[str, str] = {}

    def read(self, factor: Any) -> None:
        method = factor.eval_method.value
        if method == "lookup":
            self.column = factor.expr
            self.note(factor.expr)
        elif method == "python":
            body = ast.parse(self.unquoted(factor.expr), mode="eval").body
            self.column = self.column_of(body)
            if self.column is None:
                self.visit(body)
            else:
                self.note(self.column)

    def unquoted(self, expression: str) -> str:
        """An expression whose columns in backticks have names of Python's."""

        def replace(match: re.Match[str]) -> str:
            self.names[identifier(match[1])] = match[1]
            return identifier(match[1])

        return re.sub("`([^`]+)`", replace, expression)

    def note(self, name: str, *needs: str) -> None:
        self.needs.setdefault(name, set()).update(needs)

    def column_of(self, node: ast.expr) -> str | None:
        """The column that an expression is, if it is no more than that."""
        return self.names.get(node.id, node.id) if isinstance(node, ast.Name) else None

    def visit(self, node: ast.AST) -> None:
        column = self.column_of(node) if isinstance(node, ast.expr) else None
        if column is not None:
            self.note(column, NUMBER)
        elif isinstance(node, ast.Call):
            self.call(node)
        elif isinstance(node, ast.Compare):
            self.compare(node)
        elif isinstance(node, ast.Attribute):
            if _dotted(node) not in ("np.pi", "np.e"):
                self.refuse(node, "is not known here")
            self.functions.add("np")
        elif isinstance(node, ast.BinOp) and not _names(node):
            if not all(isinstance(each, PLAIN) and is_real(getattr(each, "value", 0)) for each in ast.walk(node)):
                self.refuse(node, "is computed from numbers alone; expected the number, written out")
            for child in (node.left, node.right):
                self.visit(child)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, complex | bytes) or (is_real(node.value) and abs(node.value) > LARGEST):
                self.refuse(node, f"is no number of a formula; expected at most {LARGEST:g}")
        elif isinstance(node, OPERATORS):
            for child in ast.iter_child_nodes(node):
                self.visit(child)
        elif not isinstance(node, ast.Load):
            self.refuse(node, "is not known here")

    def compare(self, node: ast.Compare) -> None:
        """A comparison; texts can be equal to others."""
        equal = all(isinstance(operator, (ast.Eq, ast.NotEq)) for operator in node.ops)
        if any(isinstance(operator, (ast.In, ast.NotIn, ast.Is, ast.IsNot)) for operator in node.ops):
            self.refuse(node, "compares no row by itself; expected ==, !=, <, <=, > or >=")
        for each in (node.left, *node.comparators):
            column = self.column_of(each)
            if column is not None and equal:
                self.note(column)
            else:
                self.visit(each)

    def call(self, node: ast.Call) -> None:
        name = _dotted(node.func)
        self.functions.add(name.split(".")[0])
        if any(keyword.arg is None for keyword in node.keywords) or any(isinstance(a, ast.Starred) for a in node.args):
            self.refuse(node, "has a starred argument")
        if name == "C":
            self.category(node)
        elif name in (*MOMENTS, *SPLINES, "poly"):
            self.stateful(node, name)
        elif name in ROWWISE or _is_rowwise_numpy(name):
            for each in (*node.args, *(keyword.value for keyword in node.keywords)):
                self.visit(each)
        elif name == "Q":
            self.refuse(node, "is not known here; expected the name of the column between backticks")
        else:
            near = nearest(name, FUNCTIONS) if name else None
            hint = f"; did you mean {near!r}?" if near else ""
            self.refuse(
                node.func,
                f"is no function that can be agreed on over sites{hint} "
                f"(choices: {', '.join(FUNCTIONS)}, and NumPy's functions of single rows, such as np.sqrt)",
            )

    def category(self, node: ast.Call) -> None:
        column = self.column_of(node.args[0]) if node.args else None
        if column is None:
            self.refuse(node, "is no category: C(...) takes a column. A comparison is a number as it is: I(age > 60)")
        self.note(column, LEVELS)
        for each in (*node.args[1:], *(keyword.value for keyword in node.keywords)):
            self.setting(each, CONTRASTS)

    def stateful(self, node: ast.Call, name: str) -> None:
        """A function that looks at all rows: of one column, so that its state follows from what sites tell of it."""
        if not node.args:
            self.refuse(node, "has no column; expected it first")
        inner = _Reader(self.formula)
        inner.names = self.names
        inner.visit(node.args[0])
        if inner.functions & {"C", "poly", *MOMENTS, *SPLINES}:
            self.refuse(node, "has a function inside that looks at all rows, too; expected one at a time")
        if len(inner.needs) != 1 or (name in MOMENTS and self.column_of(node.args[0]) is None):
            what = "a column" if name in MOMENTS else "one column, or a function of it"
            self.refuse(node, f"looks at all rows; expected {name} of {what}: make a column of it at every site")
        (column,) = inner.needs
        self.functions |= inner.functions
        self.note(column, NUMBER)
        self.note(column, MOMENT if name in MOMENTS else RANGE)
        df = argument(node, 1, "df")
        if name in SPLINES and df is not None and not (isinstance(df, ast.Constant) and df.value is None):
            self.note(column, QUANTILES)
        for each in (df, argument(node, 1 if name == "poly" else 3, "degree")):
            if isinstance(each, ast.Constant) and is_real(each.value) and each.value > MOST_KNOTS:
                self.refuse(node, f"has too many parts; expected at most {MOST_KNOTS}")
        for each in (*node.args[1:], *(keyword.value for keyword in node.keywords)):
            self.setting(each)

    def setting(self, node: ast.expr, known: Sequence[str] = ()) -> None:
        """A further argument: written out, or one of the known names and what is made with them."""
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and (each.id in known or (known and each.id == "contr")):
                self.functions.add(each.id)
            elif isinstance(each, ast.Attribute) and known and not re.fullmatch(r"contr\.[a-z]+", _dotted(each)):
                self.refuse(each, "is not known here")
            elif not isinstance(each, (*SETTINGS, ast.keyword, *((ast.Call, ast.Attribute) if known else ()))):
                self.refuse(node, "is no setting; expected numbers or texts, written out")

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        what = ast.unparse(node)
        _refuse(self.formula, max(self.formula.find(what), 0), f"{what!r} {why}")


def _names(node: ast.AST) -> bool:
    """Whether an expression has a column or a function in it."""
    return any(isinstance(each, (ast.Name, ast.Call, ast.Attribute)) for each in ast.walk(node))


def is_real(value: object) -> TypeGuard[float]:
    """Whether what is written out is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _dotted(node: ast.expr) -> str:
    """A name with its dots, such as np.log; empty if it is something else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def _is_rowwise_numpy(name: str) -> bool:
    if not name.startswith("np."):
        return False
    function = getattr(np, name.removeprefix("np."), None)
    return name.removeprefix("np.") in ROWWISE_NUMPY or (isinstance(function, np.ufunc) and function.signature is None)


def _refuse(formula: str, position: int, why: str) -> NoReturn:
    """A ConfigError that points at a position of the formula."""
    position = max(position, 0)
    raise ConfigError(f"the formula cannot be used, position {position + 1}: {why}\n  {formula}\n  {' ' * position}^")


def _refuse_syntax(formula: str, message: str) -> NoReturn:
    """Say what formulaic says, whose message marks the place with brackets and colours."""
    if "`.` operator" in message:
        _refuse(formula, formula.rfind("."), "'.' stands for no columns here; expected their names")
    why, _, marked = message.partition("\n\n")
    _refuse(formula, marked.find("⧛"), why.rstrip("."))
