"""Certificates and keys: whom they let in, and who can read them."""

import ssl
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedlap.errors import ConfigError
from fedlap.study import keys


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


def test_a_host_that_no_certificate_can_name_is_an_error_of_words(tmp_path):
    with pytest.raises(ConfigError, match="expected a host's name in ASCII"):
        keys.make_authority(tmp_path, ["sérvér"])
    assert not list(tmp_path.iterdir())
