"""Whose keys are let in: those in members/NAME.pub, less those that were revoked, as the files are at this moment."""

import os
from collections.abc import Callable
from pathlib import Path

from fedlap import files
from fedlap.errors import ConfigError
from fedlap.study.agreement.contract import CommonStudy

Names = dict[bytes, str]  # of members, by their public keys in Flower's form


class Keyring:
    """The members' keys, read anew whenever a file has changed: no restart is needed to replace or revoke one."""

    def __init__(self, study: CommonStudy, tell: Callable[[str], None] = lambda line: None) -> None:
        self.study, self.tell = study, tell
        self._seen: object = None
        self._names: Names = {}
        self._problems: dict[str, str] = {}

    def names(self) -> Names:
        """Who is let in now. A member whose file is gone or no key is not; what is wrong is told once."""
        seen = tuple(map(_state, _files(self.study)))
        if seen != self._seen:
            names, out, wrong = self._read()
            problems = out | wrong
            for member, problem in problems.items():
                if self._problems.get(member) != problem:
                    self.tell(f"{member} is not let in: {problem}")
            for name in sorted(set(names.values()) & set(self._problems)):
                self.tell(f"{name} is let in again, with the key in {_public(self.study, name)}")
            self._seen, self._names, self._problems = seen, names, problems
        return self._names

    def _read(self) -> tuple[Names, dict[str, str], dict[str, str]]:
        try:
            return _read(self.study)
        except ConfigError as error:  # nobody is let in by a list of revoked keys that cannot be read
            return {}, {}, {member.name: str(error) for member in self.study.members}


def public_keys(study: CommonStudy) -> Names:
    """The members' names by their public keys; ConfigError where one is missing that nobody has revoked."""
    names, _, wrong = _read(study)
    for problem in wrong.values():
        raise ConfigError(problem)
    return names


def revoke(study: CommonStudy, name: str) -> Path:
    """Let a member's key in no more, now and after every start; where it is noted."""
    public, revoked = _public(study, name), _revoked(study, name)
    study.member(name)
    try:
        key = public.read_bytes().strip()
        _key(key)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{public}: expected the public key that is to be revoked ({error})") from error
    before = revoked.read_bytes() if revoked.exists() else b""
    files.write(revoked, before + key + b"\n")  # first, so that the key is out whatever happens next
    public.unlink()
    return revoked


def _public(study: CommonStudy, name: str) -> Path:
    return study.member(name).public_key


def _revoked(study: CommonStudy, name: str) -> Path:
    return _public(study, name).with_suffix(".revoked")


def _files(study: CommonStudy) -> list[Path]:
    names = [member.name for member in study.members]
    return [path for name in names for path in (_public(study, name), _revoked(study, name))]


def _state(path: Path) -> tuple[int, ...] | None:
    """What changes whenever a file does."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read(study: CommonStudy) -> tuple[Names, dict[str, str], dict[str, str]]:
    """The members' keys; who has none because it was revoked; of whose files something else is wrong, and what."""
    names, out, wrong = Names(), dict[str, str](), dict[str, str]()
    revoked = {key for member in study.members for key in _keys(_revoked(study, member.name))}
    for member in study.members:
        path, name = member.public_key, member.name
        try:
            key = _key(path.read_bytes())
        except (OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and _revoked(study, name).exists():
                out[name] = f"its key was revoked; a new public key in {path} lets it in again"
            else:
                wrong[name] = f"{path}: expected the public key of {name} ({error})"
            continue
        if key in revoked:
            out[name] = f"{path}: a key that was revoked; expected a new one (ssh-keygen makes it)"
        elif key in names:
            wrong[name] = f"{path.parent}: {names[key]} and {name} have the same key; expected one of their own each"
        else:
            names[key] = name
    return names, out, wrong


def _keys(path: Path) -> list[bytes]:
    """The keys in a file, one a line."""
    if not path.exists():
        return []
    try:
        return [_key(line) for line in path.read_bytes().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: expected revoked public keys, one a line ({error})") from error


def _key(content: bytes) -> bytes:
    """A public key in the form in which Flower knows it, from OpenSSH's."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    try:
        key = serialization.load_ssh_public_key(content)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError("not an ECDSA key")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
