"""Pytrees of frozen dataclasses: fields are leaves, except those that are part of the program."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.core

Class = TypeVar("Class", bound=type)


def register(cls: Class) -> Class:
    """Make a dataclass a pytree: its fields are leaves, except those whose metadata say `static`.

    Not `jax.tree_util.register_dataclass`: in jaxlib 0.10 the structures of two classes registered by it compare
    equal when their fields look alike, so that jit may, once in a hundred times, take one algorithm's program for
    another's. Here the class is part of what is compared.
    """
    fields = dataclasses.fields(cls)
    static_names = tuple(field.name for field in fields if field.metadata.get("static"))
    names = tuple(field.name for field in fields if not field.metadata.get("static"))

    def flatten(thing):
        return tuple(getattr(thing, n) for n in names), (cls, tuple(getattr(thing, n) for n in static_names))

    def flatten_with_keys(thing):
        children, structure = flatten(thing)
        return tuple(zip(map(jax.tree_util.GetAttrKey, names), children, strict=True)), structure

    def unflatten(structure, children):
        thing = object.__new__(cls)
        for name, value in zip((*names, *static_names), (*children, *structure[1]), strict=True):
            object.__setattr__(thing, name, value)
        return thing

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def static(**options: Any) -> Any:
    """A field that is part of the program, not a value in it: changing it compiles anew."""
    return dataclasses.field(metadata={"static": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(static,))
def pytree(cls: Class) -> Class:
    """A frozen dataclass whose fields are leaves, except those declared with `static`."""
    return register(dataclasses.dataclass(frozen=True)(cls))


def is_traced(value: Any) -> bool:
    """Whether a value belongs to a program that is being compiled, and is not known yet."""
    return isinstance(value, jax.core.Tracer)


def as_call(name: str) -> Any:
    """A `__repr__` that is a call of `name`: for a class that is written as a function, in lower case."""

    def shown(thing: Any) -> str:
        arguments = (f"{field.name}={getattr(thing, field.name)!r}" for field in dataclasses.fields(thing))
        return f"{name}({', '.join(arguments)})"

    return shown
