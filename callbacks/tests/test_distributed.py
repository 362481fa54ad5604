from __future__ import annotations

import socket
from typing import Any

import pytest
import torch
from distributed_worker import RANKS, ROWS, work
from leyden_callbacks import GradientNorm, LossFeed
from loss_feed_testbed import EXACT, LinearLoss, loader, rows, trainer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(work, (port, str(folder)), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


def test_two_ranks_step_like_one_process_on_the_joint_batch(found: list[dict[str, Any]]) -> None:
    module = LinearLoss()
    run = trainer([LossFeed(), GradientNorm(every=1)], max_epochs=2)
    run.fit(module, loader(rows(ROWS), batch_size=2 * RANKS))
    alone = torch.stack([step.matching for step in module.optimizer.steps])
    assert len(alone) == 20
    for rank in found:
        torch.testing.assert_close(rank["joint"]["matching"], alone, **EXACT)
        torch.testing.assert_close(
            rank["joint"]["parameters"], torch.cat([module.x, module.y]).detach(), **EXACT
        )
        torch.testing.assert_close(rank["joint"]["norm"], run.callback_metrics["gradient_norm"], **EXACT)


def test_losses_of_a_window_are_averaged_over_the_ranks(found: list[dict[str, Any]]) -> None:
    raw = (found[0]["window"]["raw"] + found[1]["window"]["raw"]) / RANKS
    assert len(raw) == 10
    assert not torch.allclose(found[0]["window"]["raw"], found[1]["window"]["raw"])
    expected = torch.stack([raw[:4].sum(), raw[4:8].sum(), raw[8:].sum()])
    for rank in found:
        torch.testing.assert_close(rank["window"]["matching"], expected / 4, **EXACT)
        torch.testing.assert_close(rank["window"]["matching"], rank["window"]["by_gradient"], **EXACT)
        torch.testing.assert_close(rank["window"]["mean"], expected / torch.tensor([4, 4, 2]), **EXACT)
        torch.testing.assert_close(rank["window"]["read"], rank["window"]["mean"], **EXACT)


def test_ranks_exchange_their_losses_once_a_step(found: list[dict[str, Any]]) -> None:
    assert [rank["window"]["reductions"] for rank in found] == [3, 3]


def test_ranks_agree_on_a_loss_that_is_infinite_on_one_of_them(found: list[dict[str, Any]]) -> None:
    for rank in found:
        finite = torch.isfinite(rank["infinite"]["matching"])
        assert (~finite).nonzero().tolist() == [[3]]
    torch.testing.assert_close(
        found[0]["infinite"]["matching"], found[1]["infinite"]["matching"], equal_nan=True, rtol=0, atol=0
    )


def test_losses_match_the_gradient_of_sharded_parameters(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert len(rank["sharded"]["matching"]) == 5
        assert rank["sharded"]["moved"] > 1e-3
        torch.testing.assert_close(rank["sharded"]["matching"], rank["sharded"]["by_gradient"], **EXACT)


def test_gradient_norm_is_that_of_the_whole_and_not_of_the_shard(found: list[dict[str, Any]]) -> None:
    for rank in found:
        torch.testing.assert_close(rank["sharded"]["norm"], rank["sharded"]["whole_norm"], **EXACT)
        assert rank["sharded"]["local_norm"] < 0.99 * rank["sharded"]["norm"]


def test_global_norm_sums_shards_once_and_copies_once(found: list[dict[str, Any]]) -> None:
    for rank in found:
        torch.testing.assert_close(
            rank["placements"]["norm"], rank["placements"]["expected"], rtol=1e-6, atol=0
        )
