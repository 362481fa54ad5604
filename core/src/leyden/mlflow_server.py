"""MLflow's server, as a child of `leyden ui`: ``python -m leyden.mlflow_server SOCKET EXPERIMENT``.

It serves a socket that its parent listens on. While its parent still checks the store it imports MLflow,
which takes seconds; it touches the store once its parent has written a line to its standard input, and ends
when that is closed. So it lives no longer than its parent, whatever ends that one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from uvicorn import Server

PATIENCE = 3.0
"""Seconds that requests in flight have when the server is told to end."""

_KINDS = ("claim", "compare")


@dataclass(frozen=True)
class Contents:
    """What a store holds that is worth a link.

    Attributes:
        experiment: identity of the experiment that runs go to; empty where it has none yet.
        run: identity of the newest run of a claim or a comparison; empty where there is none.
        run_experiment: identity of that run's experiment.
        name: the run's name, such as ``"sps_safe/digits"``.
    """

    experiment: str = ""
    run: str = ""
    run_experiment: str = ""
    name: str = ""


def environment(uri: str, artifact_location: str | None) -> dict[str, str]:
    """The environment of a server on a store; secrets in an URI are seen in no list of processes.

    Args:
        uri: the store.
        artifact_location: where artifacts of a new experiment go; None lets the server keep them itself.
    """
    place: Mapping[str, str] = {
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": "./mlartifacts",
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    }
    if artifact_location is not None:
        place = {"_MLFLOW_SERVER_ARTIFACT_ROOT": artifact_location}
    return {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        **os.environ,
        **place,
        "_MLFLOW_SERVER_FILE_STORE": uri,
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # it would start processes of its own
    }


def contents(client: MlflowClient, experiment: str) -> Contents:
    """Look up what a store holds.

    Args:
        client: MLflow's client of the store.
        experiment: name of the experiment that runs go to.

    Raises:
        MlflowException: if the store cannot be asked.
    """
    experiments = {found.name: found.experiment_id for found in client.search_experiments()}
    runs = [
        run
        for kind in _KINDS
        for run in client.search_runs(
            list(experiments.values()),
            f"tags.`leyden.kind` = '{kind}'",
            max_results=1,
            order_by=["attributes.start_time DESC"],
        )
    ]
    own = experiments.get(experiment, "")
    if not runs:
        return Contents(experiment=own)
    newest = max((run.info for run in runs), key=lambda info: info.start_time)
    return Contents(own, newest.run_id, newest.experiment_id, newest.run_name or newest.run_id)


def main() -> None:
    """Serve until standard input is closed."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    import uvicorn
    from mlflow import MlflowClient
    from mlflow.server.fastapi_app import app

    if not sys.stdin.readline():
        return
    found = contents(MlflowClient(), sys.argv[2])
    with contextlib.suppress(OSError):
        print(json.dumps(asdict(found)), flush=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    threading.Thread(target=_end_with_parent, args=(server,), daemon=True).start()
    server.run(sockets=[listener])
    os._exit(0)  # MLflow's own threads are not waited for


def _end_with_parent(server: Server) -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    server.should_exit = True
    time.sleep(PATIENCE)
    os._exit(1)


if __name__ == "__main__":
    main()
