"""A real Chromium for tests, without a window, and what they measure in its pages."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from PIL.Image import Image
    from playwright.sync_api import Browser, Locator, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

CONTRASTS = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {  // through a pixel, so that any notation is understood
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[3] * top[i] + (1 - top[3]) * below[i]);
  const luminance = (colour) => {
    const [red, green, blue] = colour.map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const background = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      layers.unshift(rgba(getComputedStyle(each).backgroundColor));
    }
    return layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const texts = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
    const box = element.getBoundingClientRect();
    if (!texts.length || box.width < 2 || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const below = background(element);
    const ink = over(rgba(element instanceof SVGElement ? style.fill : style.color), below);
    const [high, low] = [luminance(ink), luminance(below)].sort((a, b) => b - a);
    found.push({
      ratio: (high + 0.05) / (low + 0.05),
      what: `${element.tagName.toLowerCase()}.${element.getAttribute("class") ?? ""}`,
      text: texts[0].data.trim().slice(0, 40),
      dark: low < 0.2 && luminance(below) < luminance(ink),
    });
  }
  return found;
}
"""
"""For each piece of text that is seen: its contrast to what lies behind it, by the formula of WCAG 2."""

OUTSIDE = """
(boxes) => {
  const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
  const bounds = (element) => {
    for (let each = element.parentElement; each; each = each.parentElement) {
      if (scrolls(each)) return null;
      if (each.matches(boxes)) return each.getBoundingClientRect();
    }
    return {left: 0, right: document.documentElement.clientWidth};
  };
  const extents = (element) => {  // its own, and that of its words, which may be wider
    const words = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
    const places = words.map((node) => {
      const range = document.createRange();
      range.selectNode(node);
      return range.getBoundingClientRect();
    });
    return [element.getBoundingClientRect(), ...(scrolls(element) ? [] : places)];
  };
  const wide = [...document.body.querySelectorAll("*")].filter((element) => {
    const box = bounds(element);
    const beyond = (each) => each.width > 1 && (each.right > box.right + 1 || each.left < box.left - 1);
    return element.checkVisibility() && box && extents(element).some(beyond);
  });
  return wide.map((element) => `${element.tagName.toLowerCase()}.${element.getAttribute("class") ?? ""}`);
}
"""
"""The elements that reach out of the nearest of the boxes around them, or of the page, and do not scroll."""


@dataclass
class Traffic:
    """What a page asked for and complained of.

    Attributes:
        requests: the addresses asked for.
        complaints: errors and warnings on the console, and exceptions of scripts.
    """

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; the test is skipped where it, or what drives it, is not installed."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser is installed ({', '.join(NAMES)}); CHROMIUM may name one elsewhere")
    with driver.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program)
        try:
            yield opened
        finally:
            opened.close()


def watch(page: Page) -> Traffic:
    """Note from now on what the page asks for and complains of."""
    traffic = Traffic()
    page.on("request", lambda request: traffic.requests.append(request.url))
    page.on("pageerror", lambda error: traffic.complaints.append(str(error)))
    page.on(
        "console",
        lambda line: traffic.complaints.append(line.text) if line.type in ("error", "warning") else None,
    )
    return traffic


def pixels(element: Locator) -> Image:
    """The element as it is seen."""
    from PIL import Image

    return Image.open(io.BytesIO(element.screenshot())).convert("L")


def luminances(picture: Image) -> list[float]:
    """The relative luminance of a grey picture's pixels, darkest first."""
    histogram: list[Any] = picture.histogram()
    parts = [(grey / 255, count) for grey, count in enumerate(histogram) if count]
    linear = [
        (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4, count) for part, count in parts
    ]
    return [value for value, count in linear for _ in range(count)]
