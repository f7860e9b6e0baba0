"""Who is who on the network: one authority a study, the server's certificate, and one key pair a member.

ca.crt                     to everyone: by it a member knows the server
ca.key                     stays with the coordinator; signs server certificates
server.pem, server.key     stay with the coordinator, on the server
members/NAME.key           to that member only: by it the server knows the member
members/NAME.pub           stays with the coordinator, who registers it

All of them are of one study. A key that served two would let whoever runs one server, or has stolen one laptop, into
the other study; and taking it back would shut a member out of both. A server cannot know of other studies' keys, so
nothing checks this: `fedlap study new` makes new ones each time.
"""

import datetime
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path

from fedlap import files
from fedlap.errors import ConfigError

VALID_YEARS = 5
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def make_authority(folder: str | Path, hosts: Iterable[str] = ()) -> None:
    """A certificate authority for this study alone, and the server's certificate for these hosts and for loopback."""
    x509, hashes, serialization, ec = _cryptography()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority_name = _name(x509, "fedlap study authority")
    authority = (
        _begin(x509, authority_name, authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(x509, signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    server = _server_certificate(authority_name, authority_key, server_key.public_key(), hosts)
    encoding, form, open_ = serialization.Encoding.PEM, serialization.PrivateFormat, serialization.NoEncryption()
    write_new(folder / "ca.key", authority_key.private_bytes(encoding, form.PKCS8, open_), private=True)
    write_new(folder / "ca.crt", authority.public_bytes(encoding))
    write_new(folder / "server.key", server_key.private_bytes(encoding, form.PKCS8, open_), private=True)
    write_new(folder / "server.pem", server.public_bytes(encoding))


def renew_certificate(folder: str | Path, hosts: Iterable[str]) -> None:
    """Sign the server's certificate anew, for these hosts and for loopback.

    Its key stays, so that one file is replaced and certificate and key fit at every moment; so does the authority, so
    that no member needs a new ca.crt.
    """
    _, _, serialization, _ = _cryptography()
    folder = Path(folder)
    authority = _certificate(folder / "ca.crt")
    authority_key = _private_key(folder / "ca.key", "the authority's key, which signs certificates: bring it back")
    if authority_key.public_key() != authority.public_key():
        raise ConfigError(f"{folder / 'ca.key'}: not the key of ca.crt; expected the two that were made together")
    server_key = _private_key(folder / "server.key", "the server's key")
    renewed = _server_certificate(authority.subject, authority_key, server_key.public_key(), hosts)
    try:
        files.write(folder / "server.pem", renewed.public_bytes(serialization.Encoding.PEM))
    except OSError as error:
        raise ConfigError(f"{folder / 'server.pem'}: cannot be written ({error.strerror})") from error


def certified_hosts(folder: str | Path) -> tuple[str, ...]:
    """The hosts that the server's certificate is for."""
    x509, _, _, _ = _cryptography()
    certificate = _certificate(Path(folder) / "server.pem")
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(canonical(str(name.value)) for name in names)


def canonical(host: str) -> str:
    """A host in the one spelling in which two can be compared."""
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return host.lower()


def make_member(folder: str | Path, name: str) -> None:
    """The key pair of a member, in the form in which Flower takes it: OpenSSH, ECDSA on P-384."""
    _, _, serialization, ec = _cryptography()
    folder = Path(folder) / "members"
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    encoding, form, open_ = serialization.Encoding, serialization.PrivateFormat, serialization.NoEncryption()
    write_new(folder / f"{name}.key", key.private_bytes(encoding.PEM, form.OpenSSH, open_), private=True)
    public = key.public_key().public_bytes(encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_new(folder / f"{name}.pub", public + f" {name}\n".encode())


def write_new(path: Path, content: bytes, private: bool = False) -> None:
    """A file that did not exist, whole or not at all; a private one is its owner's alone from its first byte."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already; keys and certificates are never overwritten") from error
    try:
        with files.writing(path, len(content)), open(descriptor, "wb") as file:
            if private:
                os.fchmod(descriptor, 0o600)  # some umasks take from the owner, too
            file.write(content)
    except OSError:
        path.unlink()
        raise


def check_private(path: str | Path) -> Path:
    """The path of a private key that is there and that nobody else on this machine can read."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file; expected the private key that the coordinator gave you")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise ConfigError(f"{path}: others can read this private key; expected it yours alone: chmod 600 {path}")
    return path


def _server_certificate(authority_name, authority_key, public_key, hosts):
    x509, hashes, _, _ = _cryptography()
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _begin(x509, _name(x509, "fedlap study server"), authority_name, public_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(x509, signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternative_names(x509, hosts)), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def _certificate(path):
    x509, _, _, _ = _cryptography()
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a certificate") from error
    except (ValueError, _unsupported()) as error:
        raise ConfigError(f"{path}: not a certificate; expected one that `fedlap study new` made") from error


def _private_key(path, what):
    _, _, serialization, _ = _cryptography()
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file; expected {what}")
    path = check_private(path)
    try:
        return serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, _unsupported()) as error:
        raise ConfigError(f"{path}: expected {what}, in PEM and without a passphrase") from error


def _begin(x509, subject, issuer, public_key):
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        # A day early: the clocks of two hospitals need not agree.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * VALID_YEARS))
    )


def _name(x509, common_name):
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, common_name)])


def _usage(x509, signs_certificates):
    rest = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
        **dict.fromkeys(rest, False),
    )


def _alternative_names(x509, hosts):
    names = []
    for host in dict.fromkeys((*LOOPBACK, *hosts)):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host.strip("[]"))))
        except ValueError:
            names.append(_dns_name(x509, host))
    return names


def _dns_name(x509, host):
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"the host {host!r}; expected a host's name in ASCII letters, or an address") from error


def _unsupported():
    """The error of a damaged key that happens to name a curve or cipher which is not in use."""
    from cryptography.exceptions import UnsupportedAlgorithm

    return UnsupportedAlgorithm


def _cryptography():
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigError(
            'making keys needs the package cryptography, which is not installed here: pip install "fedlap[flower]"'
        ) from error
    return x509, hashes, serialization, ec
