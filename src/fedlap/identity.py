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
    """The arguments that a class or a function would not fill in by itself, each in its one form."""
    defaults = _defaults(maker)
    filled_in = lambda key, value: key in defaults and _same(value, defaults[key])
    return {key: of(value) for key, value in arguments.items() if not filled_in(key, value)}


def text(form: Form) -> str:
    """A form as one line."""
    return json.dumps(form, sort_keys=True)


def digest(form: Form) -> str:
    """The sha256 of a form."""
    return hashlib.sha256(text(form).encode()).hexdigest()


@functools.cache  # thousands of cells of a grid ask for the same few
def _defaults(maker: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of a maker of this package, by name; of a dataclass those of its fields, of another maker none."""
    if maker.__module__.partition(".")[0] != __package__:
        return {}
    if not dataclasses.is_dataclass(maker):
        defaults = {name: parameter.default for name, parameter in inspect.signature(maker).parameters.items()}
        return {name: default for name, default in defaults.items() if default is not inspect.Parameter.empty}
    fields, missing = dataclasses.fields(maker), dataclasses.MISSING
    values = {field.name: field.default for field in fields if field.default is not missing}
    return values | {field.name: field.default_factory() for field in fields if field.default_factory is not missing}


def _same(value: Any, default: Any) -> bool:
    """Whether a value is the default. Text tells `true` from 1; functions that show themselves alike need not be."""
    if value is default:
        return True
    if callable(value) and not _is_record(value):
        return False
    return text(of(value)) == text(of(default))


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
