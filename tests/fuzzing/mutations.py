"""Mutations of files: bytes as disks and copies damage them, and values as programs and people get them wrong.

A seeded `random.Random` decides everything, so that a finding can be repeated.
"""

import contextlib
import hashlib
import json
import random
import re
import shutil
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aleator.foundation import file_sha256

# Values that readers tend to forget.
NUMBERS = (0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**400, 1e308, -1e308, 1e-320, float("nan"), float("inf"), -0.0)
TEXTS = ("", " ", "nan", "-1", "1e999", "0x1", "\0", "\r", '"', "\ufeff", "é" * 3, "../../x", "None", "{}", "[]", "💥")
VALUES = (*NUMBERS, *TEXTS, None, True, False, [], {}, [[]], [None], {"": None}, "x" * 5_000)
CELLS = (*TEXTS, '"', '""', ",", ";", "\t", "\n", "\r\n", "\n\n", "'", "=1+1", "x" * 140_000, "9" * 5_000, "1,5")


def damaged(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Bytes damaged in one of the ways of disks, copies and programs, and what was done."""
    data = bytearray(data)
    kind = draw.choice(["flip", "flip", "flip", "flips", "cut", "zeros", "swap", "grow", "byte"])
    place = draw.randrange(len(data))
    if kind == "flip":
        data[place] ^= 1 << draw.randrange(8)
    elif kind == "flips":
        for _ in range(draw.randint(2, 20)):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del data[place:]
    elif kind == "zeros":
        length = draw.choice([8, 64, 512, 4096])
        data[place : place + length] = bytes(len(data[place : place + length]))
    elif kind == "swap":
        other, length = draw.randrange(len(data)), draw.choice([4, 64, 512])
        data[place : place + length] = data[other : other + length]
    elif kind == "grow":
        data += bytes(draw.randrange(256) for _ in range(draw.choice([1, 100])))
    else:
        data[place] = draw.randrange(256)
    return bytes(data), kind


def mutate(case: Path, draw: random.Random) -> str:
    """Change one file of a case (a file, or a folder) in place; says what was done.

    Half of the changes of files with checksums get right checksums, so that they reach what comes after.
    """
    files = files_of(case)
    file = draw.choice(files)
    for _ in range(draw.choice([1, 1, 2, 4])):
        if draw.random() < 0.6 and _mutate_values(file, draw):
            continue
        data = file.read_bytes()
        file.write_bytes(damaged(data, draw)[0] if data else b"\0")
    if draw.random() < 0.5:
        sign(case)
    return file.name


def files_of(case: Path) -> list[Path]:
    """The files of a case, in a fixed order."""
    return sorted(path for path in case.rglob("*") if path.is_file()) if case.is_dir() else [case]


def copied(case: Path, folder: Path) -> Path:
    """A copy of a case in a folder, in place of an earlier one."""
    copy = folder / case.name
    if copy.is_dir():
        shutil.rmtree(copy)
    return Path(shutil.copytree(case, copy) if case.is_dir() else shutil.copyfile(case, copy))


def sign(case: Path) -> None:
    """Give changed files of a folder the checksums that they would have if they were meant."""
    if not case.is_dir():
        return
    for path in sorted(case.rglob("*.json"), key=lambda path: -len(path.parts)):  # the innermost first
        with contextlib.suppress(ValueError, RecursionError, AttributeError, TypeError, OSError, KeyError):
            document = json.loads(path.read_bytes())
            if str(document.get("format")).startswith("aleator-"):
                _sign_bundle(path, document)
            elif path.name == "checksums.json":
                sums = document["sha256"]
                document["sha256"] = {name: file_sha256(path.parent / name) for name in sums}
                path.write_text(json.dumps(document))


def _sign_bundle(path: Path, document: dict[str, Any]) -> None:
    tensors = path.parent / document["tensors"]["file"]
    digest = file_sha256(tensors)
    stem = path.name.removesuffix(".json")
    document["tensors"] = {"file": f"{stem}-{digest[:16]}.safetensors", "sha256": digest}
    tensors.rename(tensors.with_name(document["tensors"]["file"]))
    document.pop("sha256", None)
    document["sha256"] = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(document))


def _mutate_values(file: Path, draw: random.Random) -> bool:
    """Change a value, with the form of the file kept; False if the form is not known."""
    data = file.read_bytes()
    with contextlib.suppress(ValueError, RecursionError, struct.error, sqlite3.Error, IndexError, SyntaxError):
        if file.suffix == ".sqlite":
            return _mutate_ledger(file, draw)
        if file.suffix == ".safetensors":
            (length,) = struct.unpack("<Q", data[:8])
            header = _dumped(_mutated_json(json.loads(data[8 : 8 + length]), draw))
            file.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + length :])
            return True
        if data.startswith(b"\x93NUMPY"):
            file.write_bytes(_mutated_npy(data, draw))
            return True
        if file.suffix in (".json", ".body"):
            file.write_bytes(_dumped(_mutated_json(json.loads(data), draw)))
            return True
        if file.suffix == ".jsonl":
            lines = data.split(b"\n")
            number = draw.randrange(len(lines))
            lines[number] = _dumped(_mutated_json(json.loads(lines[number]), draw))
            file.write_bytes(b"\n".join(lines))
            return True
        if file.suffix in (".csv", ".txt", ".tsv"):
            file.write_bytes(_mutated_text(data, draw))
            return True
    return False


def _mutated_json(document: Any, draw: random.Random) -> Any:
    """A document with one value changed, left out, put in or wrapped."""
    places = list(_places(document))
    if not places:
        return draw.choice(VALUES)
    container, key = draw.choice(places)
    kind = draw.choice(["set", "set", "set", "remove", "add", "wrap", "number"])
    if kind == "remove":
        del container[key]
    elif kind == "add" and isinstance(container, dict):
        container[draw.choice(TEXTS)] = draw.choice(VALUES)
    elif kind == "wrap":
        container[key] = [container[key]]
    elif kind == "number" and isinstance(container[key], int | float):
        container[key] = draw.choice(NUMBERS)
    else:
        container[key] = draw.choice(VALUES)
    return document


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every value of a document, as its container and its key there."""
    if not isinstance(document, dict | list):
        return
    for key, value in list(document.items() if isinstance(document, dict) else enumerate(document)):
        yield document, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _dumped(document: Any) -> bytes:
    return json.dumps(document).encode()


def _mutated_npy(data: bytes, draw: random.Random) -> bytes:
    """An array with another shape, dtype or order in its header."""
    header = data[10 : 10 + struct.unpack("<H", data[8:10])[0]].decode("latin1")
    kind = draw.choice(["shape", "descr", "order", "text"])
    if kind == "shape":
        sizes = ", ".join(str(draw.choice([0, 1, 2, 3, 7, -1, 2**31, 2**62, 2**70])) for _ in range(draw.randint(0, 4)))
        header = re.sub(r"\([^)]*\)", f"({sizes},)" if sizes else "()", header)
    elif kind == "descr":
        dtypes = ("|O", "<U3", "|S2", "|V8", "<M8[s]", "<c16", "<f2", "<f16", "|b1", ">f8", "<i8", "", "<f4,<f4", "x")
        header = re.sub(r"'descr': '[^']*'", f"'descr': '{draw.choice(dtypes)}'", header)
    elif kind == "order":
        header = header.replace("False", "True")
    else:
        place = draw.randrange(len(header))
        header = header[:place] + draw.choice(["(", ")", "'", "{", "\n", "L", "9" * 99, "\\"]) + header[place + 1 :]
    packed = header.encode("latin1")
    return data[:8] + struct.pack("<H", len(packed)) + packed + data[10 + struct.unpack("<H", data[8:10])[0] :]


def _mutated_text(data: bytes, draw: random.Random) -> bytes:
    """A table with a cell, a line or its encoding changed."""
    text = data.decode()
    kind = draw.choice(["cell", "cell", "cell", "insert", "line", "encoding"])
    if kind == "encoding":
        return text.encode(draw.choice(["utf-16", "latin-1", "utf-8-sig", "utf-16-le"]), "replace")
    if kind == "line":
        lines = text.split("\n")
        lines.insert(draw.randrange(len(lines)), draw.choice(lines))
        return "\n".join(lines).encode()
    if kind == "insert":
        place = draw.randrange(len(text) + 1)
        return (text[:place] + draw.choice(CELLS) + text[place:]).encode()
    cells = re.split(r"([,;\n])", text)
    cells[draw.randrange(len(cells))] = draw.choice(CELLS)
    return "".join(cells).encode()


def _mutate_ledger(file: Path, draw: random.Random) -> bool:
    """A ledger with a cell, a row, a table or a number of its header changed, and no word about it."""
    with contextlib.closing(sqlite3.connect(file)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = draw.choice(tables)
        kind = draw.choice(["cell", "cell", "cell", "row", "table", "pragma"])
        if kind == "table":
            db.execute(f"DROP TABLE {table}")
        elif kind == "row":
            db.execute(f"DELETE FROM {table} WHERE rowid % 2 = {draw.randrange(2)}")
        elif kind == "pragma":
            db.execute(f"PRAGMA {draw.choice(['user_version', 'application_id'])} = {draw.choice([0, 1, 2, 3, 4, 99])}")
        else:
            column = draw.choice([name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")])
            rows = [row for (row,) in db.execute(f"SELECT rowid FROM {table}")]
            value = draw.choice(
                [b"", b"\xff" * 7, bytes(16), -1, 2**62, 1e300, "", "x", "[1]", '"\\ud800"', "1e999", "{}"]
            )
            if rows:
                db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, draw.choice(rows)))
        db.commit()
    return True
