"""Cases on the GPU in a separate process: a kernel that hangs or faults ends that process and no other.

parent                       child (python gpu_process.py)
GpuProcess()          ---->  {"name": ..., "target": ..., "version": ...}
run("warp/vote")      ---->  {"buffers": [...], "guards": 0, "maps": [...]}   or   {"error": ...}
(no answer in time: the child is killed; the next run starts another)
"""

import base64
import json
import queue
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

START_SECONDS = 120
"""A context on a machine with many GPUs takes many seconds."""
CASE_SECONDS = 20
"""Kernels give up polling after about a second; assembling one takes less."""


class GpuProcess:
    """The first CUDA device, through a pipe. Raises OSError when there is none."""

    def __init__(self):
        self.child = None
        self.start()

    def start(self):
        self.child = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.lines = queue.Queue()
        threading.Thread(target=self._read, args=(self.child, self.lines), daemon=True).start()
        answer = self._answer(START_SECONDS)
        if "error" in answer:
            self.stop()
            raise OSError(answer["error"])
        self.name, self.target, self.version = (answer[k] for k in ("name", "target", "version"))

    @staticmethod
    def _read(child, lines):
        for line in child.stdout:
            lines.put(line)
        lines.put("")

    def _answer(self, seconds):
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            self.stop()
            return {"error": f"no answer after {seconds} s; the process was killed", "fatal": True}
        if not line:
            status = self.child.wait()
            self.stop()
            return {"error": f"the GPU process ended with status {status}", "fatal": True}
        return json.loads(line)

    def stop(self):
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            self.child = None

    def ask(self, request):
        """The answer to a request, as a dict; {"error": ...} when the kernel hangs, faults or is refused."""
        if self.child is None:
            self.start()
        try:
            self.child.stdin.write(request + "\n")
            self.child.stdin.flush()
        except OSError:
            pass  # the child is gone: its last answer, or its status, says why
        answer = self._answer(CASE_SECONDS)
        if answer.get("fatal"):  # a fault stays in the context: only a fresh process goes on
            self.stop()
        return answer

    def run(self, name):
        """The answer for a case, with "buffers" as uint8 arrays."""
        answer = self.ask(name)
        if "buffers" in answer:
            answer["buffers"] = [
                np.frombuffer(base64.b64decode(text), np.uint8) for text in answer["buffers"]
            ]
        return answer


# --- the child ------------------------------------------------------------------------------------------------


def compare_maps(driver, fields, address):
    """{"fields", "refused"} or {"fields", "differing": [[word, driver, ours], ...]} over the words 0 to 15."""
    encoded, why = driver.encode(fields, address)
    if encoded is None:
        return {"fields": str(fields), "refused": why}
    theirs, ours = (np.frombuffer(x, np.uint32)[:16] for x in (encoded, fields.encode(address)))
    words = np.flatnonzero(theirs != ours)
    return {
        "fields": str(fields),
        "differing": [[int(w), int(theirs[w]), int(ours[w])] for w in words],
    }


def random_maps(driver, count):
    from tests.emulator.gpu.tensor_map_fields import random_fields

    rng = np.random.default_rng(0)
    address = 0x7F0000000000  # only encoded, never used
    return {"maps": [compare_maps(driver, random_fields(rng), address) for _ in range(count)]}


def answer(driver, cases, request):
    if request.startswith("random maps "):
        return random_maps(driver, int(request.split()[-1]))
    case = cases[request]
    buffers, guards, addresses = driver.run(case)
    return {
        "buffers": [base64.b64encode(buffer.tobytes()).decode() for buffer in buffers],
        "guards": guards,
        "maps": [compare_maps(driver, fields, addresses[fields.buffer]) for fields in case.maps],
    }


def serve():
    from tests.emulator.gpu.driver import Driver
    from tests.emulator.gpu.ptx_cases import all_cases

    def say(message):
        print(json.dumps(message), flush=True)

    try:
        driver = Driver()
    except OSError as why:
        say({"error": str(why)})
        return
    cases = all_cases()
    say({"name": driver.name, "target": driver.target, "version": driver.driver_version})
    for line in sys.stdin:
        try:
            say(answer(driver, cases, line.rstrip("\n")))
        except OSError as why:
            say({"error": str(why), "fatal": "cuModuleLoadDataEx" not in str(why)})


if __name__ == "__main__":
    serve()
