"""Every setting of the service: its bounds, where its value came from, and what contradicts what.

A value is taken from the first of these that has it: a flag, the environment (``SECKILL_…``), a
TOML file, the default. The file is the one named by ``SECKILL_CONFIG``, else
``<data_dir>/seckill.toml``, else ``./seckill.toml``. The names are a promise to scripts.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
)
from pydantic_core import ErrorDetails

from seckill.runtime.bind_address import BindAddress
from seckill.runtime.contradictions import contradictions
from seckill.runtime.data_dir import DataDir
from seckill.runtime.errors import SettingsInvalid

__all__ = [
    "CONFIG_VARIABLE",
    "ENV_PREFIX",
    "LoadedSettings",
    "Settings",
    "Source",
    "bounds_of",
    "load_settings",
    "mask_url",
    "unit_of",
    "wants_own_postgres",
]

ENV_PREFIX: Final = "SECKILL_"
CONFIG_VARIABLE: Final = "SECKILL_CONFIG"
CONFIG_NAME: Final = "seckill.toml"

# What the supervisor tells its children this way is no setting (see lifeline.py).
_NOT_SETTINGS: Final = frozenset(
    {"SECKILL_CONFIG", "SECKILL_LISTEN_FD", "SECKILL_READY_FD", "SECKILL_LIFELINE_FD"}
)
_SHOWN_CHARACTERS_MAX: Final = 60
_CORES_MAX: Final = 256
_PORT_END: Final = 65_536
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_PROVIDER: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_KEY_PREFIX: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_APP_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

JwtAlgorithm = Literal["HS256", "RS256", "EdDSA"]


class Source(StrEnum):
    """Where the value of a setting came from, in the words of ``seckill settings``."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    STARTED_FOR_YOU = "started for you"
    RUNNING_SERVICE = "running service"
    DEFAULT = "default"


def _as_bind(text: str) -> str:
    return str(BindAddress.parse(text))


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _no_switch(value: object) -> object:
    """True and false are whole numbers to Python, and never meant as such."""
    if isinstance(value, bool):
        raise ValueError("must be a whole number")  # noqa: TRY004  -- pydantic reads ValueError
    return value


def _as_key_prefix(text: str) -> str:
    if not _KEY_PREFIX.fullmatch(text):
        raise ValueError("must be 1 to 64 of the letters A-Z a-z, digits, and _ . : -")
    return text


def _as_redis_url(text: str) -> str:
    if not text:
        return text
    parts = _url_parts(text)
    if parts.scheme in {"redis+sentinel", "redis+cluster"}:
        raise ValueError(f"{parts.scheme}:// is not in this version yet: name one server")
    if parts.scheme not in {"redis", "rediss", "unix"}:
        raise ValueError(
            "must begin with redis://, rediss:// or unix://, or be empty for a server of our own"
        )
    if parts.scheme == "unix" and not parts.path:
        raise ValueError("unix:// needs the path of the socket, such as unix:///run/redis.sock")
    return text


def _as_brokers(text: str) -> str:
    for broker in filter(None, (each.strip() for each in text.split(","))):
        host, _, port = broker.rpartition(":")
        if not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < _PORT_END:
            raise ValueError("must be host:port, separated by commas")
    return text


def _as_topic(text: str) -> str:
    if not _TOPIC.fullmatch(text):
        raise ValueError("must be 1 to 200 of the letters A-Z a-z, digits, and . _ -")
    return text


def _as_database_url(text: str) -> str:
    parts = _url_parts(text)
    scheme = parts.scheme.partition("+")[0]
    if scheme not in {"sqlite", "postgresql"}:
        raise ValueError("must begin with sqlite:/// or postgresql://")
    if scheme == "sqlite" and parts.path in {"", "/", "/:memory:"}:
        raise ValueError("sqlite needs a file that all processes share, such as sqlite:///a.db")
    return text


def _url_parts(text: str) -> Any:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise ValueError("is not a valid URL") from error
    return parts


def _as_provider(text: str) -> str:
    if text not in {"sandbox", "none"} and not _PROVIDER.fullmatch(text):
        raise ValueError("must be sandbox, none, or module:name such as mypay.alipay:make")
    return text


def _as_jwks_url(text: str) -> str:
    if not text:
        return text
    parts = _url_parts(text)
    host = parts.hostname or ""
    if not host or not (
        parts.scheme == "https" or (parts.scheme == "http" and BindAddress(host, 0).loopback)
    ):
        raise ValueError("must begin with https:// (http:// only to this machine itself)")
    return text


def _as_dashboards(text: str) -> str:
    if not text:
        return text
    # Only who has a dashboard pays for loading its client.
    from seckill.sentinel.transport.heartbeat import Dashboard  # noqa: PLC0415

    for one in _parts(text):
        try:
            Dashboard.parse(one)
        except ValueError as error:
            raise ValueError(f"must be host:port, or several separated by commas: {error}") from (
                None
            )
    return text


def _as_command_port(text: str) -> str:
    return str(BindAddress.parse(text)) if text else text


def _as_networks(text: str) -> str:
    for one in _parts(text):
        try:
            ip_network(one)
        except ValueError:
            raise ValueError(
                "must be addresses or networks such as 10.0.0.0/8, separated by commas"
            ) from None
    return text


def _as_app_name(text: str) -> str:
    if not _APP_NAME.fullmatch(text):
        raise ValueError("must be 1 to 64 of the letters A-Z a-z, digits, and _ . -")
    return text


def _parts(text: str) -> list[str]:
    return [part for part in (one.strip() for one in text.split(",")) if part]


def _setting(
    meaning: str, default: Any, *, unit: str = "", ge: int | None = None, le: int | None = None
) -> Any:
    """A field with what ``-h`` and the reference say about it."""
    return Field(default, description=meaning, json_schema_extra={"unit": unit}, ge=ge, le=le)


def _derived(
    meaning: str, factory: Any, told: str, *, ge: int | None = None, le: int | None = None
) -> Any:
    """A field whose default depends on this machine or on another setting."""
    return Field(
        default_factory=factory,
        description=meaning,
        json_schema_extra={"unit": "", "default_told": told},
        ge=ge,
        le=le,
    )


def _cores() -> int:
    """Cores that this process may use: a container may be given fewer than the machine has."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(usable or 1, _CORES_MAX))


def _ledger_url(earlier: Mapping[str, Any]) -> str:
    return f"sqlite:///{DataDir(earlier.get('data_dir', Path('.seckill').absolute())).ledger}"


def _auth_for(earlier: Mapping[str, Any]) -> str:
    bind = earlier.get("bind")
    return "dev" if bind and BindAddress.parse(bind).loopback else "jwt"


def _rule_store_for(earlier: Mapping[str, Any]) -> str:
    return "redis" if earlier.get("redis_url") else "file"


def _command_port_for(earlier: Mapping[str, Any]) -> str:
    return "127.0.0.1:8719" if earlier.get("sentinel_dashboard") else ""


def _provider_for(earlier: Mapping[str, Any]) -> str:
    return "sandbox" if earlier.get("auth") == "dev" else "none"


Count = Annotated[int, BeforeValidator(_no_switch)]


class Settings(BaseModel):
    """The settings in force. Read-only; made by :func:`load_settings`.

    Times are in milliseconds where the name ends in ``_ms``. "Each web process" means that the
    bound holds for one process, not for the service.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True
    )

    data_dir: Annotated[Path, AfterValidator(_absolute)] = _derived(
        "Folder of the ledger, the embedded Redis and the state of the run; made when missing.",
        lambda: Path(".seckill"),
        "./.seckill",
    )
    bind: Annotated[str, AfterValidator(_as_bind)] = _setting(
        "Address to serve HTTP on, host:port; port 0 takes a free one.", "127.0.0.1:8000"
    )
    workers: Count = _derived(
        "Number of web processes.", _cores, "number of cores", ge=1, le=_CORES_MAX
    )
    redis_url: Annotated[str, AfterValidator(_as_redis_url)] = _setting(
        "Redis to use: redis://, rediss:// or unix://; empty starts a server of our own.", ""
    )
    database_url: Annotated[str, AfterValidator(_as_database_url)] = _derived(
        "The order ledger: sqlite:///FILE, or postgresql://user:password@host:port/name; "
        "postgresql:// and nothing else starts a server of our own.",
        _ledger_url,
        "ledger.db in data_dir",
    )
    key_prefix: Annotated[str, AfterValidator(_as_key_prefix)] = _setting(
        "What every key name in Redis begins with; another one makes another service.", "seckill"
    )
    channel: Literal["direct", "kafka"] = _setting(
        "How orders reach the ledger: read from the outbox directly, or through Kafka.", "direct"
    )
    kafka_bootstrap: Annotated[str, AfterValidator(_as_brokers)] = _setting(
        "Kafka brokers, host:port separated by commas; empty with channel kafka starts one of our "
        "own.",
        "",
    )
    kafka_jars: str = _setting(
        "Folder with the jars of Apache Kafka for a broker of our own; empty: fetched once by "
        "Maven.",
        "",
    )
    kafka_topic: Annotated[str, AfterValidator(_as_topic)] = _setting(
        "Topic of the order messages; dead letters go to the one of this name and .dlt.",
        "seckill-order-topic",
    )
    kafka_group: Annotated[str, AfterValidator(_as_topic)] = _setting(
        "Consumer group of the order workers.", "seckill-orders"
    )
    kafka_partitions: Count = _setting(
        "Partitions of the topic when it is made; so many order workers can share it.",
        12,
        ge=1,
        le=1_000,
    )
    kafka_replication: Count = _setting(
        "Copies of each message when the topic is made; 0 is three, or as many as there are "
        "brokers.",
        0,
        ge=0,
        le=9,
    )
    kafka_retention_ms: Count = _setting(
        "How long the topic keeps its messages when it is made.",
        7 * 24 * 3_600_000,
        unit="ms",
        ge=60_000,
        le=366 * 24 * 3_600_000,
    )
    kafka_security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = _setting(
        "How to speak to the brokers: with TLS (ssl, sasl_ssl), with a login (sasl_…).",
        "plaintext",
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = _setting(
        "How the login is made.", "SCRAM-SHA-512"
    )
    kafka_sasl_username: str = _setting("Name of the login.", "")
    kafka_sasl_password: SecretStr = _setting("Password of the login.", SecretStr(""))
    kafka_ssl_ca: str = _setting(
        "File with the certificates that the brokers' are signed by; empty: the system's.", ""
    )
    kafka_ssl_certificate: str = _setting("File with our own certificate, where one is asked.", "")
    kafka_ssl_key: str = _setting("File with its private key.", "")
    kafka_ssl_key_password: SecretStr = _setting("Password of that file.", SecretStr(""))
    kafka_delivery_timeout_ms: Count = _setting(
        "Longest time that the relay waits for the brokers to take a message before it sends it "
        "again.",
        30_000,
        unit="ms",
        ge=1_000,
        le=600_000,
    )
    kafka_queue_messages_max: Count = _setting(
        "Messages of a relay that wait for the brokers; with more it stops reading the outbox.",
        100_000,
        unit="messages",
        ge=1,
        le=10_000_000,
    )
    kafka_batch_messages_max: Count = _setting(
        "Messages that an order worker writes in one transaction.",
        2_000,
        unit="messages",
        ge=1,
        le=10_000,
    )
    kafka_poll_interval_ms_max: Count = _setting(
        "Longest silence of an order worker before its partitions are given to another one.",
        300_000,
        unit="ms",
        ge=1_000,
        le=3_600_000,
    )
    kafka_session_timeout_ms: Count = _setting(
        "How long an order worker may be dead before that.",
        10_000,
        unit="ms",
        ge=500,
        le=300_000,
    )
    order_workers: Count = _setting(
        "Order workers that `seckill serve` runs.", 1, ge=1, le=_CORES_MAX
    )
    relays: Count = _setting(
        "Relays that `seckill serve` runs when the channel is kafka.", 1, ge=1, le=_CORES_MAX
    )
    durability: Literal["memory", "fsync", "replicated"] = _setting(
        "What a purchase survives once the buyer was told yes: our processes' death (memory), "
        "the death of Redis or the machine (fsync), the loss of the Redis master (replicated).",
        "fsync",
    )
    replicas_min: Count = _setting(
        "With durability replicated: replicas that must have a purchase before the buyer is told.",
        1,
        ge=1,
        le=16,
    )
    auth: Literal["dev", "jwt"] = _derived(
        "Who the buyer is: a signed token (jwt), or whoever the request says (dev; only where "
        "nobody but this machine can ask).",
        _auth_for,
        "dev on a loopback bind, jwt otherwise",
    )
    jwt_algorithm: JwtAlgorithm = _setting(
        "The one algorithm that tokens may be signed with.", "HS256"
    )
    jwt_secret: SecretStr = _setting("Secret of HS256, at least 32 bytes.", SecretStr(""))
    jwt_public_key: str = _setting(
        "Public key of RS256 or EdDSA: PEM text, or the path of a PEM file.", ""
    )
    jwt_jwks_url: Annotated[str, AfterValidator(_as_jwks_url)] = _setting(
        "Where to fetch public keys instead; https://.", ""
    )
    jwt_audience: str = _setting("Audience that a token must name; empty: not asked for.", "")
    jwt_issuer: str = _setting("Issuer that a token must name; empty: not asked for.", "")
    payment_provider: Annotated[str, AfterValidator(_as_provider)] = _derived(
        "Who takes the money: sandbox (a page of our own for trying things out, on loopback only), "
        "none, or module:name of what makes a provider of yours.",
        _provider_for,
        "sandbox with auth dev, none otherwise",
    )
    payment_webhook_secrets: SecretStr = _setting(
        "Secrets that the provider signs its news with, whsec_… separated by spaces, the newest "
        "first; beside those that the provider brings itself.",
        SecretStr(""),
    )
    order_defer_ms: Count = _setting(
        "How long the writing of orders may give way to the answering of buyers, while both want "
        "the same processors; with the direct channel. 0: not at all.",
        5_000,
        unit="ms",
        ge=0,
        le=60_000,
    )
    reaper: Literal["worker", "process", "none"] = _setting(
        "Where unpaid orders are ended and payments finished: beside the order worker, in a "
        "process of its own, or not in this run (`seckill reaper` elsewhere).",
        "worker",
    )
    reaper_every_ms: Count = _setting(
        "Pause between two looks for orders that are due.", 500, unit="ms", ge=20, le=60_000
    )
    sold_out_staleness_ms: Count = _setting(
        "Longest time that a web process may go on saying sold out after stock has come back.",
        250,
        unit="ms",
        ge=10,
        le=1_000,
    )
    batch_entries_max: Count = _setting(
        "Purchases that are decided in one call of Redis.", 512, unit="purchases", ge=1, le=512
    )
    batch_bytes_max: Count = _setting(
        "Size of one such call.", 262_144, unit="bytes", ge=4_096, le=1_048_576
    )
    queue_entries_max: Count = _setting(
        "Purchases that wait for such a call in each web process; more are refused at once.",
        20_000,
        unit="purchases",
        ge=1,
        le=1_000_000,
    )
    queue_wait_ms_max: Count = _setting(
        "Longest time that a purchase waits there before it is refused.",
        2_000,
        unit="ms",
        ge=10,
        le=60_000,
    )
    redis_timeout_ms: Count = _setting(
        "Longest wait for a connection to Redis and for a reply.",
        1_000,
        unit="ms",
        ge=50,
        le=60_000,
    )
    redis_start_timeout_ms: Count = _setting(
        "Longest time that our own Redis may take to load its data at the start.",
        60_000,
        unit="ms",
        ge=1_000,
        le=3_600_000,
    )
    body_bytes_max: Count = _setting(
        "Largest body of a buyer's request.", 4_096, unit="bytes", ge=256, le=1_048_576
    )
    body_timeout_ms: Count = _setting(
        "Longest time that a buyer may take to send it.", 5_000, unit="ms", ge=100, le=60_000
    )
    shutdown_grace_ms: Count = _setting(
        "Longest time that requests under way get to end when the service is stopped.",
        10_000,
        unit="ms",
        ge=0,
        le=600_000,
    )
    sse_streams_max: Count = _setting(
        "Open event streams of each web process; more are refused.",
        2_000,
        unit="streams",
        ge=0,
        le=100_000,
    )
    fence_rebuild: Literal["automatic", "operator"] = _setting(
        "When Redis has lost data of a sale: rebuild it from the ledger at once (automatic), or "
        "keep it closed until an operator types `seckill rebuild` (operator).",
        "automatic",
    )
    fence_lost_units: Literal["withhold", "sell"] = _setting(
        "Units of purchases that such a loss has cost their buyers: keep them off sale until an "
        "operator has decided (withhold), or sell them to others (sell).",
        "withhold",
    )
    fence_report_wait_ms: Count = _setting(
        "Longest wait for another host to say what it acknowledged, before a sale that is closed "
        "goes on without knowing.",
        3_000,
        unit="ms",
        ge=100,
        le=600_000,
    )
    clean_up_after_s: Count = _setting(
        "How long a sale must be over, with every order final, before its keys leave Redis; the "
        "ledger keeps its story. 0: never.",
        86_400,
        unit="s",
        ge=0,
        le=31_536_000,
    )
    audit_every_s: Count = _setting(
        "Pause between two audits in the background; 0: none. Audits take at most a twentieth of "
        "one worker's time, and in a rush the next one waits as long again at most.",
        60,
        unit="s",
        ge=0,
        le=86_400,
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "Least important kind of message that is logged.", "info"
    )
    log_format: Literal["console", "json"] = _setting(
        "One line for people (console) or one JSON object a line (json).", "console"
    )
    limit_per_user_per_s: Count = _setting(
        "Purchase requests of one user that each web process lets through; 0: no limit.",
        0,
        unit="requests a second",
        ge=0,
        le=1_000_000,
    )
    limit_per_address_per_s: Count = _setting(
        "Purchase requests of one address that each web process lets through; 0: no limit.",
        0,
        unit="requests a second",
        ge=0,
        le=1_000_000,
    )
    trusted_proxies: Count = _setting(
        "Proxies in front that write the client's address into proxy_header; with 0 the header is "
        "not believed and the peer of the connection counts.",
        0,
        unit="proxies",
        ge=0,
        le=16,
    )
    proxy_header: Literal["x-forwarded-for", "forwarded"] = _setting(
        "The header that the trusted proxies write.", "x-forwarded-for"
    )
    ipv6_prefix_bits: Count = _setting(
        "Leading bits of an IPv6 address that count as one address.", 64, unit="bits", ge=1, le=128
    )
    pre_warm: Literal["off", "on"] = _setting(
        "Whether warm-up rules on seckill-jk are warm when a sale starts (on), or let only a third "
        "through at first (off).",
        "off",
    )
    rule_store: Literal["file", "redis"] = _derived(
        "Where the rules of flow control are kept: on this host (file), or in Redis for all hosts "
        "of the service, with a copy on each (redis).",
        _rule_store_for,
        "file, or redis where redis_url names one",
    )
    sentinel_dashboard: Annotated[str, AfterValidator(_as_dashboards)] = _setting(
        "Sentinel dashboards to send heartbeats to, host:port separated by commas; empty: none.", ""
    )
    sentinel_bind: Annotated[str, AfterValidator(_as_command_port)] = _derived(
        "Address of the command port of flow control, host:port; the next free port is taken if it "
        "is not free. Empty: none.",
        _command_port_for,
        "127.0.0.1:8719 with a sentinel_dashboard, empty otherwise",
    )
    sentinel_allow: Annotated[str, AfterValidator(_as_networks)] = _setting(
        "Addresses and networks that may command there without a token, separated by commas.",
        "127.0.0.0/8,::1",
    )
    sentinel_token: SecretStr = _setting(
        "Token that lets command from anywhere else; empty: nobody may.", SecretStr("")
    )
    sentinel_app: Annotated[str, AfterValidator(_as_app_name)] = _setting(
        "Name under which the dashboard shows this service.", "seckill"
    )
    block_log_mb: Count = _setting(
        "Size of a file of the log of refusals, one log for each web process; 3 older files are "
        "kept. 0: no such log.",
        16,
        unit="MB",
        ge=0,
        le=300,
    )

    @property
    def bind_address(self) -> BindAddress:
        """Where to serve."""
        return BindAddress.parse(self.bind)

    @property
    def dashboards(self) -> tuple[str, ...]:
        """The Sentinel dashboards, one by one."""
        return tuple(_parts(self.sentinel_dashboard))

    @property
    def command_networks(self) -> tuple[str, ...]:
        """Who may command without a token, one by one."""
        return tuple(_parts(self.sentinel_allow))

    @property
    def data(self) -> DataDir:
        """The data directory."""
        return DataDir(self.data_dir)


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, and how they came about.

    Attributes:
        settings: the values in force.
        sources: where each came from, for every setting.
        config_file: the file that was read, if there was one.
        warnings: sentences about what was ignored, such as a mistyped variable.
    """

    settings: Settings
    sources: Mapping[str, Source]
    config_file: Path | None = None
    warnings: tuple[str, ...] = ()


def load_settings(flags: Mapping[str, object] | None = None) -> LoadedSettings:
    """Read the settings from flags, environment, file and defaults, and check them.

    Args:
        flags: what was given on the command line, by setting name; None means not given.

    Raises:
        SettingsInvalid: a value breaks a rule, values contradict each other, or the file cannot
            be read. The message is one sentence that names the setting as it was written.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    assert given.keys() <= Settings.model_fields.keys(), "a flag that is no setting"
    environment = _from_environment()
    config_file = _config_file(given.get("data_dir", environment.get("data_dir")))
    file = _from_file(config_file) if config_file else {}

    values: dict[str, Any] = {}
    sources = dict.fromkeys(Settings.model_fields, Source.DEFAULT)
    for source, found in (
        (Source.FILE, file),
        (Source.ENVIRONMENT, environment),
        (Source.FLAG, given),
    ):
        values |= found
        sources |= dict.fromkeys(found, source)

    def refuse(setting: str, rule: str) -> SettingsInvalid:
        return SettingsInvalid(
            setting, rule, written_as=_written_as(setting, sources[setting], config_file)
        )

    for name, value in values.items():
        # Settings travel to the children in their environment, which cannot hold this character.
        if isinstance(value, str) and "\0" in value:
            raise refuse(name, "must not contain the character NUL")
    try:
        settings = Settings.model_validate(values)
    except ValidationError as invalid:
        problem = invalid.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        raise refuse(name, _rule(name, problem, values.get(name))) from None
    for name, rule in contradictions(settings):
        raise refuse(name, rule)
    return LoadedSettings(settings, sources, config_file, _mistyped_variables())


def _from_environment() -> dict[str, Any]:
    variables = {variable.lower(): value for variable, value in os.environ.items()}
    found = {name: variables.get((ENV_PREFIX + name).lower()) for name in Settings.model_fields}
    # An empty variable means "not given", except where empty is a value of its own.
    return {
        name: value
        for name, value in found.items()
        if value is not None
        and (value or Settings.model_fields[name].annotation in {str, SecretStr})
    }


def _config_file(data_dir: object) -> Path | None:
    if named := os.environ.get(CONFIG_VARIABLE):
        return Path(named).expanduser()
    for folder in (Path(str(data_dir or ".seckill")).expanduser(), Path()):
        if (folder / CONFIG_NAME).is_file():
            return folder / CONFIG_NAME
    return None


def _from_file(path: Path) -> dict[str, Any]:
    written_as = f"the settings file {path}"
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise SettingsInvalid(
            "config", f"cannot be read: {error.strerror}", written_as=written_as
        ) from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise SettingsInvalid("config", f"is not valid TOML: {error}", written_as=written_as) from (
            error
        )
    for name in found:
        if name not in Settings.model_fields:
            close = difflib.get_close_matches(name, Settings.model_fields, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise SettingsInvalid(name, f"there is no such setting{hint}", written_as=(
                f"{name} in {path}"
            ))  # fmt: skip
    if "data_dir" in found and path.name == CONFIG_NAME and not os.environ.get(CONFIG_VARIABLE):
        # The search for the file began at the data directory, so this would move the goal.
        raise SettingsInvalid(
            "data_dir",
            "can only be set by --data-dir, by SECKILL_DATA_DIR, or in a file named by "
            f"{CONFIG_VARIABLE}",
            written_as=f"data_dir in {path}",
        )
    return found


def _mistyped_variables() -> tuple[str, ...]:
    """Sentences about variables that look like ours and are none.

    Not an error: an orchestrator sets variables such as SECKILL_PORT for a service named seckill.
    """
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    unknown = {
        name
        for name in os.environ
        if name.startswith(ENV_PREFIX) and name not in known | _NOT_SETTINGS
    }
    return tuple(
        f"{name} is no setting and was ignored; did you mean {close[0]}?"
        for name in sorted(unknown)
        if (close := difflib.get_close_matches(name, known, n=1, cutoff=0.8))
    )


def _written_as(setting: str, source: Source, config_file: Path | None) -> str:
    match source:
        case Source.FLAG:
            return "--" + setting.replace("_", "-")
        case Source.ENVIRONMENT:
            return ENV_PREFIX + setting.upper()
        case Source.FILE:
            return f"{setting} in {config_file}"
        case _:
            return setting


def _rule(name: str, problem: ErrorDetails, value: object) -> str:
    """What is wrong with one value, in words."""
    shown = (
        ""
        if Settings.model_fields[name].annotation is SecretStr
        else f" (it is {_shortened(mask_url(str(value)))})"
    )
    context = problem.get("ctx", {})
    match problem["type"]:
        case "value_error":
            return f"{context['error']}{shown}"
        case "literal_error":
            return f"must be one of {context['expected'].replace(chr(39), '')}{shown}"
        case "greater_than_equal" | "less_than_equal":
            lowest, highest = bounds_of(name)
            unit = unit_of(name)
            return f"must be between {lowest} and {highest}{' ' * bool(unit)}{unit}{shown}"
        case "int_parsing" | "int_type" | "int_from_float" | "int_parsing_size":
            return f"must be a whole number{shown}"
        case "string_type" | "path_type":
            return f"must be text{shown}"
        case _:
            return f"{problem['msg'].lower()}{shown}"


def _shortened(text: str) -> str:
    if len(text) > _SHOWN_CHARACTERS_MAX:
        text = text[: _SHOWN_CHARACTERS_MAX - 1] + "…"
    return repr(text)


def wants_own_postgres(settings: Settings) -> bool:
    """Whether the ledger is to be in a PostgreSQL that is started for the run."""
    return settings.database_url.rstrip("/") == "postgresql:"


def bounds_of(name: str) -> tuple[int | None, int | None]:
    """Smallest and largest value of a setting that is a number; None where there is no bound."""
    lowest = highest = None
    for rule in Settings.model_fields[name].metadata:
        lowest = getattr(rule, "ge", lowest)
        highest = getattr(rule, "le", highest)
    return lowest, highest


def unit_of(name: str) -> str:
    """What the numbers of a setting count; empty where the name says it."""
    extra = Settings.model_fields[name].json_schema_extra
    assert isinstance(extra, dict)
    return str(extra["unit"])


def mask_url(text: str) -> str:
    """The text with the passwords of URLs in it replaced by ``***``."""
    text = re.sub(r"(://[^:@/\s]*):\S+@", r"\1:***@", text)
    return re.sub(r"(?i)([?&][a-z_]*(?:password|secret|token)=)[^&\s]+", r"\1***", text)
