"""A real Slurm on this machine for tests: munge, a controller, nodes in namespaces of their own.

Each node is a slurmd in its own mount, UTS and pid namespaces: it has a host name that resolves,
and killing it takes its jobs with it, as a crashed machine would. Everything lives in one folder
with a short path (UNIX sockets), listens on loopback only, and is stopped by its recorded pid.

Needs root and Debian's slurmctld, slurmd, slurm-client and munge.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "unshare", "setpriv")
_START_S = 30.0


def missing() -> str | None:
    """Return what this machine lacks for a real Slurm, None when it has all."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    absent = [name for name in COMMANDS if shutil.which(name, path=path) is None]
    if absent:
        return "no Slurm here: " + ", ".join(absent)
    if os.geteuid() != 0:
        return "a Slurm of several nodes on one machine needs root, for namespaces"
    probe = subprocess.run(
        ["unshare", "--mount", "--uts", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return None if probe.returncode == 0 else "namespaces are not permitted here"


def _free_ports(number: int) -> list[int]:
    """Ports that were free a moment ago; slurmctld and slurmd take no port 0."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@dataclass(kw_only=True)
class Sandbox:
    """A running Slurm."""

    folder: Path
    num_nodes: int = 2
    env: dict[str, str] = field(default_factory=dict)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of the nodes."""
        return [f"n{number}" for number in range(1, self.num_nodes + 1)]

    def start(self) -> None:
        """Start everything and wait until all nodes are idle."""
        for part in ("run", "state", "log", "etc", "gpus", *(f"spool/{n}" for n in self.names)):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        for number in range(4):
            (self.folder / "gpus" / f"gpu{number}").symlink_to("/dev/null")
        self.ports = dict(zip(["ctl", *self.names], _free_ports(1 + self.num_nodes), strict=True))
        self._write_configuration()
        self.env = {
            **os.environ,
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
            "SLURM_CONF": str(self.folder / "etc/slurm.conf"),
        }
        self._start_munge()
        self._start("slurmctld", ["slurmctld", "-D", "-f", self.env["SLURM_CONF"]])
        self._wait_for(lambda: "UP" in self._output(["scontrol", "ping"]), "the controller")
        for name in self.names:
            self.start_node(name)
        self._wait_for(self._all_idle, "its nodes")

    def _start_munge(self) -> None:
        key = self.folder / "run/munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        places = {
            "--key-file": key,
            "--socket": self.folder / "run/munge.sock",
            "--pid-file": self.folder / "run/munged.pid",
            "--log-file": self.folder / "log/munged.log",
            "--seed-file": self.folder / "run/munge.seed",
        }
        words = [f"{name}={path}" for name, path in places.items()]
        self._start("munged", ["munged", "--foreground", "--force", *words])
        self._wait_for((self.folder / "run/munge.sock").exists, "munge")

    def start_node(self, name: str) -> None:
        """Start a node, or start it again after a crash."""
        hosts = self.folder / "etc" / f"hosts-{name}"
        # A node's own name leads to 127.0.0.1, where srun is called back; others elsewhere on lo.
        others = "".join(
            f"127.0.1.{i} {other}\n" for i, other in enumerate(self.names, 1) if other != name
        )
        hosts.write_text(f"127.0.0.1 {name} localhost\n{others}")
        conf = self.env["SLURM_CONF"]
        # With -b it reports a reboot; else the jobs of a crashed node stay RUNNING without it.
        inside = (
            f'mount --bind "$0" /etc/hosts && hostname {name} && '
            f'exec slurmd -b -D -N {name} -f "$1"'
        )
        self._start(
            name,
            ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc",
             "sh", "-c", inside, str(hosts), conf],
        )  # fmt: skip

    def crash_node(self, name: str) -> None:
        """Kill a node with everything that runs on it, as a power cut would."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def down_node(self, name: str) -> None:
        """Tell the controller at once what it would find out within its time limit."""
        self.run(["scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=test"])

    def run(self, words: list[str], **changes: object) -> subprocess.CompletedProcess[str]:
        """Run a client command."""
        return subprocess.run(
            words,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **changes,  # type: ignore[call-overload,no-any-return]
        )

    def _output(self, words: list[str]) -> str:
        return self.run(words).stdout

    def _all_idle(self) -> bool:
        states = self._output(["sinfo", "-h", "-N", "-o", "%T"]).split()
        return len(states) == self.num_nodes and set(states) == {"idle"}

    def wait_idle(self) -> None:
        """Wait until all nodes are idle again."""
        self._wait_for(self._all_idle, "its nodes", limit_s=60.0)

    def _start(self, name: str, words: list[str]) -> None:
        log = open(self.folder / "log" / f"{name}.out", "ab")  # noqa: SIM115 (the child keeps it)
        # So that nothing stays behind a test run that was killed.
        dying = ["setpriv", "--pdeathsig", "KILL", *words]
        self._processes[name] = subprocess.Popen(
            dying, env=self.env, stdout=log, stderr=log, start_new_session=True
        )
        log.close()

    def _wait_for(self, ready: Callable[[], bool], what: str, limit_s: float = _START_S) -> None:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if ready():
                return
            time.sleep(0.1)
        raise RuntimeError(f"Slurm: {what} not ready after {limit_s:.0f} s, see {self.folder}/log")

    def stop(self) -> None:
        """Cancel all jobs and stop everything."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.run(["scancel", "--user=root"])
        for name in (*self.names, "slurmctld", "munged"):
            process = self._processes.pop(name, None)
            if process is None:
                continue
            process.send_signal(signal.SIGKILL if name in self.names else signal.SIGTERM)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _write_configuration(self) -> None:
        folder = self.folder
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={self.ports[name]} "
            "CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=8000 "
            "Gres=gpu:gb200:4 State=UNKNOWN"
            for name in self.names
        )
        settings = {
            "ClusterName": "tests",
            "SlurmctldHost": f"{socket.gethostname().partition('.')[0]}(127.0.0.1)",
            "SlurmctldPort": self.ports["ctl"],
            "CommunicationParameters": "NoCtldInAddrAny,NoInAddrAny",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "CredType": "cred/munge",
            "AuthInfo": f"socket={folder}/run/munge.sock,cred_expire=10",
            "StateSaveLocation": f"{folder}/state",
            "SlurmdSpoolDir": f"{folder}/spool/%n",
            "SlurmctldPidFile": f"{folder}/run/slurmctld.own",
            "SlurmdPidFile": f"{folder}/run/slurmd-%n.own",
            "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
            "SlurmdLogFile": f"{folder}/log/%n.log",
            "PlugStackConfig": f"{folder}/etc/plugstack.conf",
            "MailProg": "/bin/true",
            "ProctrackType": "proctrack/linuxproc",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,"
            "bf_interval=1",
            "SlurmdTimeout": 10,
            "ReturnToService": 2,
            "KillWait": 10,
            "MinJobAge": 86400,
            "EnforcePartLimits": "ALL",
            # A job's port comes from its id, and several of these may run on one machine.
            "FirstJobId": 1000 + os.getpid() % 8000,
            "SlurmdParameters": "config_overrides",
            "GresTypes": "gpu",
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        partition = (
            "PartitionName=batch Nodes=ALL Default=YES DefaultTime=60 MaxTime=INFINITE State=UP"
        )
        (folder / "etc/slurm.conf").write_text(f"{text}{nodes}\n{partition}\n")
        (folder / "etc/plugstack.conf").write_text("")
        names = f"n[1-{self.num_nodes}]"
        (folder / "etc/gres.conf").write_text(
            f"NodeName={names} Name=gpu Type=gb200 File={folder}/gpus/gpu[0-3]\n"
        )


@contextlib.contextmanager
def running(folder: Path, num_nodes: int = 2) -> Iterator[Sandbox]:
    """Start a Slurm and stop it whatever happens."""
    sandbox = Sandbox(folder=folder, num_nodes=num_nodes)
    try:
        sandbox.start()
        yield sandbox
    finally:
        sandbox.stop()
