"""Commands that the package had once: each says where it is now."""

from fedlap.errors import ConfigError

ANY = {"allow_extra_args": True, "ignore_unknown_options": True}  # whatever followed the command before


def table() -> None:
    """Moved to a clone of the repository: python -m reproduction table 1."""
    raise _moved("table 1")


def figure() -> None:
    """Moved to a clone of the repository: python -m reproduction figure two-clients."""
    raise _moved("figure two-clients")


def reproduce() -> None:
    """Moved to a clone of the repository: python -m reproduction row flamby."""
    raise _moved("row flamby")


def _moved(command: str) -> ConfigError:
    where = f"a clone of the repository has them: python -m reproduction {command}"
    return ConfigError(f"the paper's tables and figures are no part of this package; {where}")
