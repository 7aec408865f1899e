"""OpenVINO GenAI's pipeline behind HTTP: `openvino_server.py SETTINGS`, a JSON object.

It runs in OpenVINO's own environment and so reads nothing of this package. POST /generate answers
with one event, `data: {"tokens": […]}`; GET /metrics with what was drafted, in Prometheus' text.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

import openvino  # type: ignore[import-not-found]
import openvino_genai  # type: ignore[import-not-found]

PRECISION = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")


class Pipeline:
    """A loaded target, and perhaps a draft; one prompt at a time."""

    def __init__(self, settings: dict[str, Any]) -> None:
        exact = dict.fromkeys(PRECISION, settings["precision"])
        if settings["threads"] is not None:
            exact["INFERENCE_NUM_THREADS"] = settings["threads"]
        more = dict(exact)
        if settings["draft"] is not None:
            more["draft_model"] = openvino_genai.draft_model(settings["draft"], "CPU", **exact)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = settings["cache_gb"]
        scheduler.enable_prefix_caching = False
        self._pipeline = openvino_genai.LLMPipeline(
            settings["target"], "CPU", scheduler_config=scheduler, **more
        )
        self._draft_tokens = settings["draft_tokens"]
        self._lock = Lock()
        self.drafted = self.accepted = 0

    def generate(self, asked: dict[str, Any]) -> list[int]:
        config = self._pipeline.get_generation_config()
        config.max_new_tokens = asked["max_tokens"]
        endless = config.eos_token_id < 0  # the target has no such token, and none is refused
        config.eos_token_id = max(0, config.eos_token_id)
        config.stop_token_ids = {token for token in config.stop_token_ids if token >= 0}
        config.ignore_eos = endless or asked["ignore_eos"]
        config.do_sample = asked["temperature"] > 0
        if config.do_sample:
            config.temperature, config.top_p = asked["temperature"], asked["top_p"]
            if asked["top_k"] > 0:
                config.top_k = asked["top_k"]
            if asked["seed"] is not None:
                config.rng_seed = asked["seed"]
        if self._draft_tokens:
            config.num_assistant_tokens = self._draft_tokens
        with self._lock:
            found = self._pipeline.generate(openvino.Tensor([asked["prompt"]]), config)
            tokens = [int(token) for token in found.tokens[0]]
            if self._draft_tokens:
                metrics = found.extended_perf_metrics
                self.drafted += metrics.get_num_draft_tokens()
                self.accepted += metrics.get_num_accepted_tokens()
        return tokens


class Handler(BaseHTTPRequestHandler):
    pipeline: Pipeline

    def do_GET(self) -> None:
        counted = {name: getattr(self.pipeline, name) for name in ("drafted", "accepted")}
        self._answer("".join(f"{name}_total {count}\n" for name, count in counted.items()))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            event = {"tokens": self.pipeline.generate(asked)}
        except RuntimeError as e:
            self._answer(" ".join(str(e).split()), 500)
            return
        self._answer(f"data: {json.dumps(event)}\n\n")

    def _answer(self, text: str, status: int = 200) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


if __name__ == "__main__":
    said = json.loads(sys.argv[1])
    Handler.pipeline = Pipeline(said)
    ThreadingHTTPServer((said["host"], said["port"]), Handler).serve_forever()
