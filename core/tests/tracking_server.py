"""A small MLflow server: ``python tracking_server.py FOLDER PORT`` prints a line when it serves."""

import os
import sys
from pathlib import Path

folder, port = Path(sys.argv[1]), int(sys.argv[2])
os.environ |= {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{folder}/server.db",
    "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
    "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / "artifacts"),
    "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
}

from mlflow.server import app, handlers  # noqa: E402
from werkzeug.serving import make_server  # noqa: E402

handlers._get_tracking_store().search_experiments()
server = make_server("127.0.0.1", port, app, threaded=True)
print("serving", flush=True)
server.serve_forever()
