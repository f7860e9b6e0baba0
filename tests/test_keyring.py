"""Whose keys the server lets in, as the files in members/ change."""

import pytest
from typer.testing import CliRunner

from fedlap.cli.study import study_app
from fedlap.errors import ConfigError
from fedlap.flower.keyring import Keyring, public_keys, revoke
from fedlap.study.agreement import keys, scaffold
from studies import SMALL


@pytest.fixture
def study(tmp_path):
    return scaffold.new_study(tmp_path / "study", SMALL)


@pytest.fixture
def told():
    return []


@pytest.fixture
def ring(study, told):
    return Keyring(study, told.append)


def everyone(study):
    return {member.name for member in study.members}


def new_key(folder, name):
    keys.make_member(folder, name)
    return (folder / "members" / f"{name}.pub").read_bytes()


def test_a_key_that_is_replaced_is_let_in_no_more_and_the_new_one_is(study, ring, told, tmp_path):
    before, first = ring.names(), study.members[0]
    assert set(before.values()) == everyone(study)
    first.public_key.write_bytes(new_key(tmp_path, first.name))
    after = ring.names()
    assert set(after.values()) == everyone(study) and not told
    assert [name for key, name in before.items() if key not in after] == [first.name]


def test_a_file_that_is_taken_away_takes_its_member_out_and_back_it_is_in_again(study, ring, told):
    before, first = ring.names(), study.members[0]
    content = first.public_key.read_bytes()
    first.public_key.unlink()
    assert set(ring.names().values()) == everyone(study) - {first.name}
    first.public_key.write_bytes(content)
    assert ring.names() == before
    lost, back = told
    assert lost.startswith(f"{first.name} is not let in: {first.public_key}: expected the public key")
    assert back == f"{first.name} is let in again, with the key in {first.public_key}"


def test_a_file_that_is_no_key_takes_out_its_member_alone(study, ring, told):
    ring.names()
    study.members[0].public_key.write_text("half a k")
    for _ in range(2):
        assert set(ring.names().values()) == everyone(study) - {study.members[0].name}
    assert len(told) == 1


def test_a_revoked_key_stays_out_after_a_start_and_wherever_its_file_is_put(study, ring, told, tmp_path):
    first, second, *_ = study.members
    content = first.public_key.read_bytes()
    result = CliRunner().invoke(study_app, ["revoke", str(study.path), "--name", first.name])
    assert result.exit_code == 0 and f"{first.name}'s key is revoked" in result.output
    assert set(ring.names().values()) == everyone(study) - {first.name}
    assert set(public_keys(study).values()) == everyone(study) - {first.name}
    first.public_key.write_bytes(content)
    second.public_key.write_bytes(content)
    assert set(ring.names().values()) == everyone(study) - {first.name, second.name}
    assert f"{second.public_key}: a key that was revoked; expected a new one" in told[-1]
    first.public_key.write_bytes(new_key(tmp_path, first.name))
    assert first.name in ring.names().values()
    revoke(study, first.name)  # the second one too
    assert first.name not in ring.names().values()
    assert len(first.public_key.with_suffix(".revoked").read_text().splitlines()) == 2


def test_a_start_needs_every_key_that_was_not_revoked(study):
    study.members[0].public_key.unlink()
    with pytest.raises(ConfigError, match=rf"{study.members[0].name}\.pub: expected the public key"):
        public_keys(study)
    with pytest.raises(ConfigError, match="expected the public key that is to be revoked"):
        revoke(study, study.members[0].name)


def test_two_members_with_one_key_are_refused(study):
    study.members[1].public_key.write_bytes(study.members[0].public_key.read_bytes())
    with pytest.raises(ConfigError, match="have the same key; expected one of their own each"):
        public_keys(study)


def test_a_list_of_revoked_keys_that_cannot_be_read_lets_nobody_in(study, ring, told):
    study.members[0].public_key.with_suffix(".revoked").write_text("ssh-rsa no\n")
    assert ring.names() == {}
    assert "expected revoked public keys, one a line" in told[0]
    with pytest.raises(ConfigError, match="expected revoked public keys"):
        public_keys(study)
