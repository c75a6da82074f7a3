"""Secrets from the environment: put in at the last moment, and taken out of everything that is shown."""

from __future__ import annotations

import pytest

from hailstorm.environment import concealed, public_options, revealed, revealed_all, secrets_in, written_secrets
from hailstorm.errors import UsageError


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORM_PASSWORD", "rain&hail")
    monkeypatch.setenv("STORM_USER", "rain")


def test_a_reference_becomes_the_variable() -> None:
    assert revealed("postgresql://${env:STORM_USER}:${env:STORM_PASSWORD}@db") == "postgresql://rain:rain&hail@db"
    assert revealed("nothing to see") == "nothing to see"
    assert revealed_all({"a": "${env:STORM_USER}", "b": 7}) == {"a": "rain", "b": 7}


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(UsageError, match="no variable 'STORM_MISSING'"):
        revealed("${env:STORM_MISSING}")


def test_no_secret_stays_in_a_message() -> None:
    secrets = secrets_in("${env:STORM_USER}", "${env:STORM_PASSWORD}")
    assert secrets == {"rain", "rain&hail"}
    # The longer one first: otherwise '***&hail' would be left.
    assert concealed("login with rain&hail failed for rain", secrets) == "login with *** failed for ***"
    assert concealed("cannot reach postgresql://me:open@db/x") == "cannot reach postgresql://me:***@db/x"


def test_a_description_shows_references_and_hides_secrets_that_were_written_down() -> None:
    options = {
        "sasl.username": "me",
        "sasl.password": "open sesame",
        "ssl.key.password": "${env:STORM_PASSWORD}",
        "ssl.key.pem": "-----BEGIN",
        "key": "word",
        "url": "http://me:open@registry",
        "linger.ms": 5,
    }
    assert written_secrets(options) == {"open sesame", "-----BEGIN"}
    assert public_options(options) == {
        "sasl.username": "me",
        "sasl.password": "***",
        "ssl.key.password": "${env:STORM_PASSWORD}",
        "ssl.key.pem": "***",
        "key": "word",
        "url": "http://me:***@registry",
        "linger.ms": 5,
    }
