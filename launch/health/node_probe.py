"""Runs on each node of a cluster: prints one line of JSON with what only that node knows.

Standard library only, and started by path, since nothing need be installed there yet:
``python node_probe.py SHARED_FOLDER TOKEN``.
"""

import glob
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time


def fabric() -> dict[str, str]:
    """Fabric state, cluster UUID and clique of the first GPU, as nvidia-smi tells them."""
    if shutil.which("nvidia-smi") is None:
        return {}
    fields = "fabric.state,fabric.status,fabric.cluster_uuid,fabric.clique_id"
    words = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return {"state": "nvidia-smi gives no answer"}
    if done.returncode != 0:
        return {"state": done.stdout.strip() or done.stderr.strip()}
    names = ("state", "status", "cluster_uuid", "clique_id")
    return dict(zip(names, (part.strip() for part in done.stdout.split(",")), strict=False))


def shared(folder: str, token: str) -> str:
    """Say whether this node sees the folder, and write a file that the others look for."""
    marker = os.path.join(folder, token)
    if not os.path.isdir(folder):
        return "not there"
    if not os.path.exists(marker):
        return "another folder of that name: the caller's file is not in it"
    try:
        with open(os.path.join(folder, f"{token}-{socket.gethostname()}"), "x") as file:
            file.write(socket.gethostname())
    except OSError as error:
        return f"cannot be written: {error.strerror}"
    return "seen and written"


def main() -> None:
    """Print the line."""
    names = ("CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE", "NCCL_DEBUG", "LD_LIBRARY_PATH")
    print(  # noqa: T201
        json.dumps(
            {
                "host": socket.gethostname(),
                "python": platform.python_version(),
                "time": time.time(),
                "shared": shared(sys.argv[1], sys.argv[2]),
                "gpus": len(glob.glob("/dev/nvidia[0-9]*")),
                "imex": sorted(glob.glob("/dev/nvidia-caps-imex-channels/channel*")),
                "fabric": fabric(),
                "variables": {name: os.environ[name] for name in names if name in os.environ},
            }
        )
    )


if __name__ == "__main__":
    main()
