"""The claim on SmolLM2 measures what it says."""

from __future__ import annotations

import pytest
import torch
from leyden.claims import CellResult, Scale, Table
from leyden_lk_losses import claims_smollm2
from leyden_lk_losses.claims_smollm2 import SmolLM2Heads


def measured(scale: str = "smoke", seeds: int = 1) -> Table:
    claim = SmolLM2Heads()
    return Table(
        CellResult(cell=cell, status="done", measured=claim.run(cell))
        for cell in claim.cells(Scale(scale, seeds))  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def table() -> Table:
    pytest.importorskip("transformers")
    return measured()


def test_both_losses_start_from_the_same_heads_text_and_vocabulary(table: Table) -> None:
    first, second = (result.measured for result in table)
    # After three steps the heads have hardly moved, and yet the losses differ.
    assert first["covered"] == second["covered"]
    assert 0 < abs(float(first["tau"]) - float(second["tau"])) < 0.01  # type: ignore[arg-type]


def test_tokens_a_pass_are_counted_by_the_decoder(table: Table) -> None:
    for result in table:
        counted, rounds = (float(result.measured[name]) for name in ("counted_tau", "rounds"))  # type: ignore[arg-type]
        assert 1 <= counted <= 4
        # Two texts of eight new tokens; a round gives at most one token more than there are heads.
        assert 16 / 4 <= rounds <= 16
        assert counted * rounds == pytest.approx(16)


def test_the_rate_that_a_loss_chose_is_told_and_an_edge_is_flagged(table: Table) -> None:
    verdicts = SmolLM2Heads().judge(table)
    assert all("KL chose lr 0.001 of 3, of which 0.001 at the edge" in verdict.detail for verdict in verdicts)


def test_the_prompt_is_left_out_of_what_is_trained_on_and_measured() -> None:
    pytest.importorskip("transformers")
    cell = SmolLM2Heads().cells(Scale("smoke", 1))[0]
    material = claims_smollm2._material(True, cell.options)  # type: ignore[arg-type]
    for part in (material.train, material.validation, material.test):
        whole, written = part.stored.batch([0, 1]), part.batch([0, 1])
        assert torch.equal(written.tokens, whole.tokens[:, 3:])
        assert torch.equal(written.target_logits, whole.target_logits[:, 3:])
        assert written.hidden is not None
        assert written.hidden.shape[1] == 12 - 3
