"""Attacks on the nodes of a cluster: packed frames, memory, other users, names that steer terminals. Run by attacks.py."""

import contextlib
import json
import os
import re
import signal
import struct
import sys
import time

import harness
import models
import speaker
from attack_kit import DEMO, Skipped, case, must, refused, run
from attacks_cluster import must_write
from harness import Generation, Process, Worker, reference, settles

GROWTH_MAX = 48 << 20
WIPE = "\x1b[2J\x1b]0;owned\x07\nbutterfly: all is well\r\u202e\u009b31m"  # what a terminal would obey
EVIL = ("\x1b", "\x07", "\r", "\u202e", "\u009b", "\nbutterfly: all is well")


def most_resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]) << 10


def forget_most_resident(pid):
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as refs:
        refs.write("5")


def repeated_crc(byte, count, crc):
    """As crc32c(count bytes of this value, crc): adding a byte is a linear map and a constant, whose powers are quick."""
    def apply(map_of, value):
        columns, constant = map_of
        for i in range(32):
            if value >> i & 1:
                constant ^= columns[i]
        return constant
    step = [speaker.TABLE[(x ^ byte) & 0xff] ^ x >> 8 for x in [0] + [1 << i for i in range(32)]]
    power = ([one ^ step[0] for one in step[1:]], step[0])
    state = crc ^ 0xffffffff
    while count:
        if count & 1:
            state = apply(power, state)
        columns, constant = power
        power = ([apply((columns, 0), one) for one in columns], apply(power, constant))
        count >>= 1
    return state ^ 0xffffffff


def bomb(meta=b""):
    """A frame that is whole and right: one LZ4 block of 15 MiB, mostly one byte, which stays as it is and is then repeated."""
    literal, repeated, last = 13 << 20, 440 << 20, 16
    runs = [(0xff, 1), (0xff, (literal - 15) // 255), ((literal - 15) % 255, 1), (0x78, literal), (1, 1), (0, 1),
            (0xff, (repeated - 4 - 15) // 255), ((repeated - 4 - 15) % 255, 1), (0xf0, 1), (last - 15, 1), (0x78, last)]
    head = struct.pack("<Q", literal + repeated + last)
    crc = speaker.crc32c(head, speaker.crc32c(meta))
    for byte, count in runs:
        crc = repeated_crc(byte, count, crc)
    size = len(head) + sum(count for _, count in runs)
    return speaker.frame_header(len(meta), size, crc, speaker.LZ4) + meta + head + b"".join(bytes([byte]) * count for byte, count in runs)


def pour(connection, data):
    """Sends until the other side hangs up; whether it did."""
    try:
        connection.settimeout(10)
        connection.sendall(data)
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


@case
def packed_frames(folder):
    """15 MiB that would become 453 MiB, on connections of every kind, with and without credentials."""
    secret = os.path.join(folder, "cluster")
    must(run("cluster", "init", secret)[0] == 0, "no credentials were made")
    plain = bomb(speaker.field(speaker.STATUS_WANTED, b""))
    for credentials in (None, secret):
        with Worker(*(("--credentials", credentials) if credentials else ())) as worker:
            def call(role, label="status", session=None):
                return speaker.call(worker.address, role, label, session=session, folder=credentials)
            forget_most_resident(worker.pid)
            before = most_resident(worker.pid)
            session = os.urandom(16)
            with call(speaker.CONTROL, "a coordinator", session) as control:
                for role, label, of in ((speaker.STATUS, "status", None), (speaker.PROBE, "probe", None), (speaker.CONTROL, "another", None),
                                        (speaker.DATA, "holder@1", session), (speaker.CONTROL, "the first", session)):
                    with contextlib.suppress(OSError), (control if label == "the first" else call(role, label, of)) as one:
                        must(pour(one, plain), f"a bomb on a connection of role {role} is not answered by its end")
            grown = most_resident(worker.pid) - before
            must(grown < GROWTH_MAX, f"{'with' if credentials else 'without'} credentials: 15 MiB cost {grown >> 20} MiB")
    return ""


@case
def unfinished_frames(_):
    """Clients that stop in the middle of what they may send: it is freed at their deadline."""
    half = speaker.frame_header(0, 4 << 20, 0) + bytes(3 << 20)
    meta = speaker.frame_header(1 << 20, 0, 0) + bytes(1 << 19)
    with Worker() as worker:
        idle = harness.open_files(worker.pid)
        sizes = []
        for _ in range(3):  # what the C library keeps of one round serves the next
            with contextlib.ExitStack() as stack:
                began = time.monotonic()
                for role, words in 8 * ((speaker.PROBE, half), (speaker.STATUS, meta)) + ((speaker.CONTROL, meta),):
                    one = stack.enter_context(speaker.call(worker.address, role, "slow"))
                    with contextlib.suppress(OSError):
                        one.sendall(words)
                must(settles(lambda: harness.open_files(worker.pid) <= idle, 12), f"{harness.open_files(worker.pid) - idle} clients outstay their time")
                must(time.monotonic() - began < 10, f"unfinished messages were kept for {time.monotonic() - began:.1f} s")
            sizes.append(harness.resident_bytes(worker.pid))
        must(sizes[2] < sizes[1] + (8 << 20), f"unfinished messages stay: {sizes} bytes after each round")
        with Generation([worker], tokens=50) as after:
            must_write(after, 50)
    return ""


class Cgroup:
    """A group of processes with a limit of memory, below the one that this process is in."""

    def __init__(self, limit):
        self.path, self.limit_file = self._place()
        try:
            os.mkdir(self.path)
            self.limit(limit)
        except OSError as error:
            raise Skipped(f"no group with a limit of memory can be made: {error}") from None

    @staticmethod
    def _place():
        with open("/proc/self/cgroup", encoding="ascii") as file:
            groups = dict(line.strip().split(":", 2)[1:] for line in file)
        name = f"butterfly-attack-{os.getpid()}"
        if "memory" in groups:
            mount = next((base for base in ("/sys/fs/cgroup/memory" + groups["memory"], "/sys/fs/cgroup/memory") if os.path.isdir(base)), None)
            if mount:
                return os.path.join(mount, name), "memory.limit_in_bytes"
        base = "/sys/fs/cgroup" + groups.get("", "/")
        if not os.path.exists(os.path.join(base, "cgroup.controllers")) or "memory" not in open(os.path.join(base, "cgroup.subtree_control"), encoding="ascii").read():
            raise Skipped("the system's groups limit no memory here")
        return os.path.join(base, name), "memory.max"

    def limit(self, size):
        with open(os.path.join(self.path, self.limit_file), "w", encoding="ascii") as file:
            file.write(str(size))

    def command(self, *command):
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', self.path, *command]

    def worker(self, *arguments):
        process = Process(self.command(harness.PROGRAM, "worker", "--listen", "127.0.0.1:0", "-t", 1, *arguments))
        found = process.wait_for(r"listening on (\S+)")
        must(found, f"no worker in its group: {process.errors()}")
        process.address = found[1][1]
        return process

    def __enter__(self):
        return self

    def __exit__(self, *_):
        settles(lambda: not open(os.path.join(self.path, "cgroup.procs"), encoding="ascii").read(), 5)
        with contextlib.suppress(OSError):
            os.rmdir(self.path)


def memory_of(address):
    code, out, errors = run("cluster", "status", "--json", address)
    must(code == 0, f"no status: {errors}")
    shown = json.loads(out)
    return (shown["nodes"] if isinstance(shown, dict) else shown)[0]["node"]["memory_bytes"]


@case
def a_group_with_little_memory(_):
    """A worker in a container: it offers what the container has, a plan gives it no more, and too much is refused."""
    limit, large = 128 << 20, models.slow_to_load()  # 170 MB
    with Cgroup(limit) as group:
        for asked in ((), ("--memory", "8G")):
            with group.worker(*asked) as worker, Worker() as other:
                said = memory_of(worker.address)
                must(said <= limit, f"{' '.join(asked)}: it offers {said} bytes of {limit}")
                wrong = refused(run("generate", "-m", large, "-p", "x", "-n", "2", "-t", 1, "--workers", worker.address), "memory|missing|fit|hold")
                must(not wrong, f"{' '.join(asked)}: {wrong}")
                must(worker.process.poll() is None, "the worker did not live through it")
                with Generation([worker, other], tokens=20, model=large, options=("--split", "greedy")) as both:
                    must_write_of(both, 20, large)
                must(worker.process.poll() is None, "the worker did not live through its share")
    return ""


def must_write_of(generation, tokens, model):
    code = generation.wait()
    must(code == 0 and generation.text() == reference(tokens=tokens, model=model) != b"", f"exit code {code}: {generation.errors()[-600:]}")


HOG = "import time\nkept = []\nwhile True: kept.append(bytearray(1 << 20)); time.sleep(0.002)"


@case
def a_worker_that_the_kernel_kills(_):
    """Another process takes the memory of its group, and the kernel ends the worker: the others go on."""
    with Cgroup(128 << 20) as group, group.worker() as worker, Worker() as other:
        with open(f"/proc/{worker.pid}/oom_score_adj", "w", encoding="ascii") as score:
            score.write("1000")
        with Generation([worker, other], tokens=450) as both:
            both.wait_for_bytes(10)
            with Process(group.command(sys.executable, "-c", HOG)):
                must(settles(lambda: worker.process.poll() is not None, 20), "the kernel killed nobody")
            must(worker.process.returncode == -signal.SIGKILL, f"the worker ended with {worker.process.returncode}: {worker.errors()}")
            must_write(both, 450)
    return ""


STRANGER = r"""
import glob, mmap, os, socket, sys, time
os.setgroups([]); os.setgid(65534); os.setuid(65534)
got, tried, end = [], 0, time.monotonic() + 6
pids = sys.argv[2:]
while time.monotonic() < end:
    for pid in pids if sys.argv[1] == "files" else ():
        for path in [f"/proc/{pid}/mem", f"/proc/{pid}/environ"] + [f"/proc/{pid}/fd/{i}" for i in range(3, 40)]:
            tried += 1
            try:
                with open(path, "r+b", buffering=0) as file:
                    got.append(path)
                    os.ftruncate(file.fileno(), 0)
            except OSError:
                pass
        for folder in ("fd", "map_files"):
            try:
                got += [f"/proc/{pid}/{folder}/{name}" for name in os.listdir(f"/proc/{pid}/{folder}")]
            except OSError:
                pass
    for name in glob.glob("/dev/shm/*utterfly*"):
        got.append(name)
    with open("/proc/net/unix") as table:
        offers = [line.split()[-1] for line in table if "@butterfly-" in line]
    for name in set(offers):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.setblocking(False)
        tried += 1
        try:
            one.connect("\0" + name[1:])
            one.settimeout(0.05)
            _, passed, _, _ = socket.recv_fds(one, 16, 4)
            got += [f"descriptor {number} from {name}" for number in passed]
        except OSError:
            pass
        one.close()
print(tried, "tries", got[:5])
"""


def stranger(way, *workers):
    return Process([sys.executable, "-c", STRANGER, way, *(worker.pid for worker in workers)])


@case
def another_user_beside_shared_memory(_):
    """Workers of a tensor group share memory; nobody else reaches it, by name, by descriptor or through their socket."""
    if os.getuid() != 0:
        raise Skipped("only root can be two users")
    options = ("--split", "tensor")
    text = reference(tokens=200)
    with Worker() as a, Worker() as b, stranger("files", a, b) as one, stranger("sockets", a, b) as two:
        rounds = shared = 0
        while one.process.poll() is None or two.process.poll() is None:
            with Generation([a, b], tokens=200, options=options) as both:
                code = both.wait()
                must(code == 0 and both.text() == text, f"exit code {code} beside another user: {both.errors()[-400:]}")
                shared += "shared memory" in both.errors()
            rounds += 1
        for each in (one, two):
            each.wait()
            said = each.text().decode()
            must(re.fullmatch(r"\d+ tries \[\]\n", said), f"another user got in: {said} {each.errors()}")
        must(shared > 0, f"in {rounds} runs no group shared memory")
    return ""


def obeyed(text):
    """What of WIPE reached a terminal."""
    return [mark for mark in EVIL if mark in text]


@case
def names_that_steer_a_terminal(_):
    """Labels, names and errors of peers, wherever they are shown: progress, summary, log, status, JSON."""
    shown = {}
    with contextlib.ExitStack() as stack:
        def keep(name, code, out, errors):
            shown[name] = (code, out.decode(errors="replace") if isinstance(out, bytes) else out, errors)
        # A worker that describes itself so, and refuses what it is assigned so.
        def refuse(one, assign):
            speaker.say(one, speaker.FAILURE, speaker.field(1, 2) + speaker.field(2, WIPE) + speaker.field(3, assign[1][0]))
        evil = stack.enter_context(speaker.FakeWorker(speaker.member(name=WIPE, on_assign=refuse)))
        at_once = ("-m", DEMO, "-p", "x", "-n", "2", "--split", "uniform", "--workers")
        keep("generate", *run("generate", *at_once, evil.address))
        keep("generate --json", *run("generate", "--json", *at_once, evil.address))
        keep("train", *run("train", "--model", "tinytransformer-tiny", "--data", "synthetic:markov", "--steps", "2", "--workers", evil.address))

        def busy(one, role, _):
            if role == speaker.CONTROL:
                speaker.say(one, speaker.FAILURE, speaker.field(1, 5) + speaker.field(2, WIPE))
            elif role == speaker.STATUS:
                speaker.read_frame(one)
                status = speaker.field(1, speaker.node(WIPE)) + speaker.field(2, WIPE) + speaker.field(4, WIPE) + speaker.field(5, speaker.field(2, 1))
                speaker.say(one, speaker.WORKER_STATUS, status)
            elif role == speaker.PROBE:
                speaker.echo(one)
        worker = stack.enter_context(speaker.FakeWorker(busy))
        keep("generate, refused", *run("generate", *at_once, worker.address))

        def coordinator(one, role, _):
            heard = speaker.fields(speaker.read_frame(one)[0])
            if speaker.STATUS_WANTED in heard:
                members = b"".join(speaker.field(3, speaker.field(1, address) + speaker.field(2, speaker.node(WIPE)) + speaker.field(3, 9.0))
                                   for address in (WIPE, "127.0.0.1:1" + WIPE, worker.address))
                speaker.say(one, speaker.COORDINATOR_STATUS, speaker.field(1, WIPE) + members + speaker.field(4, WIPE))
            else:
                speaker.say(one, speaker.REBALANCED, speaker.field(1, WIPE))
        leader = stack.enter_context(speaker.FakeWorker(coordinator))
        keep("status", *run("cluster", "status", leader.address, worker.address))
        keep("status --links", *run("cluster", "status", "--links", leader.address, worker.address))
        keep("status --json", *run("cluster", "status", "--json", leader.address, worker.address))
        keep("rebalance", *run("cluster", "rebalance", leader.address))
        keep("plan", *run("plan", "-m", DEMO, "--workers", worker.address))
        keep("plan --json", *run("plan", "-m", DEMO, "--json", "--workers", worker.address))
        with Process([harness.PROGRAM, "cluster", "status", "--watch", "--every", 1, leader.address]) as watch:
            watch.wait_for_bytes(300)
            keep("status --watch", 0, watch.text().replace(b"\x1b[H\x1b[2J", b"").replace(b"\x1b[H\x1b[J", b""), watch.errors())
        # A coordinator with such a name, at a real worker; it also says what a worker logs.
        with Worker(BUTTERFLY_LOG="debug") as real:
            with speaker.call(real.address, speaker.CONTROL, WIPE[:20]):
                settles(lambda: "connected" in real.errors(), 5)
                keep("status of a worker", *run("cluster", "status", real.address))
                keep("status of a worker --json", *run("cluster", "status", "--json", real.address))
                keep("generate, busy", *run("generate", *at_once, real.address))
            time.sleep(0.2)
            keep("a worker's log", 0, b"", "\n".join(line for _, line in real.lines))
    for name, (code, out, errors) in shown.items():
        must(name == "status --watch" or code in (0, 1, 2), f"{name}: status {code}: {errors[-300:]}")
        must(len(out + errors) > 20, f"{name}: shows nothing")
        must(not obeyed(out + errors), f"{name}: {obeyed(out + errors)} reached the terminal: {(out + errors)[:600]!r}")
    return ""
