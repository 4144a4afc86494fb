"""Settings as others read them: a person, a script, a child process, another command.

``seckill settings`` and the reference are made of the model itself, so they cannot differ from it.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from seckill.runtime.data_dir import write_atomically
from seckill.runtime.settings import (
    CONFIG_VARIABLE,
    ENV_PREFIX,
    LoadedSettings,
    Settings,
    Source,
    bounds_of,
    mask_url,
    unit_of,
    wants_own_postgres,
)

__all__ = [
    "SettingText",
    "setting_texts",
    "settings_environment",
    "settings_markdown",
    "settings_report",
    "with_run_settings",
    "with_started_kafka",
    "with_started_postgres",
    "with_started_redis",
    "write_run_settings",
]

# What a command in another terminal must know to work on the same data as the running service,
# and to be let in. No secret of a buyer's token is among them.
_RUN_SETTINGS: Final = (
    "bind", "redis_url", "database_url", "key_prefix", "channel", "kafka_bootstrap", "durability",
    "kafka_topic", "kafka_group", "kafka_security_protocol", "kafka_sasl_mechanism",
    "kafka_sasl_username", "kafka_sasl_password", "kafka_ssl_ca", "kafka_ssl_certificate",
    "kafka_ssl_key", "kafka_ssl_key_password", "replicas_min", "auth",
    "jwt_algorithm", "jwt_audience", "jwt_issuer", "pre_warm",
    "rule_store", "redis_timeout_ms", "payment_provider", "reaper_every_ms",
)  # fmt: skip


_STARTED: Final = "redis_started_for_you"
_KAFKA_STARTED: Final = "kafka_started_for_you"
_POSTGRES_STARTED: Final = "postgres_started_for_you"


@dataclass(frozen=True, slots=True)
class SettingText:
    """What ``-h`` and the reference say about one setting.

    Attributes:
        allowed: the bound in words; empty where any text is allowed.
        default: the default in words; empty means empty text.
    """

    name: str
    variable: str
    flag: str
    meaning: str
    allowed: str
    default: str


def setting_texts() -> tuple[SettingText, ...]:
    """All settings, in the order of the model."""
    return tuple(_text(name) for name in Settings.model_fields)


def _text(name: str) -> SettingText:
    field = Settings.model_fields[name]
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    choices = getattr(field.annotation, "__args__", ())
    lowest, highest = bounds_of(name)
    if choices:
        allowed = ", ".join(choices)
    elif lowest is not None and highest is not None:
        allowed = f"{lowest:,} to {highest:,} {unit_of(name)}".strip()
    else:
        allowed = ""
    default = extra.get("default_told")
    if default is None:
        default = "" if isinstance(field.default, SecretStr) else field.default
    return SettingText(
        name=name,
        variable=ENV_PREFIX + name.upper(),
        flag="--" + name.replace("_", "-"),
        meaning=field.description or "",
        allowed=allowed,
        default=str(default),
    )


_PAGE_HEAD: Final = """\
# Settings

A value is taken from the first of these that has it: a flag, the environment, a TOML file, the
default. The file is the one named by `SECKILL_CONFIG`, else `seckill.toml` in the data directory,
else `seckill.toml` in the current folder; in it a setting stands under its name (`workers = 4`).
`seckill settings` shows each value and where it came from. An empty variable counts as not given
where the setting is a number or a choice. A wrong value, or two that contradict each other, stop
the start with one sentence.

This page is made from the program; a test compares the two.

| name | variable | default | allowed | meaning |
| --- | --- | --- | --- | --- |
"""


def settings_markdown() -> str:
    """The reference page ``docs/reference/settings.md``, whole."""
    rows = [
        f"| `{text.name}` | `{text.variable}` | {text.default or 'empty'} | {text.allowed} "
        f"| {text.meaning} |"
        for text in setting_texts()
    ]
    return _PAGE_HEAD + "\n".join(rows) + "\n"


def settings_report(loaded: LoadedSettings) -> dict[str, dict[str, Any]]:
    """``{"name": {"value": …, "source": …}}`` for ``seckill settings --json``, secrets masked."""
    return {
        name: {"value": _shown(name, loaded.settings), "source": str(loaded.sources[name])}
        for name in Settings.model_fields
    }


def _shown(name: str, settings: Settings) -> Any:
    value = getattr(settings, name)
    match value:
        case SecretStr():
            return "***" if value.get_secret_value() else ""
        case Path():
            return str(value)
        case str() if name.endswith("_url"):
            return mask_url(value)
        case _:
            return value


def settings_environment(settings: Settings) -> dict[str, str]:
    """The settings as variables for a child, so that it runs on exactly these.

    The file is switched off for it: a child that is started again must not read what somebody
    changed meanwhile, or one service would run on two sets of settings.
    """
    variables = {CONFIG_VARIABLE: "/dev/null"}
    for name in Settings.model_fields:
        value = getattr(settings, name)
        text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        variables[ENV_PREFIX + name.upper()] = text
    return variables


def write_run_settings(loaded: LoadedSettings) -> None:
    """Leave in the data directory what other commands need to work on the same data.

    Readable by this user only, since URLs may hold passwords.

    Raises:
        OSError: it could not be written.
    """
    settings = loaded.settings
    values: dict[str, Any] = {name: _plain(getattr(settings, name)) for name in _RUN_SETTINGS}
    values[_STARTED] = loaded.sources["redis_url"] is Source.STARTED_FOR_YOU
    values[_KAFKA_STARTED] = loaded.sources["kafka_bootstrap"] is Source.STARTED_FOR_YOU
    values[_POSTGRES_STARTED] = loaded.sources["database_url"] is Source.STARTED_FOR_YOU
    write_atomically(settings.data.run_settings, json.dumps(values, indent=1).encode())


def with_run_settings(loaded: LoadedSettings) -> LoadedSettings:
    """These settings, with what the service on this data directory runs on where nothing was said.

    A value that was given by flag, variable or file stays. To be called only while the service
    runs (see ``status.py``); unchanged when it has left nothing to read.
    """
    try:
        found = json.loads(loaded.settings.data.run_settings.read_bytes())
    except (OSError, ValueError):
        return loaded
    # Who asks for a server of our own, in a variable say, means the one that was started.
    asked_for = "database_url" if wants_own_postgres(loaded.settings) else ""
    taken = {
        name: SecretStr(found[name]) if _is_secret(name) else found[name]
        for name in _RUN_SETTINGS
        if name in found
        and (loaded.sources[name] is Source.DEFAULT or name == asked_for)
        and found[name] != _plain(getattr(loaded.settings, name))
    }
    settings = loaded.settings.model_copy(update=taken)
    sources = dict(loaded.sources) | dict.fromkeys(taken, Source.RUNNING_SERVICE)
    for name, started in (
        ("redis_url", _STARTED),
        ("kafka_bootstrap", _KAFKA_STARTED),
        ("database_url", _POSTGRES_STARTED),
    ):
        if name in taken and found.get(started):
            sources[name] = Source.STARTED_FOR_YOU
    return replace(loaded, settings=settings, sources=sources)


def _is_secret(name: str) -> bool:
    return Settings.model_fields[name].annotation is SecretStr


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def with_started_kafka(loaded: LoadedSettings, bootstrap: str) -> LoadedSettings:
    """These settings with the address of the Kafka that was started for the user."""
    return replace(
        loaded,
        settings=loaded.settings.model_copy(update={"kafka_bootstrap": bootstrap}),
        sources=dict(loaded.sources) | {"kafka_bootstrap": Source.STARTED_FOR_YOU},
    )


def with_started_postgres(loaded: LoadedSettings, database_url: str) -> LoadedSettings:
    """These settings with the address of the PostgreSQL that was started for the user."""
    return replace(
        loaded,
        settings=loaded.settings.model_copy(update={"database_url": database_url}),
        sources=dict(loaded.sources) | {"database_url": Source.STARTED_FOR_YOU},
    )


def with_started_redis(loaded: LoadedSettings, redis_url: str) -> LoadedSettings:
    """These settings with the address of the Redis that was started for the user."""
    return replace(
        loaded,
        settings=loaded.settings.model_copy(update={"redis_url": redis_url}),
        sources=dict(loaded.sources) | {"redis_url": Source.STARTED_FOR_YOU},
    )
