"""Just enough of vLLM's HTTP server: streamed completions, what it counts, and calls of a worker's extension.

A token takes 2 ms. STAND_IN says what shall go wrong, or that tokens come two in a chunk ("merges").
"""

import argparse
import importlib
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import vllm

parser = argparse.ArgumentParser()
for flag in ("model", "served-model-name", "host", "load-format", "dtype", "worker-extension-cls"):
    parser.add_argument(f"--{flag}")
parser.add_argument("--port", type=int)
parser.add_argument("--max-model-len", type=int, default=128)
args, _ = parser.parse_known_args()
module, _, name = args.worker_extension_cls.partition(".")
extension = importlib.import_module(module)
extension.refill = lambda *_: None
steps = 0


class Worker(getattr(extension, name)):
    vllm_config = vllm.VllmConfig()

    def get_model(self):
        return None


Worker.vllm_config.model_config.max_model_len = args.max_model_len


class Scheduler:
    def schedule(self):
        time.sleep(0.0001)


class EngineCore:
    scheduler, model_executor = Scheduler(), object()

    def call(self, method):
        return getattr(worker, method)()


worker, core = Worker(), EngineCore()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        counted = f'vllm:iteration_tokens_total_count{{engine="0"}} {steps}\nvllm:e2e_request_latency_seconds_sum 0.5\n'
        self.answer(200, counted if self.path == "/metrics" else "")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/collective_rpc":
            self.answer(200, json.dumps({"results": [core.call(body["method"])]}))
        elif self.path == "/reset_prefix_cache":
            self.answer(200, "{}")
        elif len(body["prompt"]) >= args.max_model_len:
            self.answer(400, '{"error": "the prompt is longer than the model\'s context"}')
        else:
            self.stream(body["max_tokens"])

    def stream(self, most):
        global steps
        vllm.misbehave(f"an answer of {most}")
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        at_once = 2 if os.environ.get("STAND_IN") == "merges" else 1
        for at in range(0, most, at_once):
            time.sleep(vllm.STEP_S * 10)
            steps += 1
            core.scheduler.schedule()
            text = "".join(f" w{i}" for i in range(at, min(most, at + at_once)))
            self.chunk("data: " + json.dumps({"choices": [{"index": 0, "text": text}]}, separators=(",", ":")))
        self.chunk("data: [DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, event):
        data = f"{event}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


vllm.misbehave("open")
print("up", file=sys.stderr)
ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()
