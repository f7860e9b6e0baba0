"""Certificates and keys: whom they let in, and who can read them."""

import base64
import os
import ssl
import stat
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from typer.testing import CliRunner

from disks import small_disk
from fedlap.cli.study import study_app
from fedlap.errors import ConfigError
from fedlap.flower import fleet, keyring, node
from fedlap.study.agreement import keys, scaffold
from studies import SMALL


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    folder = tmp_path_factory.mktemp("authority")
    keys.make_authority(folder, ["server.example.org", "10.1.2.3"])
    return folder


def shake_hands(folder, trusted, host):
    """TLS between a server with the folder's certificate and a client that trusts a certificate; no network."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    client = ssl.create_default_context(cafile=trusted)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return ends[0].version()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "server.example.org", "10.1.2.3"])
def test_the_server_is_believed_at_its_own_hosts(authority, host):
    assert shake_hands(authority, authority / "ca.crt", host) == "TLSv1.3"


def test_the_server_is_not_believed_elsewhere_nor_by_the_trust_of_another_study(authority, tmp_path):
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(authority, authority / "ca.crt", "other.example.org")
    keys.make_authority(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(authority, tmp_path / "ca.crt", "localhost")


@pytest.mark.parametrize("host", ["other.example.org", "10.9.9.9"])
def test_a_node_that_finds_another_host_is_told_so(authority, host):
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        shake_hands(authority, authority / "ca.crt", host)
    words = fleet.in_words(str(caught.value), f"{host}:9443")
    assert "for another host" in words and "fedlap study certificate" in words
    assert "not the server" not in words


def certificate(folder, *words):
    return CliRunner().invoke(study_app, ["certificate", str(folder), *words])


def test_a_server_that_has_moved_is_believed_again_with_the_old_trust(tmp_path):
    study = scaffold.new_study(tmp_path / "heart", SMALL + '[network]\naddress = "127.0.0.1:9443"\n')
    study.path.write_text(study.path.read_text().replace("127.0.0.1", "fl.example.org"))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(study.folder, study.folder / "ca.crt", "fl.example.org")
    kept = {name: (study.folder / name).read_bytes() for name in ("ca.crt", "ca.key", "server.key")}
    result = certificate(study.folder, "--host", "10.1.2.3")
    assert result.exit_code == 0, result.exception
    assert "for localhost, 127.0.0.1, ::1, fl.example.org, 10.1.2.3." in result.output
    for host in ("fl.example.org", "10.1.2.3", "localhost"):
        assert shake_hands(study.folder, study.folder / "ca.crt", host) == "TLSv1.3"
    assert kept == {name: (study.folder / name).read_bytes() for name in kept}


def test_an_ipv6_address_is_certified_without_its_brackets(tmp_path):
    scaffold.new_study(tmp_path / "heart", SMALL + '[network]\naddress = "[2001:DB8::1]:9443"\n')
    assert keys.certified_hosts(tmp_path / "heart")[-1] == "2001:db8::1"


def test_a_certificate_is_signed_only_by_the_authority_that_members_know(authority, tmp_path):
    study = scaffold.new_study(tmp_path / "heart", SMALL)
    before = (study.folder / "server.pem").read_bytes()
    key = study.folder / "ca.key"
    key.write_bytes((authority / "ca.key").read_bytes())
    assert "not the key of ca.crt" in str(certificate(study.folder).exception)
    key.write_text("nothing")
    assert "ca.key: expected the authority's key" in str(certificate(study.folder).exception)
    key.unlink()
    assert "ca.key: there is no such file; expected the authority's key" in str(certificate(study.folder).exception)
    (study.folder / "ca.crt").unlink()
    assert "ca.crt: cannot be read" in str(certificate(study.folder).exception)
    assert (study.folder / "server.pem").read_bytes() == before


def test_the_servers_certificate_cannot_sign_others(authority):
    certificate = x509.load_pem_x509_certificate((authority / "server.pem").read_bytes())
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_a_members_pair_is_of_the_kind_that_flower_takes(tmp_path):
    keys.make_member(tmp_path, "north")
    private = load_ssh_private_key((tmp_path / "members/north.key").read_bytes(), password=None)
    public = load_ssh_public_key((tmp_path / "members/north.pub").read_bytes())
    assert isinstance(public.curve, ec.SECP384R1)
    assert private.public_key() == public
    assert stat.S_IMODE((tmp_path / "members/north.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277, 0o777])
def test_private_keys_are_their_owners_alone_whatever_the_umask(tmp_path, mask):
    before = os.umask(mask)
    try:
        for path in (tmp_path / "ca.key", tmp_path / "north.key"):
            keys.write_new(path, b"a key", private=True)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("*.key")} == {0o600}


def test_two_studies_of_the_same_members_have_no_key_in_common(tmp_path):
    made = [scaffold.new_study(tmp_path / name, SMALL) for name in ("first", "second")]
    contents = [path.read_bytes() for study in made for path in study.folder.rglob("*.key")]
    assert len(contents) == len(set(contents)) == 2 * (2 + len(made[0].members))


def test_half_a_key_does_not_stay(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        disk.fill()
        with pytest.raises(OSError, match=r"north\.key: cannot be written \(No space left.*; make room for \d+ "):
            keys.make_member(disk.folder, "north")
        assert list((disk.folder / "members").iterdir()) == []
        disk.free()
        keys.make_member(disk.folder, "north")


def test_keys_are_never_overwritten(tmp_path):
    keys.make_member(tmp_path, "north")
    before = (tmp_path / "members/north.key").read_bytes()
    with pytest.raises(ConfigError, match="never overwritten"):
        keys.make_member(tmp_path, "north")
    assert (tmp_path / "members/north.key").read_bytes() == before
    keys.make_authority(tmp_path)
    with pytest.raises(ConfigError, match=r"ca.key exists already"):
        keys.make_authority(tmp_path)


def test_a_private_key_that_others_can_read_is_refused(tmp_path):
    keys.make_member(tmp_path, "north")
    path = tmp_path / "members/north.key"
    assert keys.check_private(path) == path
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="others can read this private key"):
        keys.check_private(path)
    with pytest.raises(ConfigError, match="there is no such file"):
        keys.check_private(tmp_path / "none.key")


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a node as north in a folder with its files; it may read them, but neither set Flower up nor connect."""
    keys.make_authority(tmp_path)
    keys.make_member(tmp_path, "north")

    def refuse(*_):
        raise AssertionError("the files were to be read first")

    monkeypatch.setattr(node, "prepare", lambda *_: None)
    monkeypatch.setattr(node, "_connector", refuse)
    study = SimpleNamespace(folder=tmp_path, members=("north", "south"), address="127.0.0.1:1")
    return lambda: node.serve(study, None, tmp_path / "state", tmp_path / "members/north.key", print, 0)


def test_a_node_reads_its_files_before_it_connects(start):
    with pytest.raises(AssertionError, match="the files were to be read first"):
        start()


@pytest.mark.parametrize(
    "content, message",
    [
        (None, r"ca\.crt: cannot be read \(No such file.*expected the ca\.crt that the coordinator gave you"),
        (b"", r"ca\.crt: not a certificate"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", r"ca\.crt: not a certificate"),
    ],
)
def test_a_node_without_its_studys_certificate_says_so(start, tmp_path, content, message):
    (tmp_path / "ca.crt").unlink()
    if content is not None:
        (tmp_path / "ca.crt").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        start()


def with_passphrase(content):
    """A private key that says of itself to be encrypted, as `ssh-keygen` without -N "" makes it."""
    word = lambda text: len(text).to_bytes(4, "big") + text
    begin, *lines, end = content.splitlines()
    data = base64.b64decode(b"".join(lines))
    options = word(word(b"s" * 16) + (16).to_bytes(4, "big"))
    data = data.replace(word(b"none") * 2 + word(b""), word(b"aes256-ctr") + word(b"bcrypt") + options)
    return b"\n".join([begin, base64.b64encode(data), end, b""])


def of_another_kind(content):
    """A private key as `ssh-keygen` makes it today if it is told nothing."""
    return ed25519.Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


@pytest.mark.parametrize(
    "change, message",
    [
        (with_passphrase, r"north\.key: the key has a passphrase; expected a key without a passphrase"),
        (lambda content: b"no key", r"north\.key: not a private key; expected the file"),
        (of_another_kind, r"north\.key: not an ECDSA key; expected the file"),
    ],
)
def test_a_key_that_cannot_be_used_is_named(start, tmp_path, change, message):
    """Those that others can read and those that are missing have words of their own."""
    path = tmp_path / "members/north.key"
    whole = path.read_bytes()
    path.write_bytes(change(whole))
    with pytest.raises(ConfigError, match=message):
        start()
    path.write_bytes(whole)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read this private key"):
        start()
    path.unlink()
    with pytest.raises(ConfigError, match="there is no such file"):
        start()


def test_a_public_key_of_another_kind_is_named(tmp_path):
    study = scaffold.new_study(tmp_path / "study", SMALL)
    assert len(keyring.public_keys(study)) == len(study.members)
    public = ed25519.Ed25519PrivateKey.generate().public_key()
    study.members[0].public_key.write_bytes(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    with pytest.raises(ConfigError, match=rf"{study.members[0].name}\.pub: expected .*not an ECDSA key"):
        keyring.public_keys(study)


def test_a_host_that_no_certificate_can_name_is_an_error_of_words(tmp_path):
    with pytest.raises(ConfigError, match="expected a host's name in ASCII"):
        keys.make_authority(tmp_path, ["sérvér"])
    assert not list(tmp_path.iterdir())
