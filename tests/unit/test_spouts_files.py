"""Files: every complete line once, at one offset for ever, whatever appears or grows meanwhile."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hailstorm.errors import LogError
from hailstorm.spouts import Files, files
from hailstorm.spouts.file_index import CHUNK


def lines(source: Files, start: int = 0, end: int | None = None) -> dict[int, bytes]:
    """Offset to line, as far as the log goes."""
    end = source.latest()[0] if end is None else end
    return {
        offset: value
        for batch in source.read(0, start, end)
        for offset, value in zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    }


def test_files_are_read_in_order_of_name_and_later_ones_after_them(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text("{}\n[]\n")
    (tmp_path / "a.jsonl").write_text("1\n2\n")
    source = Files(str(tmp_path))
    assert lines(source) == {0: b"1", 1: b"2", 2: b"{}", 3: b"[]"}
    (tmp_path / "0.jsonl").write_text("0\n")
    assert lines(source) == {0: b"1", 1: b"2", 2: b"{}", 3: b"[]", 4: b"0"}
    assert lines(Files(str(tmp_path))) == lines(source)


def test_a_line_counts_when_its_newline_is_there(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    source = Files(str(file))
    file.write_bytes(b"one\ntw")
    assert lines(source) == {0: b"one"}
    with open(file, "ab") as out:
        out.write(b"o\nthree\n")
    assert lines(source) == {0: b"one", 1: b"two", 2: b"three"}


def test_a_complete_file_needs_no_last_newline_and_must_not_grow(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"one\ntwo")
    source = Files(str(tmp_path), grows=False)
    assert lines(source) == {0: b"one", 1: b"two"}
    with open(file, "ab") as out:
        out.write(b"more\n")
    with pytest.raises(LogError, match="HS-LOG-024"):
        source.latest()


def test_gz_files_are_read_when_they_are_whole(tmp_path: Path) -> None:
    packed = gzip.compress(b"one\ntwo\nthree")
    file = tmp_path / "a.log.gz"
    source = Files(str(tmp_path))
    for cut in (1, 5, len(packed) - 1):
        file.write_bytes(packed[:cut])
        assert source.latest() == {0: 0}
    file.write_bytes(packed)
    assert lines(source) == {0: b"one", 1: b"two", 2: b"three"}
    assert lines(source, 1, 2) == {1: b"two"}


def test_a_file_that_only_calls_itself_gz_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_text("plain text\n")
    with pytest.raises(LogError, match="is not a gz file"):
        Files(str(tmp_path)).latest()


def test_line_ends_of_windows_and_a_byte_order_mark_are_not_part_of_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\r\nth\ree\r\n")
    assert lines(Files(str(tmp_path))) == {0: b"one", 1: b"", 2: b"th\ree"}


def test_empty_lines_are_records_of_text_only(tmp_path: Path) -> None:
    for name in ("a.txt", "b.jsonl", "c.csv"):
        (tmp_path / name).write_text("1\n\n2\n")
    assert lines(Files(str(tmp_path))) == {0: b"1", 1: b"", 2: b"2", 3: b"1", 5: b"2", 6: b"1", 8: b"2"}


def test_the_header_of_each_csv_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,y\n3,4\n")
    source = Files(str(tmp_path / "*.csv"), header=True)
    assert lines(source) == {1: b"1,2", 3: b"3,4"}
    with open(tmp_path / "a.csv", "a") as out:
        out.write("5,6\n")
    assert lines(source) == {1: b"1,2", 3: b"3,4", 4: b"5,6"}


def test_only_files_that_are_meant_are_read(tmp_path: Path) -> None:
    for name in ("a.jsonl", ".b.jsonl", "c.tmp", "d.part", "e.ndjson"):
        (tmp_path / name).write_text(f'"{name}"\n')
    (tmp_path / "sub.txt").mkdir()
    assert list(lines(Files(str(tmp_path))).values()) == [b'"a.jsonl"', b'"e.ndjson"']
    assert len(lines(Files(str(tmp_path), format="text"))) == 4
    assert len(lines(Files(str(tmp_path)))) == 2
    assert list(lines(Files(str(tmp_path / "[cd]*"), format="text")).values()) == [b'"c.tmp"', b'"d.part"']


def test_a_pattern_may_go_down_into_folders(tmp_path: Path) -> None:
    for day in ("02", "01"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "a.txt").write_text(day + "\n")
    assert list(lines(Files(str(tmp_path / "*/a.txt"))).values()) == [b"01", b"02"]


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.write_text("one\n"),
        lambda file: file.write_text("eno\ntwo\n"),
        lambda file: file.write_text("eno\ntwo\nthree\n"),
    ],
)
def test_a_file_that_shrinks_or_is_replaced_is_an_error(tmp_path: Path, change: object) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n")
    source = Files(str(tmp_path))
    assert source.latest() == {0: 2}
    change(file)  # type: ignore[operator]
    os.utime(file, ns=(1, 1))
    with pytest.raises(LogError, match=r"HS-LOG-024.*a\.txt"):
        source.latest()
    with pytest.raises(LogError, match="HS-LOG-024"):
        list(source.read(0, 0, 2))


def test_a_file_that_is_gone_is_missed_only_when_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("two\n")
    source = Files(str(tmp_path))
    source.latest()
    (tmp_path / "a.txt").unlink()
    assert lines(source, 1) == {1: b"two"}
    with pytest.raises(LogError, match=r"a\.txt is gone"):
        list(source.read(0, 0, 1))


def test_a_folder_that_is_not_there_is_an_error_and_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="there is no folder"):
        Files(str(tmp_path / "no")).latest()
    assert Files(str(tmp_path)).latest() == {0: 0}
    assert Files(str(tmp_path / "*.csv")).latest() == {0: 0}
    assert os.listdir(tmp_path) == []


def test_an_index_that_was_lost_makes_another_log_of_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    before = Files(str(tmp_path / "*.jsonl")).identity()
    assert Files(str(tmp_path / "*.jsonl")).identity() == before
    shutil.rmtree(tmp_path / ".hailstorm-files")
    assert Files(str(tmp_path / "*.jsonl")).identity() != before  # which a run refuses without a word of its user


def test_the_index_can_be_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\n")
    source = Files("in", index="memory").resolve(tmp_path)
    assert lines(source) == {0: b"one"}
    assert os.listdir(tmp_path / "in") == ["a.txt"]
    assert os.listdir(tmp_path / "memory")


def test_an_unfinished_write_to_the_index_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    source = Files(str(tmp_path))
    source.latest()
    (index,) = (tmp_path / ".hailstorm-files").iterdir()
    for name, torn in ("chunks", b"\x01" * (CHUNK.itemsize - 1)), ("files.jsonl", b'{"name": "b'):
        with open(index / name, "ab") as out:
            out.write(torn)
    assert lines(Files(str(tmp_path))) == {0: b"one"}
    (tmp_path / "b.txt").write_text("two\n")
    assert lines(source) == {0: b"one", 1: b"two"}


def test_a_complete_file_whose_indexing_was_killed_halfway_is_indexed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hailstorm.spouts.lines.CHUNK_BYTES", 10)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"".join(b"%d\n" % n for n in range(100))))
    source = Files(str(tmp_path))
    whole = lines(source)
    (index,) = (tmp_path / ".hailstorm-files").iterdir()
    os.truncate(index / "chunks", 5 * CHUNK.itemsize)
    assert 0 < len(lines(Files(str(tmp_path)), 0, 5)) <= 5
    assert lines(Files(str(tmp_path))) == whole == {n: b"%d" % n for n in range(100)}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a.txt", "b.txt", "c.txt"]), st.text("xy\n", max_size=12), st.booleans()),
        max_size=12,
    ),
    st.integers(1, 9),
)
def test_lines_are_neither_lost_nor_doubled_nor_moved(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, bool]], chunk: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    source = Files(str(folder))
    seen: dict[int, bytes] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("hailstorm.spouts.lines.CHUNK_BYTES", chunk)
        for name, text, look in steps:
            with open(folder / name, "a") as out:
                out.write(text)
            if look:
                now = lines(source)
                assert {offset: now[offset] for offset in seen} == seen
                seen = now
        seen = lines(source)
    assert list(seen) == list(range(len(seen)))
    written = [line for file in folder.glob("*.txt") for line in file.read_bytes().split(b"\n")[:-1]]
    assert sorted(seen.values()) == sorted(written)
    shutil.rmtree(folder)


LOOKER = "import sys; from hailstorm.spouts import Files; s = Files(sys.argv[1])\nfor _ in range(150): s.latest()"


@pytest.mark.slow
def test_several_processes_may_look_at_once(tmp_path: Path) -> None:
    source = Files(str(tmp_path))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    lookers = [subprocess.Popen([sys.executable, "-c", LOOKER, str(tmp_path)], env=env) for _ in range(2)]

    def write() -> None:
        for number in range(300):
            with open(tmp_path / f"{number % 3}.jsonl", "a") as out:
                out.write(json.dumps(number) + "\n")
            source.latest()

    writer = threading.Thread(target=write)
    writer.start()
    assert [looker.wait(60) for looker in lookers] == [0, 0]
    writer.join(60)
    assert sorted(int(line) for line in lines(source).values()) == list(range(300))
    assert source.latest() == {0: 300}


def test_a_look_leaves_files_for_the_next_one_and_a_look_at_all_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_LOOK_BYTES", 4)
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"{name}1\n{name}2\n")
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"not whole yet")[:-3])  # nobody waits for its end
    source = Files(str(tmp_path))
    assert source.latest() == {0: 2}
    assert source.latest_of_all() == {0: 6}
    assert set(lines(source).values()) == {b"a1", b"a2", b"b1", b"b2", b"c1", b"c2"}
