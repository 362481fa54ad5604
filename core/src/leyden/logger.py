"""Leyden's logger for Lightning, and the trained model as an MLflow model.

Logging a step costs a line in a file; a helper process carries it to MLflow (`leyden.tracking`).
"""

from __future__ import annotations

import contextlib
import copy
import sys
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor, nn

from leyden.errors import TrackingError
from leyden.tracking import RunWriter, active_run, process_session, resolve_store, status_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAVE_DIRECTORY = "leyden-runs"


class _Handle:
    """The run of a logger and of its copies, opened once."""

    def __init__(self) -> None:
        self.run: RunWriter | None = None
        self.owned = False

    def __deepcopy__(self, memo: dict[int, Any]) -> _Handle:
        return self


class LeydenLogger(Logger):
    """Logs to MLflow, without waiting for it.

    It attaches to the run that is active (`leyden.tracking.use_run`), which then somebody else ends. Without
    one it starts a run of its own when something is first logged, in the store that
    `leyden.tracking.resolve_store` finds. Copies and pickled copies log to the same run. Under DDP only rank
    zero logs.

    Args:
        experiment: MLflow experiment; by default the one that plugins.toml names.
        run_name: the run's name; by default the script's.
        tags: tags of the run.
        figures: whether to keep figures and images; callbacks look at ``keeps_figures`` before they draw.
    """

    keeps_figures = True

    def __init__(
        self,
        experiment: str | None = None,
        run_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        *,
        figures: bool = True,
    ) -> None:
        super().__init__()
        self.keeps_figures = figures
        self._experiment = experiment
        self._run_name = run_name
        self._tags = dict(tags or {})
        self._step = 0
        self._handle = _Handle()
        self._handle.run = active_run()

    @property
    @rank_zero_experiment
    def experiment(self) -> RunWriter:
        """The run. Its first use opens it: where no run is active, the tracking store must answer."""
        handle = self._handle
        if handle.run is None:
            handle.run = active_run()
        if handle.run is None:
            name = self._run_name or Path(sys.argv[0]).stem or "run"
            session = process_session(resolve_store())
            handle.run = session.run(name, experiment=self._experiment_name(), tags=self._tags)
            handle.owned = True
        return handle.run

    @property
    def name(self) -> str:
        """The experiment."""
        return self._handle.run.experiment if self._handle.run else self._experiment_name()

    @property
    def version(self) -> str | None:
        """A short identity of the run; None on other ranks than zero."""
        return self.experiment.key[:12] if _is_rank_zero() else None

    @property
    def save_dir(self) -> str:
        """Where checkpoints go: below it, a folder an experiment and a run."""
        return SAVE_DIRECTORY

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float | Tensor], step: int | None = None) -> None:
        """Log numbers; tensors of one device are fetched together."""
        self._step = self._step if step is None else int(step)
        self.experiment.metrics(_numbers(metrics), self._step)

    @rank_zero_only
    def log_hyperparams(self, params: Mapping[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Log hyper-parameters but Lightning's own, which begin with _; nested ones get dotted names."""
        flat = {name: value for name, value in flatten(params).items() if not name.startswith("_")}
        if flat:
            self.experiment.params(flat)

    @rank_zero_only
    def log_text(self, content: str, file_name: str) -> None:
        """Keep a text, such as the resolved configuration, with the run."""
        self.experiment.text(content, file_name)

    @rank_zero_only
    def log_artifact(self, path: str | Path, folder: str = "") -> None:
        """Keep a file or a folder with the run."""
        self.experiment.artifact(path, folder)

    @rank_zero_only
    def log_figure(self, name: str, figure: Figure, step: int | None = None) -> None:
        """Keep a matplotlib figure with the run, as ``figures/NAME.png``."""
        self._keep_image(name, step, lambda path: figure.savefig(path))

    @rank_zero_only
    def log_image(self, key: str, images: Sequence[Any], step: int | None = None, **kwargs: Any) -> None:
        """Keep images with the run, as ``figures/KEY_0.png`` and so on.

        Args:
            key: their name.
            images: arrays or tensors of shape (height, width), (height, width, channels) or (channels,
                height, width), floats in 0 to 1 or bytes.
            step: the step they belong to.
            kwargs: nothing more; it is what Lightning's other loggers take.
        """
        from matplotlib.image import imsave

        for index, image in enumerate(images):
            pixels = _pixels(image)
            self._keep_image(
                f"{key}_{index}", step, lambda path, pixels=pixels: imsave(path, pixels, cmap="gray")
            )

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run, unless somebody else does; Lightning calls it after fit, test and the others."""
        run = self._handle.run
        if run is None or not self._handle.owned:
            return
        if status == "success":
            run.end("FINISHED")
        else:  # Lightning says "failed" also when it was interrupted; the exception that is on its way tells
            error = sys.exception()
            with contextlib.suppress(TrackingError):  # what stopped the training is what the user should see
                run.end("FAILED" if error is None else status_of(error))

    def __getstate__(self) -> dict[str, Any]:
        if _is_rank_zero():
            self.experiment  # noqa: B018 - opened now, so that a copy in another process logs to the same run
        return self.__dict__

    def __deepcopy__(self, memo: dict[int, Any]) -> LeydenLogger:
        twin = self.__class__.__new__(self.__class__)
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def _experiment_name(self) -> str:
        if self._experiment is None:
            from leyden.settings import load_settings

            self._experiment = load_settings().tracking.experiment
        return self._experiment

    def _keep_image(self, name: str, step: int | None, save: Any) -> None:
        if not self.keeps_figures:
            return
        suffix = "" if step is None else f"_step{step}"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name.replace('/', '_')}{suffix}.png"
            save(path)
            self.experiment.artifact(path, "figures")


def log_model(
    run: RunWriter,
    model: nn.Module,
    input_example: Tensor,
    *,
    name: str = "model",
    pip_requirements: Sequence[str] | None = None,
    serialization_format: str | None = None,
) -> None:
    """Keep a trained model with its run, as an MLflow model that ``mlflow models serve`` runs.

    It is saved with its signature, the example and explicit requirements, so that nothing is looked up on the
    network. This imports MLflow in the calling process, once, for about two seconds.

    Args:
        run: the run.
        model: the model, as trained; a `LightningModule` counts by its ``forward``.
        input_example: a small batch that the model accepts; with two rows or more, other batch sizes are
            accepted, too.
        name: folder among the run's artifacts.
        pip_requirements: what the model needs where it is served; by default this process's torch, numpy and
            MLflow.
        serialization_format: ``"pt2"`` or ``"pickle"``; by default MLflow's own choice.

    Raises:
        TrackingError: if the model cannot be run on the example or not be saved.
    """
    import mlflow.pytorch
    from mlflow.models import infer_signature

    packages = ("torch", "numpy", "mlflow")
    requirements = list(
        pip_requirements or (f"{package}=={version(package).split('+')[0]}" for package in packages)
    )
    chosen = {"serialization_format": serialization_format} if serialization_format else {}
    trained = copy.deepcopy(model).cpu().eval()
    example = input_example.detach().cpu()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / name
        try:
            with torch.no_grad():
                signature = infer_signature(example.numpy(), trained(example).numpy())
            mlflow.pytorch.save_model(
                trained,
                path,
                signature=signature,
                input_example=example.numpy(),
                pip_requirements=requirements,
                **chosen,
            )
        except Exception as error:
            raise TrackingError(f"the model cannot be saved: {_first_line(error)}") from error
        run.artifact(path)


def flatten(params: object, prefix: str = "") -> dict[str, object]:
    """Nested hyper-parameters with dotted names.

    >>> flatten({"optimizer": {"lr": 0.1, "betas": [0.9, 0.99]}, "seed": 1})
    {'optimizer.lr': 0.1, 'optimizer.betas': '[0.9, 0.99]', 'seed': 1}
    """
    if isinstance(params, Namespace) or hasattr(params, "as_dict"):
        params = vars(params)
    elif is_dataclass(params) and not isinstance(params, type):
        params = asdict(params)
    if not isinstance(params, Mapping):
        return {prefix: params if isinstance(params, str | int | float | bool) else str(params)}
    flat: dict[str, object] = {}
    for name, value in params.items():
        flat |= flatten(value, f"{prefix}.{name}" if prefix else str(name))
    return flat


def _numbers(metrics: Mapping[str, float | Tensor]) -> dict[str, float]:
    """The metrics as numbers; what lies on a device is fetched with one synchronisation, not one a tensor."""
    away: dict[torch.device, list[str]] = {}
    for name, value in metrics.items():
        if isinstance(value, Tensor) and value.device.type != "cpu" and value.numel() == 1:
            away.setdefault(value.device, []).append(name)
    numbers: dict[str, Any] = dict(metrics)
    for names in away.values():
        together = torch.stack([metrics[name].detach().double().reshape(()) for name in names])  # type: ignore[union-attr]
        numbers |= zip(names, together.tolist(), strict=True)
    return numbers


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _is_rank_zero() -> bool:
    return bool(getattr(rank_zero_only, "rank", 0) == 0)


def _pixels(image: Any) -> Any:
    pixels = image.detach().cpu() if isinstance(image, Tensor) else torch.as_tensor(image)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4) and pixels.shape[2] not in (1, 3, 4):
        pixels = pixels.permute(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return pixels.numpy()
