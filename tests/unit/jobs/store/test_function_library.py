"""How the library of Lua functions is put together, and called."""

import re
from pathlib import Path

import pytest

import jobs
from jobs.store.call import call_function, ignore_reply
from jobs.store.function_library import MAX_OTHER_LIBRARIES, SHARED_PARTS, function_library

LUA = Path(jobs.__file__).parent / "store" / "lua"
SHARED = [LUA / f"{part}.lua" for part in SHARED_PARTS]
FUNCTIONS = sorted(set(LUA.rglob("*.lua")) - set(SHARED))
STORE = sorted((Path(jobs.__file__).parent / "store").rglob("*.py"))
DEFINED = re.compile(r"^local (?:function )?(\w+)", re.MULTILINE)
DEFINED_KEY = re.compile(r"^(?:function )?keys\.(\w+)", re.MULTILINE)
#: A name that is no field of a table.
NAME = re.compile(r"(?<![\w)\]]\.)\b\w+")


def lua_code(path: Path) -> str:
    """Without comments and strings."""
    return re.sub(r"'[^'\n]*'", "''", re.sub("--.*", "", path.read_text()))


def test_every_file_is_part_of_the_library() -> None:
    assert {*LUA.glob("*.lua"), *(LUA / "placing").glob("*.lua")} == set(SHARED)
    assert {path.stem for path in FUNCTIONS} == set(function_library().functions)
    assert len(FUNCTIONS) == len({path.stem for path in FUNCTIONS})


def test_a_shared_part_uses_those_before_it_only() -> None:
    defined = {part: set(DEFINED.findall((LUA / f"{part}.lua").read_text())) for part in SHARED_PARTS}
    for position, part in enumerate(SHARED_PARTS):
        later = set().union(*(defined[name] for name in SHARED_PARTS[position + 1 :]))
        assert not later & set(NAME.findall(lua_code(LUA / f"{part}.lua"))), part


def test_every_shared_function_is_used() -> None:
    code = " ".join(lua_code(path) for path in [*SHARED, *FUNCTIONS])
    for part in SHARED_PARTS:
        for name in DEFINED.findall((LUA / f"{part}.lua").read_text()):
            assert len(re.findall(rf"\b{name}\b", code)) > 1, f"{name} of {part}.lua"


def test_the_keys_that_are_used_are_those_that_are_named() -> None:
    named = set(DEFINED_KEY.findall((LUA / "keys.lua").read_text()))
    others = [path for path in [*SHARED, *FUNCTIONS] if path.name != "keys.lua"]
    assert set(re.findall(r"\bkeys\.(\w+)", " ".join(map(lua_code, others)))) == named


def test_only_one_file_spells_keys_out() -> None:
    spelled = [path.name for path in [*SHARED, *FUNCTIONS] if "'sy:" in path.read_text()]
    assert spelled == ["keys.lua"]


def test_the_library_and_its_functions_carry_the_digest_of_the_source() -> None:
    library = function_library()
    prefix, digest = library.name.split("_")
    assert prefix == "shardyard"
    assert re.fullmatch("[0-9a-f]{12}", digest)
    assert {function.registered_name for function in library.functions.values()} == {
        f"{name}_{digest}" for name in library.functions
    }


def test_arguments_go_by_the_names_of_the_lua_file_in_its_order() -> None:
    call = call_function("acquire_lead", ignore_reply, ttl_ms=5, candidate="me")
    assert call.command[2:] == (0, "me", 5)
    for wrong in ({"candidate": "me"}, {"candidate": "me", "ttl_ms": 5, "more": 1}, {"candidate": "me", "ttl": 5}):
        with pytest.raises(TypeError, match="acquire_lead takes candidate, ttl_ms"):
            call_function("acquire_lead", ignore_reply, **wrong)


@pytest.mark.parametrize("path", FUNCTIONS, ids=lambda path: path.stem)
def test_a_function_names_its_arguments_in_one_place(path: Path) -> None:
    body = lua_code(path)
    named = len(function_library().functions[path.stem].arguments)
    assert not re.search(rf"ARGV\[[1-{max(named, 1)}]\]", body) or named == 0
    assert len(re.findall(r"= +unpack\(ARGV|=\n +unpack\(ARGV", body)) == (1 if named else 0)


def test_every_function_is_called_from_the_store() -> None:
    code = "".join(path.read_text() for path in STORE)
    assert {name for name in function_library().functions if f'"{name}"' not in code} == set()


def test_other_libraries_are_deleted_when_there_are_many() -> None:
    library = function_library()

    def listed(others: int) -> list[list[bytes]]:
        names = [library.name, *(f"shardyard_{number:012x}" for number in range(others))]
        return [[b"library_name", name.encode(), b"engine", b"LUA"] for name in names]

    assert library.delete_commands(listed(MAX_OTHER_LIBRARIES)) == []
    deleted = library.delete_commands(listed(MAX_OTHER_LIBRARIES + 1))
    assert len(deleted) == MAX_OTHER_LIBRARIES + 1
    assert ("FUNCTION", "DELETE", library.name) not in deleted
