"""Options become a connection, and what cannot be done is refused without showing secrets."""

import pickle

import pytest

from chronik.client.security import PLAINTEXT, Security
from chronik.spark.connection import Connection
from chronik.spark.errors import OptionsError

AT = {"kafka.bootstrap.servers": "a:1,b:2"}
SASL = {**AT, "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "SCRAM-SHA-512"}
JAAS = (
    'org.apache.kafka.common.security.scram.ScramLoginModule required username="bob" password="{}";'
)


def test_addresses_and_patience() -> None:
    plain = Connection.from_options(AT)
    assert plain == Connection(bootstrap="a:1,b:2")
    assert plain.security == PLAINTEXT
    named = Connection.from_options(
        {"BOOTSTRAP": "a:1", "kafka.client.id": "me", "kafka.default.api.timeout.ms": "1500"}
    )
    assert named == Connection(bootstrap="a:1", client_id="me", timeout_s=1.5)


def test_options_of_others_are_left_to_them() -> None:
    assert not Connection.takes("subscribe")
    assert not Connection.takes("kafka.group.id")
    assert Connection.takes("Kafka.SSL.anything")
    Connection.from_options({**AT, "subscribe": "t", "kafka.group.id": "g"})


def test_tls() -> None:
    options = {
        **AT,
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.certificate.location": "/me.pem",
        "kafka.ssl.key.location": "/me.key",
        "kafka.ssl.key.password": "hidden",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }
    assert Connection.from_options(options).security == Security(
        tls=True,
        ca_location="/ca.pem",
        certificate_location="/me.pem",
        key_location="/me.key",
        key_password="hidden",
        verify_hostname=False,
    )


@pytest.mark.parametrize(
    ("given", "password"),
    [
        ({"kafka.sasl.username": "bob", "kafka.sasl.password": "pw"}, "pw"),
        ({"kafka.sasl.jaas.config": JAAS.format("p;w")}, "p;w"),
        ({"kafka.sasl.jaas.config": JAAS.format('say \\"hi\\"\\\\')}, 'say "hi"\\'),
    ],
)
def test_sasl(given: dict[str, str], password: str) -> None:
    made = Connection.from_options({**SASL, **given})
    assert made.security == Security(
        tls=True, mechanism="SCRAM-SHA-512", username="bob", password=password
    )
    assert password not in repr(made)
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "no brokers were given"),
        ({"kafka.bootstrap.servers": ""}, "no brokers were given"),
        ({"kafka.bootstrap.servers": "nohost"}, "servers='nohost' names no brokers: say HOST:PORT"),
        ({"kafka.bootstrap.servers": "a:b"}, "servers='a:b' names no brokers: say HOST:PORT"),
        ({**AT, "kafka.default.api.timeout.ms": "soon"}, "'soon' is no positive number"),
        ({**AT, "kafka.security.protocol": "TLS"}, "TLS is none of PLAINTEXT, SSL"),
        ({**AT, "kafka.ssl.ca.location": "/ca.pem"}, "does nothing with .*=PLAINTEXT"),
        ({**AT, "kafka.sasl.username": "bob"}, "does nothing with .*=PLAINTEXT"),
        ({**AT, "kafka.security.protocol": "SASL_SSL"}, "mechanism=nothing is none of PLAIN"),
        ({**SASL, "kafka.sasl.mechanism": "GSSAPI"}, "GSSAPI is none of PLAIN"),
        (SASL, "SASL needs kafka.sasl.username"),
        ({**SASL, "kafka.ssl.cipher.suites": "X"}, "kafka.ssl.cipher.suites is not known here"),
        (
            {**AT, "kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/x.jks"},
            "x.jks is no PEM file: convert",
        ),
        (
            {**AT, "kafka.security.protocol": "SSL", "kafka.ssl.keystore.type": "JKS"},
            "JKS cannot be read here",
        ),
    ],
)
def test_what_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionsError, match=text):
        Connection.from_options(options)


@pytest.mark.parametrize("text", ["password=hidden", 'Krb5LoginModule required password="hidden";'])
def test_a_jaas_text_that_is_refused_is_not_shown(text: str) -> None:
    with pytest.raises(OptionsError) as got:
        Connection.from_options({**SASL, "kafka.sasl.jaas.config": text})
    assert "hidden" not in str(got.value)
