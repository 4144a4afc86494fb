"""Settings: which source wins, what is refused, and in which words."""

import json
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from seckill.runtime.bind_address import BindAddress
from seckill.runtime.errors import SettingsInvalid
from seckill.runtime.settings import Settings, Source, load_settings, mask_url
from seckill.runtime.settings_report import (
    setting_texts,
    settings_environment,
    settings_markdown,
    settings_report,
    with_run_settings,
    with_started_redis,
    write_run_settings,
)

REPOSITORY = Path(__file__).parents[3]
SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of ours, and an empty folder to stand in."""
    for name in list(os.environ):
        if name.startswith("SECKILL_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def refusal(**flags: object) -> str:
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(flags)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_without_anything_the_defaults_hold_and_say_so(tmp_path: Path) -> None:
    loaded = load_settings()
    settings = loaded.settings
    assert settings.bind == "127.0.0.1:8000"
    assert settings.data_dir == tmp_path / ".seckill"
    assert settings.database_url == f"sqlite:///{tmp_path}/.seckill/ledger.db"
    assert settings.durability == "fsync"
    assert settings.auth == "dev"
    assert settings.workers >= 1
    assert set(loaded.sources.values()) == {Source.DEFAULT}
    assert set(loaded.sources) == set(Settings.model_fields)
    assert loaded.warnings == ()


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "seckill.toml").write_text(
        "workers = 2\nqueue_entries_max = 20\nbody_bytes_max = 2000\n"
    )
    monkeypatch.setenv("SECKILL_WORKERS", "3")
    monkeypatch.setenv("SECKILL_QUEUE_ENTRIES_MAX", "30")
    loaded = load_settings({"workers": 4, "bind": None})
    settings, sources = loaded.settings, loaded.sources
    assert (settings.workers, sources["workers"]) == (4, Source.FLAG)
    assert (settings.queue_entries_max, sources["queue_entries_max"]) == (30, Source.ENVIRONMENT)
    assert (settings.body_bytes_max, sources["body_bytes_max"]) == (2000, Source.FILE)
    assert sources["bind"] is Source.DEFAULT


def test_the_file_is_the_named_one_else_that_of_the_data_dir_else_that_of_this_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "seckill.toml").write_text("workers = 1")
    assert load_settings().settings.workers == 1
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "seckill.toml").write_text("workers = 2")
    assert load_settings({"data_dir": "data"}).settings.workers == 2
    monkeypatch.setenv("SECKILL_DATA_DIR", "data")
    assert load_settings().settings.workers == 2
    (tmp_path / "other.toml").write_text("workers = 3\ndata_dir = 'elsewhere'")
    monkeypatch.setenv("SECKILL_CONFIG", "other.toml")
    monkeypatch.delenv("SECKILL_DATA_DIR")
    loaded = load_settings()
    assert loaded.settings.workers == 3
    assert loaded.settings.data_dir == tmp_path / "elsewhere"


def test_an_empty_variable_is_not_given_but_empties_a_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "seckill.toml").write_text("workers = 2\nredis_url = 'redis://h:1/0'")
    monkeypatch.setenv("SECKILL_WORKERS", "")
    monkeypatch.setenv("SECKILL_REDIS_URL", "")
    loaded = load_settings()
    assert (loaded.settings.workers, loaded.sources["workers"]) == (2, Source.FILE)
    assert (loaded.settings.redis_url, loaded.sources["redis_url"]) == ("", Source.ENVIRONMENT)


def test_a_setting_is_named_as_it_was_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert refusal(workers=0).startswith("--workers: must be between 1 and 256")
    monkeypatch.setenv("SECKILL_WORKERS", "257")
    assert refusal() == "SECKILL_WORKERS: must be between 1 and 256 (it is '257')"
    monkeypatch.delenv("SECKILL_WORKERS")
    (tmp_path / "seckill.toml").write_text("batch_entries_max = 1025")
    assert refusal() == (
        "batch_entries_max in seckill.toml: must be between 1 and 512 purchases (it is '1025')"
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"workers": "four"}, "--workers: must be a whole number (it is 'four')"),
        ({"workers": True}, "--workers: must be a whole number"),
        ({"workers": 1.5}, "--workers: must be a whole number"),
        ({"workers": "1" * 5000}, "--workers: must be a whole number"),
        ({"durability": "disk"}, "--durability: must be one of memory, fsync or replicated"),
        ({"jwt_algorithm": "none"}, "--jwt-algorithm: must be one of HS256"),
        ({"bind": "8000"}, "--bind: must be host:port"),
        ({"bind": ":8000"}, "--bind: must be host:port"),
        ({"bind": "::1:8000"}, "--bind: an IPv6 address must stand in brackets"),
        ({"bind": "[::1:8000"}, "--bind: an IPv6 address must stand in brackets"),
        ({"bind": "[127.0.0.1]:8000"}, "--bind: only an IPv6 address stands in brackets"),
        ({"bind": "127.0.0.1:65536"}, "--bind: the port must be between 0 and 65535"),
        ({"bind": "127.0.0:80"}, "--bind: the host must be an IP address or a host name"),
        ({"bind": "a b:80"}, "--bind: the host must be an IP address or a host name"),
        ({"bind": "127.0.0.1:٣"}, "--bind: must be host:port"),
        ({"redis_url": "localhost:6379"}, "--redis-url: must begin with redis://"),
        ({"redis_url": "redis+cluster://a:1"}, "redis+cluster:// is not in this version yet"),
        ({"redis_url": "redis+sentinel://a:1"}, "redis+sentinel:// is not in this version yet"),
        ({"redis_url": "unix://"}, "--redis-url: unix:// needs the path of the socket"),
        ({"redis_url": "redis://h:port"}, "--redis-url: is not a valid URL"),
        ({"database_url": "mysql://h/d"}, "--database-url: must begin with sqlite:/// or"),
        ({"database_url": "sqlite://"}, "--database-url: sqlite needs a file"),
        ({"database_url": "sqlite:///:memory:"}, "--database-url: sqlite needs a file"),
        ({"key_prefix": "a{b}"}, "--key-prefix: must be 1 to 64 of"),
        ({"key_prefix": ""}, "--key-prefix: must be 1 to 64 of"),
        ({"jwt_jwks_url": "http://keys.example/x"}, "--jwt-jwks-url: must begin with https://"),
        ({"jwt_issuer": "a\0b"}, "--jwt-issuer: must not contain the character NUL"),
        ({"jwt_issuer": 7}, "--jwt-issuer: must be text"),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(flags: dict[str, object], said: str) -> None:
    assert said in refusal(**flags)


def public_pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


KAFKA = {"channel": "kafka", "kafka_bootstrap": "h:9092"}


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"kafka_bootstrap": "h:9092"}, "--kafka-bootstrap: names a Kafka, and channel is direct"),
        ({"channel": "kafka", "kafka_security_protocol": "ssl"}, "--kafka-security-protocol: ssl needs a Kafka named by kafka_bootstrap"),
        ({**KAFKA, "kafka_security_protocol": "sasl_ssl"}, "--kafka-security-protocol: sasl_ssl needs kafka_sasl_username and kafka_sasl_password"),
        ({**KAFKA, "kafka_sasl_username": "ann"}, "--kafka-sasl-username: is of no use with kafka_security_protocol plaintext"),
        ({**KAFKA, "kafka_sasl_password": "secret"}, "--kafka-sasl-password: is of no use with"),
        ({**KAFKA, "kafka_ssl_ca": __file__}, "--kafka-ssl-ca: is of no use with kafka_security_protocol plaintext"),
        ({**KAFKA, "kafka_security_protocol": "ssl", "kafka_ssl_ca": "/no/ca.pem"}, "--kafka-ssl-ca: there is no file /no/ca.pem"),
        ({**KAFKA, "kafka_security_protocol": "ssl", "kafka_ssl_key": __file__}, "kafka_ssl_certificate: is needed"),
        ({"sentinel_dashboard": "h:8080", "sentinel_bind": ""}, "--sentinel-bind: a sentinel_dashboard has"),
        ({"durability": "replicated"}, "--durability: replicated needs a Redis with replicas"),
        ({"auth": "jwt", "jwt_secret": SECRET, "bind": "0.0.0.0:80", "payment_provider": "sandbox"}, "--payment-provider: sandbox lets whoever opens its page"),
        ({"payment_provider": "none", "payment_webhook_secrets": "whsec_x"}, "--payment-webhook-secrets: does not go with payment_provider none"),
        ({"payment_webhook_secrets": "whsec_x"}, "--payment-webhook-secrets: each must be whsec_ and 24 to 64 bytes"),
        ({"auth": "dev", "bind": "0.0.0.0:80"}, "--auth: dev believes whatever a request says"),
        ({"auth": "dev", "bind": "[::]:80"}, "--auth: dev believes"),
        ({"auth": "dev", "bind": "shop.example:80"}, "--auth: dev believes"),
        ({"bind": "0.0.0.0:80"}, "auth: jwt (bind is 0.0.0.0:80) needs a key"),
        ({"auth": "jwt"}, "--auth: jwt (bind is 127.0.0.1:8000) needs a key"),
        ({"auth": "jwt", "jwt_secret": "short"}, "--jwt-secret: must have at least 32 bytes for HS256"),
        ({"auth": "jwt", "jwt_secret": SECRET, "jwt_jwks_url": "https://k/x"}, "--jwt-jwks-url: does not go with jwt_algorithm HS256"),
        ({"auth": "jwt", "jwt_secret": SECRET, "jwt_algorithm": "RS256"}, "--jwt-secret: does not go with jwt_algorithm RS256"),
        ({"auth": "jwt", "jwt_public_key": "x", "jwt_jwks_url": "https://k/x", "jwt_algorithm": "RS256"}, "--jwt-jwks-url: does not go with jwt_public_key"),
        ({"auth": "jwt", "jwt_public_key": "/no/such.pem", "jwt_algorithm": "RS256"}, "--jwt-public-key: the file /no/such.pem cannot be read"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other_stop_the_start(
    flags: dict[str, object], said: str
) -> None:
    assert said in refusal(**flags)


def test_a_public_key_must_fit_its_algorithm_and_be_public(
    tmp_path: Path, rsa_key: rsa.RSAPrivateKey
) -> None:
    flags = {"auth": "jwt", "jwt_algorithm": "RS256"}
    wrong = "must be a public key in PEM form that fits RS256"
    private = rsa_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    assert wrong in refusal(**flags, jwt_public_key=private)
    other = public_pem(ec.generate_private_key(ec.SECP256R1()))
    assert wrong in refusal(**flags, jwt_public_key=other)
    (tmp_path / "noise.pem").write_bytes(b"\xff\x00")
    assert wrong in refusal(**flags, jwt_public_key="noise.pem")
    (tmp_path / "key.pem").write_text(public_pem(rsa_key))
    assert load_settings({**flags, "jwt_public_key": "key.pem"}).settings.auth == "jwt"
    assert load_settings({**flags, "jwt_public_key": public_pem(rsa_key)}).settings.auth == "jwt"


@pytest.mark.parametrize("bind", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"])
def test_dev_is_the_default_only_where_nobody_else_can_ask(bind: str) -> None:
    assert load_settings({"bind": bind}).settings.auth == "dev"


def test_an_address_reads_as_it_is_written() -> None:
    assert BindAddress.parse("[::1]:80") == BindAddress("::1", 80)
    assert str(BindAddress.parse("[2001:db8::1]:443")) == "[2001:db8::1]:443"
    assert str(BindAddress.parse("shop.example:0")) == "shop.example:0"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("workers = ", "is not valid TOML"),
        ("worker = 4", "worker in seckill.toml: there is no such setting; did you mean workers?"),
        ("[web]\nworkers = 4", "web in seckill.toml: there is no such setting"),
        ("workers = [1]", "workers in seckill.toml: must be a whole number"),
        ("data_dir = 'x'", "data_dir in seckill.toml: can only be set by --data-dir"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "seckill.toml").write_text(content)
    assert said in refusal()


def test_a_file_that_is_named_and_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECKILL_CONFIG", "/no/such/file.toml")
    assert (
        refusal()
        == "the settings file /no/such/file.toml: cannot be read: No such file or directory"
    )


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "seckill.toml").write_bytes(b"workers = \xff")
    assert "is not valid TOML" in refusal()


def test_a_mistyped_variable_is_told_and_one_of_an_orchestrator_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECKILL_WORKER", "4")
    monkeypatch.setenv("SECKILL_PORT", "tcp://10.0.0.1:80")
    monkeypatch.setenv("SECKILL_READY_FD", "7")
    assert load_settings().warnings == (
        "SECKILL_WORKER is no setting and was ignored; did you mean SECKILL_WORKERS?",
    )


def test_no_secret_is_shown_anywhere() -> None:
    loaded = load_settings(
        {
            "auth": "jwt",
            "jwt_secret": SECRET,
            "redis_url": "redis://user:hunter2@h:1/0",
            "database_url": "postgresql://user:hunter2@h/d?password=hunter2",
        }
    )
    shown = json.dumps(settings_report(loaded)) + repr(loaded)
    assert SECRET not in shown
    report = settings_report(loaded)
    assert report["jwt_secret"] == {"value": "***", "source": "flag"}
    assert report["redis_url"]["value"] == "redis://user:***@h:1/0"
    assert "hunter2" not in json.dumps(report)
    assert SECRET[:31] not in refusal(auth="jwt", jwt_secret=SECRET[:31])
    assert "hunter2" not in refusal(redis_url="http://:hunter2@h")


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://:p@w@h:1", "redis://:***@h:1"),
        ("redis://h:1/0", "redis://h:1/0"),
        ("unix:///a.sock?password=x&db=1", "unix:///a.sock?password=***&db=1"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
    ],
)
def test_passwords_of_urls_are_masked(url: str, masked: str) -> None:
    assert mask_url(url) == masked


def test_a_child_reads_exactly_the_settings_of_its_supervisor(
    monkeypatch: pytest.MonkeyPatch, rsa_key: rsa.RSAPrivateKey
) -> None:
    loaded = load_settings(
        {
            "workers": 3,
            "bind": "[::1]:8000",
            "auth": "jwt",
            "jwt_algorithm": "RS256",
            "jwt_public_key": public_pem(rsa_key),
            "data_dir": "with space é",
        }
    )
    # Somebody edits the file while the service runs: a child that is started again must not see it.
    loaded.settings.data.create()
    (loaded.settings.data_dir / "seckill.toml").write_text("workers = 9\nnonsense = 1")
    for name, value in settings_environment(loaded.settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir("/")
    assert load_settings().settings == loaded.settings


def test_another_terminal_finds_what_the_running_service_works_on(tmp_path: Path) -> None:
    serving = load_settings({"key_prefix": "mine", "bind": "127.0.0.1:9000"})
    serving.settings.data.create()
    write_run_settings(with_started_redis(serving, "redis://127.0.0.1:11111/0"))
    found = with_run_settings(load_settings())
    assert found.settings.key_prefix == "mine"
    assert found.sources["key_prefix"] is Source.RUNNING_SERVICE
    assert found.settings.bind == "127.0.0.1:9000"
    assert settings_report(found)["redis_url"] == {
        "value": "redis://127.0.0.1:11111/0",
        "source": "started for you",
    }
    explicit = with_run_settings(load_settings({"redis_url": "redis://other:1/0"}))
    assert explicit.settings.redis_url == "redis://other:1/0"
    serving.settings.data.run_settings.write_text("{half")
    assert with_run_settings(load_settings()) == load_settings()


def test_another_terminal_asks_for_tokens_as_the_running_service_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {
        "bind": "0.0.0.0:9000",
        "jwt_secret": "x" * 32,
        "jwt_audience": "shop",
        "jwt_issuer": "door",
    }
    serving = load_settings(given)
    serving.settings.data.create()
    write_run_settings(serving)
    found = with_run_settings(load_settings())
    assert (found.settings.auth, found.settings.jwt_algorithm) == ("jwt", "HS256")
    assert (found.settings.jwt_audience, found.settings.jwt_issuer) == ("shop", "door")
    assert found.sources["auth"] is Source.RUNNING_SERVICE
    # The key that tokens are signed with is no other command's business.
    assert not found.settings.jwt_secret.get_secret_value()
    assert "x" * 32 not in serving.settings.data.run_settings.read_text()
    monkeypatch.setenv("SECKILL_AUTH", "dev")
    assert with_run_settings(load_settings()).settings.auth == "dev"


def test_each_setting_says_what_it_means_and_each_number_is_bounded() -> None:
    for text in setting_texts():
        field = Settings.model_fields[text.name]
        assert text.meaning.endswith("."), text.name
        if field.annotation is int:
            assert text.allowed, f"{text.name} has no bound"


def test_the_reference_is_the_one_that_the_model_makes() -> None:
    page = REPOSITORY / "docs" / "reference" / "settings.md"
    assert page.read_text() == settings_markdown(), (
        "write it anew: python -c 'from seckill.runtime.settings_report import settings_markdown; "
        'print(settings_markdown(), end="")\' > docs/reference/settings.md'
    )
