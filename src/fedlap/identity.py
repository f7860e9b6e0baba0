"""What makes two things the same: what was said of them, and not what was filled in.

A value that its maker would fill in by itself is left out, whether somebody wrote it down or not. A class or function
may then get one more argument with a default, and all that was made before it is still the same: no result is
orphaned, no model and no checkpoint refused. The price is that a default may never change its value, to which tests
hold those of this package. Nobody holds those of anyone else's classes: of these every value counts.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, cast

Form = Any  # of a value, as JSON holds it


def of(value: Any) -> Form:
    """A value in one form, as JSON holds it: 1 for 1.0, a list for a tuple, {class: what was said} for a dataclass.

    Of anything else it is what it shows of itself.
    """
    if getattr(value, "shape", None) == ():
        value = value.item()  # an array of one number is that number
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Real):
        number = cast(Any, value)  # the type of all real numbers does not promise int()
        return int(number) if isinstance(value, Integral) or float(number).is_integer() else float(number)
    if isinstance(value, Mapping):
        return {str(key): of(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [of(item) for item in value]
    if _is_record(value):
        shown = [field.name for field in dataclasses.fields(value) if field.repr]
        return {type(value).__qualname__: said(type(value), {name: getattr(value, name) for name in shown})}
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # an address is another one in the next process


def said(maker: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Form]:
    """Of the arguments of a class or a function those that it would not fill in by itself, each in its one form."""
    known = _defaults(maker)
    return {key: of(value) for key, value in arguments.items() if key not in known or not _same(value, known[key])}


def text(form: Form) -> str:
    """A form as one line."""
    return json.dumps(form, sort_keys=True)


def digest(form: Form) -> str:
    """The sha256 of a form."""
    return hashlib.sha256(text(form).encode()).hexdigest()


@functools.cache  # thousands of cells of a grid ask for the same few
def _defaults(maker: Callable[..., Any]) -> dict[str, Any]:
    """What may be left out. Of a dataclass these are fields, which need not be the arguments of its constructor."""
    if maker.__module__.partition(".")[0] != __package__:
        return {}
    if not dataclasses.is_dataclass(maker):
        parameters = inspect.signature(maker).parameters.values()
        return {each.name: each.default for each in parameters if each.default is not each.empty}
    fields, missing = dataclasses.fields(maker), dataclasses.MISSING
    made = {each.name: each.default_factory() for each in fields if each.default_factory is not missing}
    return {each.name: each.default for each in fields if each.default is not missing} | made


def _same(value: Any, default: Any) -> bool:
    """Text tells `true` from 1; functions that show themselves alike need not be."""
    if value is default:
        return True
    if callable(value) and not _is_record(value):
        return False
    return text(of(value)) == text(of(default))


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
