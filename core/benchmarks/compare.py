"""A whole comparison on digits, and the same fits by hand; prints both times and what a comparison adds.

    python core/benchmarks/compare.py                 # fits of some seconds: a few minutes in all
    python core/benchmarks/compare.py --epochs 160    # fits of ten seconds
    python core/benchmarks/compare.py --quick         # short fits: whether it works, not how much it adds

Two things are tried, with 8 trials and 3 seeds each, two fits at a time. By hand means what a person would
write: the same configurations, settings and seeds, each fitted and, where it judges, tested, by joblib on two
processes, with nothing tuned, tracked, stored or reported.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from leyden.compare import compare
from leyden.comparison.document import ArmFile
from leyden.worker import ONE_THREAD
from rich.console import Console

JOBS = 2
TRIES = (["sps_safe.SPSSafe"], ["sps_safe.IMASPSSafe", "lambd=9.0"])


def configuration(epochs: int) -> dict[str, Any]:
    network = {"class_path": "leyden.tasks.mlp", "init_args": {"sizes": [64, 64, 64, 10]}}
    return {
        "model": {
            "class_path": "leyden.tasks.Classification",
            "init_args": {"backbone": network, "num_classes": 10},
        },
        "data": {"class_path": "leyden_datamodules.Digits", "init_args": {"batch_size": 64}},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.9}},
        "trainer": {"max_epochs": epochs, "accelerator": "cpu", "devices": 1, "log_every_n_steps": 8},
    }


def compared(epochs: int) -> float:
    Path("digits.yaml").write_text(yaml.safe_dump(configuration(epochs)))
    output = io.StringIO()
    began = time.perf_counter()
    status = compare(
        ["digits.yaml"],
        TRIES,
        trials=8,
        seeds=3,
        metric="val_accuracy",
        jobs=JOBS,
        console=Console(file=output, width=140),
    )
    elapsed = time.perf_counter() - began
    if status:
        raise SystemExit(output.getvalue())
    return elapsed


def fits() -> list[tuple[dict[str, Any], bool]]:
    """The configuration of each fit of the comparison, and whether it is tested."""
    found = []
    for path in sorted(Path(".leyden/results/compare/digits").rglob("*.json")):
        cell = json.loads(path.read_text())["cell"]
        if cell["options"]["stage"] != "probe":
            document = ArmFile.load(cell["options"]["document"]).configured(cell["setting"])
            found.append(({**document, "seed_everything": cell["seed"]}, cell["options"]["stage"] == "judge"))
    return found


def fit(document: dict[str, Any], test: bool) -> None:
    import torch
    from leyden.lightning import run_config

    torch.set_num_threads(1)
    run_config(document, {"trainer.logger": False}, test=test)


def by_hand(wanted: list[tuple[dict[str, Any], bool]]) -> float:
    from joblib import Parallel, delayed

    began = time.perf_counter()
    Parallel(n_jobs=JOBS)(delayed(fit)(document, test) for document, test in wanted)
    return time.perf_counter() - began


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
    arguments = parser.parse_args()
    epochs = 3 if arguments.quick else arguments.epochs
    os.environ.update(ONE_THREAD)
    with empty_folder():
        whole = compared(epochs)
        wanted = fits()
        plain = by_hand(wanted)
    load = os.getloadavg()[0]
    print(
        f"digits, {len(wanted)} fits of {epochs} epochs, {JOBS} at a time, one thread each; load {load:.1f}"
    )
    print(f"leyden compare {whole:.1f} s, the same fits by hand {plain:.1f} s, ratio {whole / plain:.2f}")


if __name__ == "__main__":
    main()
