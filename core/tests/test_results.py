"""Stored results survive whatever stops a run, and an invocation is adopted only where that is right."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from leyden.claims import Cell, CellResult
from leyden.errors import LeydenError
from leyden.results import Results, code_version, measured_from, own_results

CELL = Cell(method="A", seed=0, setting={"M": 0.1, "momentum": None}, options={"epochs": 3})


def result(**changes: object) -> CellResult:
    values = {"cell": CELL, "status": "done", "measured": {"loss": 0.1}, "seconds": 1.5, "error": ""}
    return CellResult(**{**values, **changes})  # type: ignore[arg-type]


def test_a_stored_result_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    measured = {"loss": 0.1 + 0.2, "tiny": 5e-324, "curve": [1.0, 1 / 3], "infinite": math.inf}
    stored = result(measured=measured)
    Results(tmp_path).save(stored)
    assert Results(tmp_path).load(CELL) == stored


def test_a_nan_survives_storage(tmp_path: Path) -> None:
    Results(tmp_path).save(result(measured={"loss": math.nan}))
    loaded = Results(tmp_path).load(CELL)
    assert loaded is not None
    assert math.isnan(loaded.measured["loss"])  # type: ignore[arg-type]


def test_a_cell_without_a_result_loads_as_none(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.save(result())
    assert results.load(Cell(method="A", seed=1)) is None


def test_the_same_method_at_another_scale_has_a_result_of_its_own(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.save(result())
    assert results.load(Cell(method="A", seed=0, setting=CELL.setting, scale="smoke")) is None


def test_a_cell_is_in_flight_from_its_start_until_its_result(tmp_path: Path) -> None:
    results = Results(tmp_path / "new")
    results.start(CELL)
    assert results.in_flight([CELL, Cell(method="B", seed=0)]) == [CELL]
    results.save(result())
    assert results.in_flight([CELL]) == []


def test_a_discarded_cell_leaves_nothing(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.start(CELL)
    results.log(CELL).write_text("noise")
    results.save(result())
    results.discard(CELL)
    assert list(tmp_path.iterdir()) == []
    results.start(CELL)
    results.discard(CELL)
    assert list(tmp_path.iterdir()) == []


def test_the_table_has_the_order_of_the_cells(tmp_path: Path) -> None:
    cells = [Cell(method="A", seed=seed) for seed in range(5)]
    for cell in reversed(cells):
        Results(tmp_path).save(result(cell=cell))
    assert [entry.cell.seed for entry in Results(tmp_path).table(cells)] == [0, 1, 2, 3, 4]


def test_a_full_disk_leaves_the_former_result_whole(tmp_path: Path) -> None:
    Results(tmp_path).save(result())
    limit = textwrap.dedent(
        f"""
        import resource
        from pathlib import Path
        from leyden.claims import Cell, CellResult
        from leyden.results import Results
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY))
        cell = Cell(method="A", seed=0, setting={{"M": 0.1, "momentum": None}}, options={{"epochs": 3}})
        results = Results(Path({str(tmp_path)!r}))
        try:
            results.save(CellResult(cell=cell, status="done", measured={{"curve": [0.1] * 1000}}))
        except OSError:
            print("refused")
        """
    )
    done = subprocess.run([sys.executable, "-c", limit], capture_output=True, text=True, check=False)
    assert done.stdout == "refused\n", done.stderr
    assert Results(tmp_path).load(CELL) == result()
    assert len(list(tmp_path.iterdir())) == 1, "a draft was left behind"


def test_resume_adopts_the_newest_invocation_of_the_same_code(tmp_path: Path) -> None:
    with own_results(tmp_path, code="old", resume=False):
        pass
    for _ in range(2):
        with own_results(tmp_path, code="new", resume=False) as newest:
            pass
    with own_results(tmp_path, code="newer still", resume=False):
        pass
    with own_results(tmp_path, code="new", resume=True) as resumed:
        assert resumed.directory == newest.directory


def test_resume_after_a_change_of_the_code_begins_anew(tmp_path: Path) -> None:
    with own_results(tmp_path, code="old", resume=False) as old:
        old.save(result())
    with own_results(tmp_path, code="new", resume=True) as new:
        assert new.load(CELL) is None


def test_without_resume_every_invocation_begins_anew(tmp_path: Path) -> None:
    with own_results(tmp_path, code="same", resume=False) as first:
        first.save(result())
    with own_results(tmp_path, code="same", resume=False) as second:
        assert second.load(CELL) is None


def test_resume_leaves_alone_what_a_living_process_owns(tmp_path: Path) -> None:
    hold = textwrap.dedent(
        f"""
        from pathlib import Path
        from leyden.results import own_results
        with own_results(Path({str(tmp_path)!r}), code="same", resume=False) as results:
            print(results.directory, flush=True)
            input()
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        owned = Path(owner.stdout.readline().strip())
        with own_results(tmp_path, code="same", resume=True) as results:
            assert results.directory != owned
        owner.kill()
        owner.wait()
    (results.directory / "code").unlink()
    with own_results(tmp_path, code="same", resume=True) as results:
        assert results.directory == owned, "what a killed process owned can be adopted"


def test_two_who_resume_at_the_same_moment_do_not_share(tmp_path: Path) -> None:
    with own_results(tmp_path, code="same", resume=False):
        pass
    with (
        own_results(tmp_path, code="same", resume=True) as one,
        own_results(tmp_path, code="same", resume=True) as other,
    ):
        assert one.directory != other.directory


def test_adoption_forgets_what_was_in_flight(tmp_path: Path) -> None:
    with own_results(tmp_path, code="same", resume=False) as first:
        first.start(CELL)
    with own_results(tmp_path, code="same", resume=True) as resumed:
        assert resumed.directory == first.directory
        assert resumed.in_flight([CELL]) == []


def test_a_place_that_cannot_be_written_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    with (
        pytest.raises(LeydenError, match=r"^cannot store results in .*taken.*: Not a directory$"),
        own_results(tmp_path / "taken" / "claim", code="c", resume=False),
    ):
        pass


def test_numbers_of_every_origin_become_plain_floats() -> None:
    raw = {
        "a": 1,
        "b": np.float32(0.5),
        "c": np.array(2.0),
        "d": np.arange(3),
        "e": (1, np.int64(2)),
        "f": True,
    }
    measured = measured_from(raw)
    assert measured == {"a": 1.0, "b": 0.5, "c": 2.0, "d": [0.0, 1.0, 2.0], "e": [1.0, 2.0], "f": 1.0}
    kinds = {
        type(item) for value in measured.values() for item in (value if isinstance(value, list) else [value])
    }
    assert kinds == {float}


@pytest.mark.parametrize("value", ["0.5", None, {"a": 1}, [1, "x"], np.ones((2, 2)), [[1.0], [2.0]], 10**400])
def test_what_is_no_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match="as 'accuracy'"):
        measured_from({"accuracy": value})


def test_what_is_no_number_is_shown_in_one_line() -> None:
    with pytest.raises(TypeError, match=r"returned array\(\[\[1\., 1\.\], \[1\., 1\.\]\]\) as 'accuracy'"):
        measured_from({"accuracy": np.ones((2, 2))})


def test_a_claim_that_returns_no_mapping_is_refused() -> None:
    with pytest.raises(TypeError, match="not float"):
        measured_from(0.5)  # type: ignore[arg-type]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "some_claims"
    (folder / "configs").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "claims.py").write_text("x = 1\n")
    (folder / "configs" / "a.yaml").write_text("a: 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


@pytest.mark.parametrize("name", ["claims.py", "configs/a.yaml", "configs/b.yaml"])
def test_the_code_version_changes_with_every_file_of_the_package(package: Path, name: str) -> None:
    before = code_version("some_claims.claims")
    (package / name).write_text("changed: 2\n")
    assert code_version("some_claims.claims") != before


def test_the_code_version_changes_when_a_file_is_renamed(package: Path) -> None:
    before = code_version("some_claims.claims")
    (package / "claims.py").rename(package / "claim.py")
    assert code_version("some_claims.claims") != before


@pytest.mark.parametrize(
    "name", ["__pycache__/claims.cpython-311.pyc", ".mypy_cache/3.11/a", ".claims.py.swp"]
)
def test_what_tools_leave_does_not_change_the_code_version(package: Path, name: str) -> None:
    before = code_version("some_claims.claims")
    (package / name).parent.mkdir(parents=True, exist_ok=True)
    (package / name).write_bytes(b"x")
    assert code_version("some_claims.claims") == before


def test_the_code_version_of_a_single_module_changes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "single_claim.py"
    module.write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = code_version("single_claim")
    assert before == code_version("single_claim")
    module.write_text("x = 2\n")
    assert code_version("single_claim") != before
