"""Wheels alone are enough: a new virtual environment, no checkout in sight, the three ways of use."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "core",
    "callbacks",
    "datamodules",
    "plugins/sps_safe",
    "plugins/harm",
    "plugins/warmup",
    "plugins/milp_layer",
    "plugins/ffolayer",
    "plugins/asym_perturb",
    "plugins/hankel",
    "plugins/lk_losses",
    "plugins/simplenorm",
)

PLAIN_SCRIPT = """
from functools import partial
import torch, lightning
from leyden.tasks import Classification, mlp
from leyden_sps_safe import IMASPSSafe


def train(batch_size, accumulate):
    lightning.seed_everything(0)
    optimizer = partial(IMASPSSafe, lambd=9.0)
    task = Classification(mlp([8, 16, 3]), num_classes=3, optimizer=optimizer)
    trainer = lightning.Trainer(max_epochs=2, accumulate_grad_batches=accumulate, logger=False,
                                enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(task, torch.utils.data.DataLoader(data, batch_size=batch_size))
    return torch.nn.utils.parameters_to_vector(task.parameters()).detach()


torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.randint(3, (256,)))
small, large = train(16, 4), train(64, 1)
start = torch.nn.utils.parameters_to_vector(mlp([8, 16, 3]).parameters()).detach()
print("difference", float((small - large).abs().max()))
assert torch.allclose(small, large, rtol=0, atol=1e-6), (small - large).abs().max()
assert (small - start).abs().max() > 1e-2
"""


def run(*command: str | Path, cwd: Path, status: int = 0, **environment: str) -> str:
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "VIRTUAL_ENV", "LEYDEN", "MLFLOW"))
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean, "OMP_NUM_THREADS": "1", **environment},
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == status, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new virtual environment that holds leyden-sps-safe, installed from wheels."""
    folder = tmp_path_factory.mktemp("wheels")
    wheels, environment = folder / "dist", folder / "venv"
    run(
        sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", wheels,
        *(ROOT / package for package in PACKAGES), cwd=folder,
    )  # fmt: skip
    assert len(list(wheels.glob("*.whl"))) == len(PACKAGES)
    venv.create(environment, with_pip=True)
    pip = environment / "bin" / "pip"
    lazily = "--no-compile"  # most of what is installed is never imported here
    run(pip, "install", "-q", lazily, "torch==2.13.0", cwd=folder)
    run(pip, "install", "-q", lazily, "--find-links", wheels, "leyden-sps-safe", cwd=folder)
    return environment / "bin"


@pytest.mark.slow
def test_a_plugin_installed_from_wheels_is_listed_trains_and_serves_a_plain_script(
    installed: Path, tmp_path: Path
) -> None:
    where = run(
        installed / "python", "-c", "import leyden_sps_safe; print(leyden_sps_safe.__file__)", cwd=tmp_path
    )
    assert str(ROOT) not in where

    listing = run(installed / "leyden", "plugins", cwd=tmp_path)
    assert "sps_safe" in listing
    assert str(ROOT) not in listing

    run(installed / "leyden", "fit", "--config", "sps_safe/digits", "--trainer.max_epochs=1", cwd=tmp_path)
    assert (tmp_path / "leyden.db").stat().st_size > 0
    assert list((tmp_path / "leyden-runs").rglob("*.ckpt"))

    (tmp_path / "plain.py").write_text(PLAIN_SCRIPT)
    printed = run(installed / "python", "plain.py", cwd=tmp_path)
    assert "difference" in printed
