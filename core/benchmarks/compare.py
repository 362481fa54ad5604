"""The command `leyden compare` on digits, and the same fits by hand: both times, and their ratio.

    python core/benchmarks/compare.py                 # fits of some seconds: a few minutes in all
    python core/benchmarks/compare.py --epochs 160    # fits of ten seconds
    python core/benchmarks/compare.py --quick         # short fits: whether it works, not how much it adds

Two things are tried, with 8 trials and 3 seeds each, two fits at a time. By hand means what a person would
write: a script that fits the same configurations, settings and seeds, and tests those that judge, by joblib
on two processes, with nothing tuned, tracked, stored or reported; with ``--tracked`` also with what
Lightning's MLFlowLogger keeps. Each is a command of its own, timed from start to end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from leyden.comparison.document import ArmFile
from leyden.worker import ONE_THREAD

JOBS = 2
TRIES = (["sps_safe.SPSSafe"], ["sps_safe.IMASPSSafe", "lambd=9.0"])
TRIALS, SEEDS = 8, 3


def configuration(epochs: int) -> dict[str, Any]:
    network = {"class_path": "leyden.tasks.mlp", "init_args": {"sizes": [64, 64, 64, 10]}}
    return {
        "model": {
            "class_path": "leyden.tasks.Classification",
            "init_args": {"backbone": network, "num_classes": 10},
        },
        "data": {"class_path": "leyden_datamodules.Digits", "init_args": {"batch_size": 64}},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.9}},
        "trainer": {"max_epochs": epochs, "accelerator": "cpu", "devices": 1},
    }


def timed(command: Sequence[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ONE_THREAD)
    elapsed = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return elapsed


def compared(epochs: int) -> float:
    """A whole comparison, into a store that is not there yet."""
    for former in Path().iterdir():
        shutil.rmtree(former) if former.is_dir() else former.unlink()
    Path("digits.yaml").write_text(yaml.safe_dump(configuration(epochs)))
    command = [sys.executable, "-m", "leyden", "compare", "--config", "digits.yaml"]
    for words in TRIES:
        command += ["--try", *words]
    command += ["--trials", str(TRIALS), "--seeds", str(SEEDS), "--metric", "val_accuracy"]
    return timed([*command, "--jobs", str(JOBS)])


def fits() -> list[tuple[dict[str, Any], bool]]:
    """The configuration of each fit of the comparison, and whether it is tested."""
    found = []
    for path in sorted(Path(".leyden/results/compare/digits").rglob("*.json")):
        cell = json.loads(path.read_text())["cell"]
        if cell["options"]["stage"] != "probe":
            document = ArmFile.load(cell["options"]["document"]).configured(cell["setting"])
            found.append(({**document, "seed_everything": cell["seed"]}, cell["options"]["stage"] == "judge"))
    return found


def fit(document: dict[str, Any], test: bool, tracked: bool) -> None:
    import torch
    from leyden.lightning import run_config

    torch.set_num_threads(1)
    settings = {"experiment_name": "by hand", "tracking_uri": "sqlite:///by-hand.db"}
    logger = {"class_path": "lightning.pytorch.loggers.MLFlowLogger", "init_args": settings}
    run_config(document, {"trainer.logger": logger if tracked else False}, test=test)


def by_hand(wanted: list[tuple[dict[str, Any], bool]], *, tracked: bool = False) -> float:
    Path("fits.json").write_text(json.dumps([(*each, tracked) for each in wanted]))
    return timed([sys.executable, __file__, "--fits", "fits.json"])


@contextlib.contextmanager
def empty_folder() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short fits")
    parser.add_argument("--epochs", type=int, default=40, help="the length of a fit")
    parser.add_argument("--rounds", type=int, default=2, help="how often both are timed, in turn")
    parser.add_argument("--tracked", action="store_true", help="by hand also with MLFlowLogger")
    parser.add_argument("--fits", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fits:
        from joblib import Parallel, delayed

        Parallel(n_jobs=JOBS)(delayed(fit)(*each) for each in json.loads(Path(arguments.fits).read_text()))
        return
    epochs, rounds = (3, 1) if arguments.quick else (arguments.epochs, arguments.rounds)
    ratios = []
    with empty_folder():
        for _ in range(rounds):
            whole = compared(epochs)
            wanted = fits()
            plain = by_hand(wanted)
            ratios.append(whole / plain)
            print(f"digits, {len(wanted)} fits of {epochs} epochs, {JOBS} at a time, one thread each")
            print(f"leyden compare {whole:.1f} s, by hand {plain:.1f} s, ratio {ratios[-1]:.2f}")
            if arguments.tracked:
                kept = by_hand(wanted, tracked=True)
                print(f"by hand with Lightning's MLFlowLogger {kept:.1f} s, ratio {whole / kept:.2f}")
    print(f"ratio {min(ratios):.2f} to {max(ratios):.2f}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
