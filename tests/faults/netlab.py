#!/usr/bin/env python3
"""A small network of namespaces: nodes on one bridge whose links have rates, losses, delays, and can be pulled.

Everything lives in namespaces named bflab-<process>-..., the bridge too, so nothing of the machine's own network
changes, and deleting them deletes it all. A new lab first removes what killed processes left behind. Needs root,
iproute2 and, for loss and partitions, nftables.

    netlab.py --self-test    shows on itself that links carry, lose, delay, break and heal, and that nothing stays behind
"""

import ctypes
import fcntl
import heapq
import os
import random
import re
import select
import shutil
import struct
import subprocess
import sys
import time

from harness import LIBC, Process, Skip

PREFIX = "bflab"
NET = "10.77.0."
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def namespaces():
    return [name for name in os.listdir("/run/netns") if name.startswith(PREFIX + "-")] if os.path.isdir("/run/netns") else []


def clean():
    """Removes labs whose process is gone."""
    for name in namespaces():
        if not os.path.exists(f"/proc/{name.split('-')[1]}"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30, check=False)


def require(loss=False):
    """Skips with a sentence when this machine cannot have a lab."""
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2")) + ((("nft", "nftables"),) if loss else ()):
        if not shutil.which(tool):
            raise Skip(f"the program `{tool}` is missing; the Debian package {package} has it")
    if os.geteuid() != 0:
        raise Skip("network namespaces need root")
    probe = f"{PREFIX}-{os.getpid()}-probe"
    try:
        run("ip", "netns", "add", probe)
        run("ip", "-n", probe, "link", "add", "a0", "type", "veth", "peer", "name", "a1")
    except (RuntimeError, OSError) as reason:
        raise Skip(f"this machine gives no network namespaces: {reason}") from None
    finally:
        subprocess.run(["ip", "netns", "del", probe], capture_output=True, timeout=30, check=False)


class Lab:
    """Nodes 0 to count-1 with the addresses `address(i)`; `slow` maps nodes to (delay in ms one way, loss in percent).

    With `loss` also losses and partitions may be asked for, which takes nftables. Use it in a `with`."""

    def __init__(self, count, rate=None, slow=None, loss=False, burst="64k"):
        self.count, self.slow, self.burst = count, slow or {}, burst
        require(loss)
        clean()
        self.switch = f"{PREFIX}-{os.getpid()}-sw"
        self.forwarders = []
        try:
            self._build(rate)
        except BaseException:
            self.close()
            raise

    def name(self, node):
        return f"{PREFIX}-{os.getpid()}-{node}"

    def address(self, node):
        return f"{NET}{node + 1}"

    def _build(self, rate):
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for node in range(self.count):
            run("ip", "netns", "add", self.name(node))
            run("ip", "-n", self.name(node), "link", "set", "lo", "up")
            if node in self.slow:
                self._forwarder(node, *self.slow[node])
            else:
                run("ip", "-n", self.switch, "link", "add", f"v{node}", "type", "veth", "peer", "name", "net",
                    "netns", self.name(node))
            run("ip", "-n", self.switch, "link", "set", f"v{node}", "master", "bridge", "up")
            run("ip", "-n", self.name(node), "addr", "add", self.address(node) + "/24", "dev", "net")
            run("ip", "-n", self.name(node), "link", "set", "net", "up")
            if rate:
                self.set_rate(node, rate)

    def _forwarder(self, node, delay_ms, loss):
        forwarder = Process([sys.executable, os.path.abspath(__file__), "--forward", self.name(node), "net",
                             self.switch, f"v{node}", str(delay_ms), str(loss)])
        self.forwarders.append(forwarder)
        if not forwarder.wait_for("^forwarding"):
            raise RuntimeError(f"the forwarder ended: {forwarder.errors()}")

    def set_rate(self, node, rate):
        """Both directions of a link, by token buckets: rate is tc's, such as 100mbit. What fits into the bucket takes no
        time, so a bucket of two packets is what a real link is like, where the timers keep up with it."""
        for where, device in ((self.name(node), "net"), (self.switch, f"v{node}")):
            run("tc", "-n", where, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", self.burst,
                "latency", "100ms")

    def _filter(self, node, rule):
        rules = f"table inet lab\ndelete table inet lab\ntable inet lab {{\n chain in {{\n  type filter hook input priority 0;\n  {rule}\n }}\n}}\n"
        run("ip", "netns", "exec", self.name(node), "nft", "-f", "-", input=rules)

    def set_loss(self, node, percent):
        """Drops this share of the packets that come in at a node."""
        some = "" if percent >= 100 else f"numgen random mod 1000 < {round(percent * 10)}"
        self._filter(node, f"iif != lo {some} drop" if percent else "")

    def partition(self, one, other):
        """Nodes of one side neither hear nor reach those of the other; `heal` ends it."""
        for here, there in ((one, other), (other, one)):
            for far in there:
                self.deafen([far], *here)

    def deafen(self, listeners, *speakers):
        """Listeners do not hear the speakers, who hear them."""
        for node in listeners:
            self._filter(node, "ip saddr { " + ", ".join(map(self.address, speakers)) + " } drop")

    def heal(self):
        for node in range(self.count):
            self._filter(node, "")

    def link_down(self, node):
        """Pulls the node's cable, without a word to either side; the moment at which that began."""
        now = time.monotonic()
        run("ip", "-n", self.switch, "link", "set", f"v{node}", "down")
        return now

    def link_up(self, node):
        run("ip", "-n", self.switch, "link", "set", f"v{node}", "up")

    def close(self):
        for forwarder in self.forwarders:
            forwarder.kill()
        for name in [self.switch, *map(self.name, range(self.count))]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30, check=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _tap(namespace, device):
    """The descriptor of a new Ethernet device in a namespace; the device lives as long as the descriptor."""
    with open(f"/run/netns/{namespace}", encoding="ascii") as handle:
        if LIBC.setns(handle.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    return tap


def forward(near, near_device, far, far_device, delay_ms, loss):
    """Carries frames between two devices, each `delay_ms` late, dropping `loss` percent. Does not end."""
    left, right = _tap(near, near_device), _tap(far, far_device)
    print("forwarding", file=sys.stderr, flush=True)
    poll = select.poll()
    for tap in (left, right):
        poll.register(tap, select.POLLIN)
    waiting, count, generator = [], 0, random.Random(1)
    while True:
        pause = max(0, waiting[0][0] - time.monotonic()) * 1000 if waiting else None
        for tap, _ in poll.poll(pause):
            for _ in range(64):
                try:
                    frame = os.read(tap, 65536)
                except (BlockingIOError, OSError):
                    break
                if generator.random() * 100 >= loss:
                    count += 1
                    heapq.heappush(waiting, (time.monotonic() + delay_ms / 1000, count, left if tap == right else right, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, tap, frame = heapq.heappop(waiting)
            try:
                os.write(tap, frame)
            except OSError:
                pass  # the device is down or full: lost, as on a wire


def _ping(lab, source, target, count=3):
    """(answers, median milliseconds)"""
    shown = subprocess.run(["ip", "netns", "exec", lab.name(source), sys.executable, os.path.abspath(__file__), "--echo",
                            lab.address(source), lab.address(target), str(count)], capture_output=True, text=True, timeout=60, check=False)
    times = [float(word) for word in shown.stdout.split()]
    return len(times), sorted(times)[len(times) // 2] if times else None


def _echo(own, target, count):
    """ICMP without the ping program: prints the milliseconds of each answer."""
    import socket
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.bind((own, 0))
        raw.settimeout(0.4)
        for sequence in range(count):
            body = struct.pack("!BBHHH", 8, 0, 0, os.getpid() & 0xFFFF, sequence)
            total = sum(struct.unpack("!4H", body))
            total = (total & 0xFFFF) + (total >> 16)
            begin = time.monotonic()
            raw.sendto(body[:2] + struct.pack("!H", ~total & 0xFFFF) + body[4:], (target, 0))
            try:
                while True:
                    kind, _, _, _, number = struct.unpack_from("!BBHHH", raw.recv(2048), 20)
                    if kind == 0 and number == sequence:
                        print((time.monotonic() - begin) * 1000)
                        break
            except TimeoutError:
                pass


def self_test():
    with Lab(3, rate="100mbit", slow={2: (50, 0)}, loss=True) as lab:
        def expect(what, source, target, holds):
            got = _ping(lab, source, target, 5)
            print(f"{what}: {got[0]} of 5 answers, {got[1] and round(got[1], 2)} ms")
            assert holds(*got), what
        expect("a link carries", 0, 1, lambda n, ms: n > 0)
        expect("50 ms each way", 0, 2, lambda n, ms: n > 0 and ms >= 100)
        lab.link_down(1)
        expect("a pulled cable", 0, 1, lambda n, ms: n == 0)
        lab.link_up(1)
        expect("plugged in again", 0, 1, lambda n, ms: n > 0)
        lab.partition([0], [1])
        expect("a partition", 0, 1, lambda n, ms: n == 0)
        expect("its other side", 2, 1, lambda n, ms: n > 0)
        lab.heal()
        lab.set_loss(1, 100)
        expect("all lost", 0, 1, lambda n, ms: n == 0)
        lab.set_loss(1, 0)
        expect("healed", 0, 1, lambda n, ms: n > 0)
    assert not [name for name in namespaces() if re.match(rf"{PREFIX}-{os.getpid()}-", name)], namespaces()
    print("nothing stays behind")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--forward"]:
        forward(*sys.argv[2:6], float(sys.argv[6]), float(sys.argv[7]))
    elif sys.argv[1:2] == ["--echo"]:
        _echo(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        from harness import campaign
        campaign(self_test)
