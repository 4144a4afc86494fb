"""The public face of the room."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import seckill.sentinel as room

SOURCES = Path(room.__file__).parent


def test_every_public_name_is_there() -> None:
    assert sorted(room.__all__) == room.__all__
    for name in room.__all__:
        assert getattr(room, name) is not None


def test_it_imports_nothing_else_of_ours_and_no_third_party() -> None:
    for path in SOURCES.rglob("*.py"):
        allowed = {"redis"} if path.parent.name == "redis" else set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert not name.startswith("seckill") or name.startswith("seckill.sentinel"), path
                third_party = {"msgspec", "redis", "fastapi", "starlette"} - allowed
                assert name.split(".")[0] not in third_party, path


def test_without_a_redis_client_all_but_its_own_package_can_be_imported() -> None:
    names = sorted(
        ".".join(("seckill.sentinel", *path.relative_to(SOURCES).with_suffix("").parts))
        for path in SOURCES.rglob("*.py")
        if path.parent.name != "redis" and path.name != "__init__.py"
    )
    program = f"import sys; sys.modules['redis'] = None; import {', '.join(names)}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_kinds_of_rules_do_not_know_each_other() -> None:
    kinds = ["flow", "circuitbreaking", "system", "authority", "hotparam"]
    for kind in kinds:
        for path in (SOURCES / kind).glob("*.py"):
            text = path.read_text(encoding="utf-8")
            for other in kinds:
                assert other == kind or f"seckill.sentinel.{other}" not in text, path


def test_each_kind_is_cut_alike() -> None:
    for kind in ("flow", "circuitbreaking", "system", "authority", "hotparam"):
        files = {path.name for path in (SOURCES / kind).glob("*.py")}
        assert {"__init__.py", "rule.py", "manager.py", "slot.py"} <= files
